"""Gangs whose pods quotas, Kueue or gates hold back keep nothing from others, and start when their pods are let go."""

import time
from typing import Any, Final

import pytest

from allocator.rules.vacancy import Vacancy
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import PODS, Pod
from tests.workloads.test_kueue import QUEUE
from tests.workloads.world import KUEUE, KUEUE_WORKLOADS, Workloads, example

CONTROLLERS = (KUEUE,)
DEFINITIONS = ()
BOUND_S: Final = 30.0
COUNT: Final = 12
CHIPS: Final = 8
NODES: Final = 2
QUOTA: Final = "requests.huawei.com/Ascend910"

pytestmark = [pytest.mark.real, pytest.mark.long]


def job(name: str, namespace: str = "default", **metadata: Any) -> dict[str, Any]:
    """A Job of two pods with all chips of a server each."""
    (made,) = example("indexed-job.yaml")
    made["metadata"] = {"name": name, "namespace": namespace, **metadata}
    made["spec"] |= {"parallelism": 2, "completions": 2, "backoffLimit": 0}
    made["spec"]["template"]["metadata"]["annotations"][MIN_AVAILABLE] = "2"
    return made


async def limit(workloads: Workloads, namespace: str, chips: int) -> None:
    """Set the quota of a namespace."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "chips", "namespace": namespace}}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas/chips"
    if not workloads.cluster.api.answers(path):
        await workloads.create([{**quota, "spec": {"hard": {QUOTA: str(chips)}}}])
    else:
        workloads.cluster.api.patch(path, {"spec": {"hard": {QUOTA: str(chips)}}})

    async def is_counted() -> bool:
        status = workloads.cluster.api.get(path).get("status", {})
        return bool(status.get("hard", {}).get(QUOTA) == str(chips) and QUOTA in status.get("used", {}))

    await workloads.eventually(is_counted, f"the quota of {namespace} counts")


async def pods_of(workloads: Workloads, prefix: str, count: int, *, bound: bool = False) -> list[Pod]:
    """Wait until the allocator knows so many pods, or bound pods, of all namespaces whose names begin so."""

    async def check() -> list[Pod] | None:
        pods = [pod for pod in await workloads.client.list_objects(PODS) if pod.name.startswith(prefix)]
        known = [pod for pod in pods if pod.uid in workloads.app.cluster.pods and (pod.spec.node_name or not bound)]
        return known if len(known) == count else None

    return await workloads.eventually(check, f"{count} pods {prefix}* are {'bound' if bound else 'there'}")


async def check_others_start(workloads: Workloads) -> None:
    """No chips are kept for gangs that can't start, and a gang that takes all chips starts in time, twice."""

    async def all_free() -> bool:
        offers = [record.offer for record in workloads.app.cluster.nodes.values()]
        free = [offer for offer in offers if isinstance(offer, Vacancy) and offer.free.bit_count() == CHIPS]
        return len(free) == len(offers) == NODES

    for name in ("first", "second"):
        await workloads.eventually(all_free, "no chip is kept")
        begin_s = time.monotonic()
        await workloads.create([job(name)])
        pods = await pods_of(workloads, f"{name}-", 2, bound=True)
        assert time.monotonic() - begin_s <= BOUND_S
        for pod in pods:
            await workloads.fail(pod)


async def test_gangs_of_which_a_quota_lets_half_of_the_pods_exist_keep_nothing(workloads: Workloads) -> None:
    for number in range(COUNT):
        name = workloads.node_name(f"limited-{number}")
        workloads.cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        await limit(workloads, name, CHIPS)
        await workloads.create([job(f"limited-{number}", name)])
    await workloads.add_nodes(NODES)
    await pods_of(workloads, "limited-", COUNT)
    await check_others_start(workloads)
    assert not [pod for pod in await pods_of(workloads, "limited-", COUNT) if pod.spec.node_name]
    first = workloads.node_name("limited-0")
    await limit(workloads, first, 2 * CHIPS)
    path = f"/apis/batch/v1/namespaces/{first}/jobs/limited-0"
    workloads.cluster.api.patch(path, {"metadata": {"annotations": {"quota": "raised"}}})  # its backoff may be a minute
    assert len(await pods_of(workloads, "limited-0-", 2, bound=True)) == 2


def groups(chips: int) -> list[dict[str, Any]]:
    """The resources of the example's queue with another quota."""
    queue = example("kueue.yaml")[1]
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = chips
    return list(queue["spec"]["resourceGroups"])


async def create_queue(workloads: Workloads, chips: int) -> None:
    """Create a queue of Kueue with a quota."""
    flavor, queue, local, *_ = example("kueue.yaml")
    queue["spec"]["resourceGroups"] = groups(chips)
    await workloads.create([flavor, queue, local])


async def create_groups(workloads: Workloads, **last: Any) -> None:
    """Create groups of two pods for the queue.

    Args:
        last: what the spec of a group's last pod has besides.
    """
    for number in range(COUNT):
        pair = example("kueue.yaml")[-2:]
        pair[1]["spec"] |= last
        for rank, pod in enumerate(pair):
            pod["metadata"]["name"] = f"held-{number}-{rank}"
            pod["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = f"held-{number}"
        await workloads.create(pair)


async def held_by_kueue(workloads: Workloads) -> None:
    """Wait until Kueue has found no quota for any of the jobs or groups."""

    async def check() -> bool:
        found = workloads.cluster.api.get(KUEUE_WORKLOADS)["items"]
        conditions = [known for item in found for known in item.get("status", {}).get("conditions", [])]
        refused = [known for known in conditions if (known["type"], known["status"]) == ("QuotaReserved", "False")]
        return len(found) == len(refused) == COUNT

    await workloads.eventually(check, "Kueue has no quota for all")


async def test_pods_that_kueue_holds_keep_nothing(workloads: Workloads) -> None:
    await create_queue(workloads, 2 * CHIPS - 1)
    await create_groups(workloads)
    await held_by_kueue(workloads)
    await workloads.add_nodes(NODES)
    assert all(pod.spec.scheduling_gates for pod in await pods_of(workloads, "held-", 2 * COUNT))
    await check_others_start(workloads)
    workloads.cluster.api.patch(QUEUE, {"spec": {"resourceGroups": groups(2 * CHIPS)}})
    assert len(await pods_of(workloads, "held-", 2, bound=True)) == 2


async def test_jobs_that_kueue_suspends_keep_nothing(workloads: Workloads) -> None:
    await create_queue(workloads, 2 * CHIPS - 1)
    labels = {"kueue.x-k8s.io/queue-name": "team"}
    await workloads.create([job(f"held-{number}", labels=labels) for number in range(COUNT)])
    await held_by_kueue(workloads)
    await workloads.add_nodes(NODES)
    await check_others_start(workloads)
    workloads.cluster.api.patch(QUEUE, {"spec": {"resourceGroups": groups(2 * CHIPS)}})
    assert len(await pods_of(workloads, "held-", 2, bound=True)) == 2


async def test_gangs_that_kueue_admits_and_of_which_another_gate_holds_a_pod_keep_nothing(workloads: Workloads) -> None:
    await create_queue(workloads, COUNT * 2 * CHIPS)
    await create_groups(workloads, schedulingGates=[{"name": "example.com/for-ever"}])
    await workloads.add_nodes(NODES)

    async def half_admitted() -> bool:
        pods = await pods_of(workloads, "held-", 2 * COUNT)
        return sum(len(pod.spec.scheduling_gates) for pod in pods) == COUNT

    await workloads.eventually(half_admitted, "Kueue has admitted all")
    await check_others_start(workloads)
    assert not [pod for pod in await pods_of(workloads, "held-", 2 * COUNT) if pod.spec.node_name]
    workloads.cluster.api.patch("/api/v1/namespaces/default/pods/held-0-1", {"spec": {"schedulingGates": None}})
    assert len(await pods_of(workloads, "held-", 2, bound=True)) == 2
