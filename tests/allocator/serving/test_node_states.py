"""The state of nodes is read in pages, and without delaying decisions."""

import asyncio

import pytest

from allocator.serving.node_states import AT_ONCE, NodeStates
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod

GRPC_LIMIT = 4 << 20
"""The largest message that a client of gRPC accepts by default."""


def states_of(count: int) -> tuple[World, NodeStates]:
    """The states of so many nodes."""
    world = World()
    world.add(*(node(f"n{number:03}") for number in range(count)))
    return world, NodeStates(world.cluster, world.ledger)


async def test_reading_a_page_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each node takes a turn
    _, states = states_of(200)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    await states.page([], 0, "")
    counting.cancel()
    assert turns >= 199


@pytest.mark.parametrize("size", [0, 1, 7, 10, 11])
async def test_the_pages_contain_every_node_once_by_name(size: int) -> None:
    world, states = states_of(10)
    seen, token = list[str](), ""
    for _ in range(10):
        page = await states.page([], size, token)
        assert len(page.nodes) <= (size or 10)
        seen += [each.node for each in page.nodes]
        token = page.next_page_token
        if not token:
            break
    assert seen == sorted(world.cluster.nodes)
    assert not token


async def test_a_node_deleted_between_pages_hides_no_other() -> None:
    world, states = states_of(4)
    first = await states.page([], 2, "")
    world.cluster.node_deleted(node("n001"))
    assert first.next_page_token == "n001"
    assert [each.node for each in (await states.page([], 2, first.next_page_token)).nodes] == ["n002", "n003"]


async def test_named_nodes_are_paged_known_or_not() -> None:
    _, states = states_of(4)
    first = await states.page(["n003", "nowhere", "n001", "n003"], 2, "")
    assert [each.node for each in first.nodes] == ["n001", "n003"]
    (unknown,) = (await states.page(["n003", "nowhere", "n001"], 2, first.next_page_token)).nodes
    assert unknown.refusal.reason == Reason.UNKNOWN_NODE


async def test_a_page_of_full_servers_is_below_the_limit_of_grpc() -> None:
    world = World()
    for number in range(AT_ONCE + 1):
        name = f"node-{number:04}.rack-17.room-3.example"
        world.add(node(name, chips=range(16), allocatable=16, labels={"accelerator-type": "module-910b-16"}))
        for chip in range(16):
            world.add(pod(f"a-training-job-of-some-length-worker-{number}-{chip}", 1, node=name, chips=[chip]))
    states = NodeStates(world.cluster, world.ledger)
    page = await states.page([], 1_000_000, "")
    assert len(page.nodes) == AT_ONCE
    assert all(chip.holders for each in page.nodes for chip in each.chips)
    assert sum(len(each.chips) for each in page.nodes) == 16 * AT_ONCE
    assert page.ByteSize() < GRPC_LIMIT
