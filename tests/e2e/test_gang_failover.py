"""The leader dies while it binds a gang: the other allocator continues the gang, and no other pod gets its chips."""

from ascend.annotations import PLACEMENT_GATE, RANK
from tests.e2e.test_gangs import FAKES, FOUR, check_four
from tests.e2e.world import Setup, World

SETUP = Setup(allocators=2)


async def test_a_gang_is_completed_after_its_leader_dies(world: World) -> None:
    await world.add_fake_nodes(*FAKES)
    names = [f"train-{number}" for number in range(4)]
    async with world.api.gate("POST", "/pods/train-1/binding", after=True) as made:
        # The last two have the gate of the allocator: they are there, but the leader binds only the first two.
        for name in names[:2]:
            await world.create(name, 8, annotations=FOUR)
        for name in names[2:]:
            await world.create(name, 8, annotations=FOUR, schedulingGates=[{"name": PLACEMENT_GATE}])
        await made.reached.wait()  # the Binding is stored, and its response is lost
        await world.kill_leader()
    await world.eventually(world.allocator_ready, "another allocator leads")
    before = {pod.name: pod for pod in [await world.pod(name) for name in names[:2]]}
    assert before["train-1"].spec.node_name
    await world.create("thief", 1)
    await world.pending_because("thief")
    for name in names[2:]:
        await world.open_gate(name)
    after = await check_four(world)
    for name, pod in before.items():
        if pod.spec.node_name:
            assert (after[name].spec.node_name, after[name].metadata.annotations[RANK]) == (
                pod.spec.node_name,
                pod.metadata.annotations[RANK],
            )
    assert not (await world.pod("thief")).spec.node_name
