"""A scheduler that asks nobody: its Bindings are shown to the allocator, which puts the chips in, or refuses them."""

import json
import time

from ascend.annotations import Grant
from ascend.kube.objects import PODS
from tests.e2e.test_main_job import LEFT, REAL, check_hand_over
from tests.e2e.world import Setup, World, annotated

SETUP = Setup(by_webhook=True)


async def why_its_binding_was_denied(world: World, name: str) -> str:
    """What the pod's condition says once a Binding of it was denied."""

    async def check() -> str | None:
        pod = json.loads(await world.client.request("GET", PODS.path(namespace="default", name=name)))
        conditions = pod["status"].get("conditions") or ()
        said = [str(each.get("message")) for each in conditions if each["type"] == "PodScheduled"]
        return next((text for text in said if "denied the request" in text), None)

    return await world.eventually(check, f"the condition of pod {name} says why its Binding was denied")


async def test_every_pod_gets_its_ring_though_its_scheduler_only_counts(world: World) -> None:
    for name, chips in {"whole": 8, "half": 4, "pair": 2, "one": 1, "last": 1}.items():
        await world.create(name, chips)
        await check_hand_over(world, name, chips)
    taken = [(pod.spec.node_name, annotated(pod, REAL)) for pod in await world.pods()]
    for node in world.nodes:
        assert sum(chips for where, chips in taken if where == node.name) == 0xFF


async def test_a_binding_to_a_node_that_fits_by_number_only_is_refused_until_it_fits(world: World) -> None:
    node = world.nodes[0].name
    for name, held in (("left", (0,)), ("right", (4, 5))):
        annotations = Grant(held, time.time_ns()).annotations()
        await world.create(name, len(held), annotations=annotations, nodeName=node)
        await check_hand_over(world, name, len(held))
    # Five are free, which is enough for who counts; but three of them are in one ring, and two in the other.
    await world.create("four", 4, nodeSelector={"kubernetes.io/hostname": node})
    said = await why_its_binding_was_denied(world, "four")
    assert "RingTooSmall: 4 chips asked for must be linked by one ring; the rings have 3 + 2 free" in said
    assert not (await world.pod("four")).spec.node_name
    await world.delete("left")
    assert annotated(await check_hand_over(world, "four", 4), REAL) == LEFT
