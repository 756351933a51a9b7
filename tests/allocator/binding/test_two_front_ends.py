"""A gang of kube-scheduler with the extender and one whose Bindings another scheduler posts want the same servers."""

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.binding.binding import PodRef
from ascend.errors import AscendError
from ascend.kube.objects import Pod
from tests.allocator.binding.webhook import Webhook, gang
from tests.allocator.builders import World
from tests.allocator.expiry import expire

pytestmark = pytest.mark.looptime

LIMIT_S = 120.0
NODES = 4


def show_bound(world: World, each: Pod, node: str, annotations: Mapping[str, str]) -> None:
    metadata = replace(each.metadata, annotations={**each.metadata.annotations, **annotations})
    world.add(replace(each, metadata=metadata, spec=replace(each.spec, node_name=node)))


async def tick(webhook: Webhook) -> None:
    """The clock of the allocator, and what it does once a second."""
    while True:
        for _ in range(4):
            await asyncio.sleep(0.25)
            webhook.rig.world.now_s += 0.25
        expire(webhook.rig.world.ledger)
        await webhook.rig.barrier.check()


async def by_extender(webhook: Webhook, each: Pod, begin_s: float, retry_s: float) -> None:
    """What kube-scheduler does with a pod until it is bound."""
    world = webhook.rig.world
    await asyncio.sleep(begin_s)
    while True:
        webhook.rig.barrier.on_filter(each.uid, list(world.cluster.nodes))
        world.engine.gangs.obstacles.on_request(each)
        try:
            node = world.engine.place(each).node
            bound = await webhook.rig.binder.bind(PodRef.of(each), node, is_repeated=True)
        except AscendError:
            await asyncio.sleep(retry_s)
        else:
            show_bound(world, each, node, bound.grant.annotations())
            return


async def by_webhook(webhook: Webhook, each: Pod, node: str, begin_s: float, retry_s: float) -> None:
    """What a scheduler does with a pod that has chosen a node for each pod of the gang, and posts their Bindings."""
    await asyncio.sleep(begin_s)
    while True:
        try:
            annotations = await webhook.inject(each, node)
        except AscendError:
            await asyncio.sleep(retry_s)
        else:
            show_bound(webhook.rig.world, each, node, annotations)
            return


@given(
    sizes=st.tuples(st.integers(2, NODES), st.integers(2, NODES)),
    begins_s=st.lists(st.floats(0, 3), min_size=2 * NODES, max_size=2 * NODES),
    retries_s=st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)),
)
async def test_gangs_of_two_front_ends_do_not_wait_for_each_other_for_ever(
    sizes: tuple[int, int], begins_s: list[float], retries_s: tuple[float, float]
) -> None:
    extended, injected = gang("extended", sizes[0]), gang("injected", sizes[1])
    webhook = Webhook(*extended, *injected)
    cluster, ticking = webhook.rig.world.cluster, asyncio.create_task(tick(webhook))
    starts = {
        asyncio.gather(
            *(by_extender(webhook, each, begins_s[rank], retries_s[0]) for rank, each in enumerate(extended))
        ): extended,
        asyncio.gather(
            *(
                by_webhook(webhook, each, f"n{rank + 1}", begins_s[NODES + rank], retries_s[1])
                for rank, each in enumerate(injected)
            )
        ): injected,
    }
    while starts:
        done, _ = await asyncio.wait(starts, timeout=LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        assert done, f"{[pods[0].name for pods in starts.values()]} wait"
        for start in done:
            start.result()
            for each in starts.pop(start):  # the gang ends
                cluster.pod_deleted(cluster.pods[each.uid])
    ticking.cancel()
