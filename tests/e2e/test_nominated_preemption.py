"""Preemption with the real kube-scheduler while the allocator gates and nominates pods: neither disturbs the other."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final

import pytest
import pytest_asyncio

from ascend.annotations import NOMINATED
from ascend.errors import Conflict
from ascend.kube.objects import PODS
from tests.cluster.binaries import MINOR
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real

_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest.fixture(
    scope="module",
    params=[
        (),
        pytest.param(
            ("SchedulerAsyncAPICalls",),
            marks=[pytest.mark.long, pytest.mark.skipif(MINOR < 34, reason="this gate came with 1.34")],
        ),
    ],
    ids=["calls that wait", "asynchronous calls"],
)
def cluster(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Cluster]:
    """The shared cluster, or one whose kube-scheduler has gates."""
    if not request.param:
        yield cluster
        return
    with Cluster(2, scheduler_gates=request.param) as own:
        yield own


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    setup = Setup(nominate="gated")
    async with real_world(cluster, tmp_path_factory.mktemp("world"), setup) as real:
        for name, value in {"least": 1, "modest": 10, "urgent": 1000}.items():
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            with suppress(Conflict):
                await real.client.request("POST", _PATH, body={**body, "value": value})
        yield real


async def fill(world: World, node: str, *, grace_s: int) -> None:
    """Have a pod of the least priority hold all chips of a node; it takes so long to end."""
    command = ["sh", "-c", f'trap "sleep {grace_s}; exit 0" TERM; sleep 2147483647 & wait']
    manifest = world.pod_manifest("victim", 8, schedulerName="none", priorityClassName="least")
    manifest["spec"]["containers"][0]["command"] = command
    manifest["spec"]["terminationGracePeriodSeconds"] = 30
    pod = await world.client.create(PODS, manifest, "default")
    await world.bind(pod, node, *range(8), predicate_time=time.time_ns())
    await check_hand_over(world, "victim", 8)


async def test_the_schedulers_nomination_for_preemption_is_kept(world: World) -> None:
    node = world.nodes[0].name
    here = {"kubernetes.io/hostname": node}
    await fill(world, node, grace_s=3)
    await world.create("urgent", 8, priorityClassName="urgent", nodeSelector=here)

    async def nominated() -> bool:
        return (await world.pod("urgent")).status.nominated_node_name == node

    await world.eventually(nominated, "kube-scheduler nominates the node of the victim")
    assert NOMINATED not in (await world.pod("urgent")).metadata.annotations
    # A pod of lower priority does not get the chips that are freed.
    await world.create("late", 8, priorityClassName="modest", nodeSelector=here)
    assert (await check_hand_over(world, "urgent", 8)).spec.node_name == node
    assert not (await world.pod("late")).spec.node_name
    assert NOMINATED not in (await world.pod("urgent")).metadata.annotations


async def test_a_pod_that_is_only_nominated_gives_way_to_a_higher_priority(world: World, cluster: Cluster) -> None:
    node = world.nodes[0].name
    here = {"kubernetes.io/hostname": node}
    world.service.hold()
    await world.create("taken", 1, nodeSelector={"kubernetes.io/hostname": world.nodes[1].name})

    async def called() -> bool:
        return any(b'"taken"' in chunk for chunk in world.service.requests)

    await world.eventually(called, "the scheduler calls the allocator")
    await world.create("low", 8, priorityClassName="least", nodeSelector=here)

    async def nominated() -> bool:
        return (await world.pod("low")).status.nominated_node_name == node

    await world.eventually(nominated, "the pod of low priority is nominated")
    await world.create("urgent", 8, priorityClassName="urgent", nodeSelector=here)

    async def queued() -> bool:
        return cluster.control_plane.pods_in_active_queue() == 2

    # If it knew only the first, the scheduler would bind that one, and have it preempted.
    await world.eventually(queued, "the scheduler knows both pods")
    world.service.release()
    assert (await check_hand_over(world, "urgent", 8)).spec.node_name == node
    assert not (await world.pod("low")).spec.node_name

    async def cleared() -> bool:
        return not (await world.pod("low")).status.nominated_node_name

    await world.eventually(cleared, "the nomination of the other pod is cleared")
