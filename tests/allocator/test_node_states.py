"""The state of nodes is read without holding up those who ask for decisions."""

import asyncio

from allocator.serving.node_states import NodeStates
from tests.allocator.builders import World, node


async def test_others_have_their_turn_while_the_state_of_all_nodes_is_read() -> None:
    world = World()
    world.add(*(node(f"n{number:03}") for number in range(200)))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    states = await NodeStates(world.cluster, world.ledger).read_all(sorted(world.cluster.nodes))
    counting.cancel()
    assert [state.node for state in states] == sorted(world.cluster.nodes)
    assert turns >= 2
