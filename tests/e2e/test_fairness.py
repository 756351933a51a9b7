"""A pod that needs a whole server gets its turn among younger pods that would take every chip that becomes free."""

import time
from datetime import datetime
from typing import Final

from allocator.decision.earmarks import LOANS
from ascend.kube.objects import PODS
from tests.e2e.test_gang_barrier import POOL, create_gang
from tests.e2e.world import World

NODES: Final = ("q-0", "q-1", "q-2")
GATE: Final = "kueue.x-k8s.io/admission"


async def fill(world: World) -> dict[str, list[str]]:
    """Have two pods on each node; their names by node."""
    await world.add_fake_nodes(*NODES, labels=POOL)
    for number in range(2 * len(NODES)):
        await world.create(f"half-{number}", 4, nodeSelector=POOL)

    async def full() -> dict[str, list[str]] | None:
        found = {node: await on(world, node) for node in NODES}
        return found if all(len(names) == 2 for names in found.values()) else None

    return await world.eventually(full, "two pods are on each node")


async def on(world: World, node: str) -> list[str]:
    """The names of the pods on a node."""
    return [pod.name for pod in await world.pods() if pod.spec.node_name == node]


async def end(world: World, name: str) -> None:
    """End a pod on a node without a kubelet."""
    await world.client.delete(PODS, name, "default", grace_s=0)


async def refused(world: World, name: str) -> None:
    """Wait until a pod was refused, and pods that are created now are younger: the API server counts seconds."""
    await world.pending_because(name)
    created = (await world.pod(name)).metadata.creation_timestamp or ""

    async def is_past() -> bool:
        return time.time() >= datetime.fromisoformat(created).timestamp() + 1

    await world.eventually(is_past, "a second has passed")


async def placed(world: World, name: str, node: str) -> None:
    """Wait until a pod is on a node."""

    async def check() -> bool:
        return (await world.pod(name)).spec.node_name == node

    await world.eventually(check, f"pod {name} is on {node}")


async def replaced(world: World, node: str, name: str) -> None:
    """End a pod, and wait until a younger one has its chips."""
    await end(world, name)

    async def check() -> bool:
        return len(await on(world, node)) == 2

    await world.eventually(check, f"a younger pod is on {node}")


async def half_kept(world: World, node: str, first: str, last: str) -> None:
    """End one of two pods on a node whose chips are kept; it is lent first, as many times as it may be."""
    for _ in range(LOANS):
        await replaced(world, node, first)
        (first,) = {*await on(world, node)} - {last}
    await end(world, first)


async def test_a_pod_of_a_whole_server_gets_its_turn_among_small_pods_and_gangs(world: World) -> None:
    halves = await fill(world)
    await world.create("big", 8, nodeSelector=POOL)
    await refused(world, "big")
    for number in range(LOANS + 3):
        await world.create(f"late-{number}", 4, nodeSelector=POOL)
    await create_gang(world, "gang", 2, cpu=0)
    first, last = halves["q-0"]
    await half_kept(world, "q-0", first, last)
    for node in ("q-1", "q-2"):
        await replaced(world, node, halves[node][0])
    assert await on(world, "q-0") == [last]
    await end(world, last)
    await placed(world, "big", "q-0")


async def test_nothing_is_kept_for_a_gated_pod_which_comes_by_its_age_once_it_has_no_gate(world: World) -> None:
    halves = await fill(world)
    await world.create("gated", 8, nodeSelector=POOL, schedulingGates=[{"name": GATE}])
    await world.create("big", 8, nodeSelector=POOL)
    await refused(world, "big")
    for number in range(LOANS + 3):
        await world.create(f"late-{number}", 4, nodeSelector=POOL)
    first, last = halves["q-0"]
    await half_kept(world, "q-0", first, last)
    await replaced(world, "q-1", halves["q-1"][0])
    assert await on(world, "q-0") == [last]
    await end(world, last)
    await placed(world, "big", "q-0")
    await world.create("young", 8, nodeSelector=POOL)
    await refused(world, "young")
    await world.client.patch(PODS, "gated", {"spec": {"schedulingGates": []}}, namespace="default")
    await world.pending_because("gated")
    await end(world, "big")
    await placed(world, "gated", "q-0")
