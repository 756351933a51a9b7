"""A scheduler without an extender: the allocator's webhook adds the chips to its Bindings, or denies them."""

import json
import time

from ascend.annotations import Grant
from ascend.kube.objects import PODS
from tests.e2e.test_main_job import LEFT, REAL, check_hand_over
from tests.e2e.world import Setup, World, annotated

SETUP = Setup(by_webhook=True)


async def denial_message(world: World, name: str) -> str:
    """Wait until a Binding of the pod was denied; return the message of its condition."""

    async def check() -> str | None:
        pod = json.loads(await world.client.request("GET", PODS.path(namespace="default", name=name)))
        conditions = pod["status"].get("conditions") or ()
        messages = [str(each.get("message")) for each in conditions if each["type"] == "PodScheduled"]
        return next((text for text in messages if "denied the request" in text), None)

    return await world.eventually(check, f"the condition of pod {name} says that its Binding was denied")


async def test_pods_get_chips_of_one_ring_though_the_scheduler_only_counts(world: World) -> None:
    for name, chips in {"whole": 8, "half": 4, "pair": 2, "one": 1, "last": 1}.items():
        await world.create(name, chips)
        await check_hand_over(world, name, chips)
    taken = [(pod.spec.node_name, annotated(pod, REAL)) for pod in await world.pods()]
    for node in world.nodes:
        assert sum(chips for where, chips in taken if where == node.name) == 0xFF


async def test_a_binding_that_fits_by_count_only_is_denied_until_it_fits(world: World) -> None:
    node = world.nodes[0].name
    for name, held in (("left", (0,)), ("right", (4, 5))):
        annotations = Grant(held, time.time_ns()).annotations()
        await world.create(name, len(held), annotations=annotations, nodeName=node)
        await check_hand_over(world, name, len(held))
    # Five chips are free, enough for a scheduler that only counts; but three are in one ring and two in the other.
    await world.create("four", 4, nodeSelector={"kubernetes.io/hostname": node})
    message = await denial_message(world, "four")
    assert "RingTooSmall: 4 chips requested must be within one ring; the rings have 3 + 2 free chips" in message
    assert not (await world.pod("four")).spec.node_name
    await world.delete("left")
    assert annotated(await check_hand_over(world, "four", 4), REAL) == LEFT
