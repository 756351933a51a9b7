"""Jobs of a kind that only the settings describe, on a real scheduler; its operator's pods are made by the test."""

import asyncio
from typing import Any, Final

import pytest

from ascend.reasons import Reason
from tests.allocator.jobs.test_described import EXAMPLE, KIND, OWNER, PREFIX, SPEC, run_object
from tests.cluster.api import collection
from tests.cluster.manifests import pod
from tests.workloads.definitions import definition
from tests.workloads.world import Workloads, chips

CONTROLLERS = ()
DEFINITIONS = (definition(PREFIX, "v1", OWNER[1], status=True),)
SETTINGS = EXAMPLE
RUN: Final = f"{collection(run_object(SPEC))}/train"

pytestmark = pytest.mark.real


def pods_of(run: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of an object, as its operator makes them."""
    controller = {key: run[key] for key in ("apiVersion", "kind")} | {
        key: run["metadata"][key] for key in ("name", "uid")
    }
    made = []
    for role, index in (("leader", 0), ("worker", 0), ("worker", 1)):
        template = run["spec"][role]["template"]
        manifest = pod(f"train-{role}-{index}")
        manifest["metadata"] |= {
            "labels": {f"{PREFIX}/run": "train", f"{PREFIX}/role": role, f"{PREFIX}/index": str(index)},
            "ownerReferences": [{**controller, "controller": True}],
        }
        manifest["spec"]["containers"][0]["resources"] = template["spec"]["containers"][0]["resources"]
        made.append(manifest)
    return made


async def test_an_object_with_two_roles_starts_whole_or_not_at_all(workloads: Workloads) -> None:
    async def says_why() -> bool:
        messages = [condition.message for pod in await workloads.pods() for condition in pod.status.conditions]
        return any(Reason.GROUP_MISSING in message and "`$.spec.worker`" in message for message in messages)

    await workloads.add_nodes(2)
    await workloads.create([run_object({**SPEC, "worker": "wrong"})])
    run = await asyncio.to_thread(workloads.cluster.api.get, RUN)
    await workloads.create(pods_of({**run, "spec": SPEC}))
    await workloads.eventually(says_why, "a pod says what is wrong with the object")
    await asyncio.to_thread(workloads.cluster.api.patch, RUN, {"spec": SPEC})
    job = workloads.job_of(await workloads.refused(3))

    async def is_known() -> bool:
        return (job.size, job.min_available) == (3, 3)

    await workloads.eventually(is_known, "the allocator has read the object")
    assert job.key.kind == KIND
    assert len(workloads.app.ledger) == 0
    assert not [pod for pod in await workloads.pods() if pod.spec.node_name]
    await workloads.add_nodes(1)
    pods = await workloads.bound(3)
    assert [chips(pod) for pod in pods] == [8, 8, 8]
    assert [pod.name for _, pod in job.by_rank()] == ["train-leader-0", "train-worker-0", "train-worker-1"]
