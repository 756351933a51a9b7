"""Jobs whose operators wait for the phase of a pod group work under kube-scheduler, as gangs."""

import json
from functools import partial

import pytest

from allocator.watch.pod_group_queue import POD_GROUPS, QueuedPodGroup
from tests.workloads import operators
from tests.workloads.definitions import ASCEND_JOB, VOLCANO_JOB, VOLCANO_POD_GROUP
from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ()
DEFINITIONS = (VOLCANO_POD_GROUP, VOLCANO_JOB, ASCEND_JOB)
SETTINGS = {"enqueue_pod_groups": True}

pytestmark = pytest.mark.real


@pytest.mark.parametrize("name", ["ascendjob.yaml", "vcjob.yaml"])
async def test_the_pods_of_an_operator_that_waits_are_a_gang(workloads: Workloads, name: str) -> None:
    await workloads.add_nodes(2)
    async with operators.running(workloads.cluster.api):
        await workloads.create(example(name))
        pods = await workloads.refused(3)
        job = workloads.job_of(pods)
        assert (job.size, job.min_available) == (3, 3)
        await workloads.add_nodes(1)
        pods = await workloads.bound(3)
    assert len({pod.spec.node_name for pod in pods}) == 3
    assert [chips(pod) for pod in pods] == [8, 8, 8]
    assert sorted(job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods) == [0, 1, 2]


@pytest.mark.long
async def test_groups_of_another_scheduler_keep_their_phase(workloads: Workloads) -> None:
    (job,) = example("ascendjob.yaml")
    other = json.loads(json.dumps(job))
    other["metadata"]["name"], other["spec"]["schedulerName"] = "other", "volcano"

    async def group_of(name: str, *, admitted: bool) -> QueuedPodGroup | None:
        groups = await workloads.client.list_objects(POD_GROUPS, "default")
        found = [each for each in groups if each.name.startswith(f"{name}-")]
        return next((each for each in found if not admitted or each.status.phase), None)

    async with operators.running(workloads.cluster.api):
        await workloads.create([other])
        await workloads.eventually(partial(group_of, "other", admitted=False), "the group of the other job exists")
        await workloads.create([job])
        # Groups are judged in the order in which they are seen.
        await workloads.eventually(partial(group_of, "train", admitted=True), "the group of the job is admitted")
        group = await group_of("other", admitted=False)
        await workloads.made(3)
    assert group is not None
    assert group.status.phase == ""
