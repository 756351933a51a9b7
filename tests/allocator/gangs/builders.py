"""Gangs for tests, and what binder and watch do with them."""

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod, selecting

TTL_S = 120.0
TWO = {GROUP: "train", MIN_AVAILABLE: "2"}
MESHES = {"accelerator-type": "module-910b-8"}
"""The labels of servers on which the pods of a distributed job may be smaller than a server."""


def gang(job: str, count: int, *, chips: int = 8, minimum: int | None = None, first: int = 0) -> list[Pod]:
    """Pods of one Volcano job that states its minimum itself."""
    annotations = {GROUP: job, MIN_AVAILABLE: str(minimum if minimum is not None else count)}
    return [pod(f"{job}-{number}", chips, annotations=annotations) for number in range(first, first + count)]


def world_of(nodes: int, **labels: str) -> World:
    """910A servers ``n0``, ``n1``, … with these labels."""
    world = World()
    world.add(*(node(f"n{number}", labels=labels) for number in range(nodes)))
    return world


def bind(world: World, each: Pod) -> Pod:
    """Place a pod, bind it and show it bound; return the bound pod."""
    held = world.engine.place(each)
    world.ledger.advance(each.uid, Stage.BINDING)
    world.ledger.advance(each.uid, Stage.ASSUMED)
    bound = pod(
        each.name, len(held.take.chips), node=held.node, chips=held.take.chips, phase="Running",
        annotations=each.metadata.annotations,
    )  # fmt: skip
    world.add(bound)
    assert world.ledger.get(each.uid) is None
    return bound


def reason(world: World, each: Pod, candidates: list[str] | None = None) -> Reason:
    """The reason for which a pod is refused."""
    return world.refusal(each, candidates).reason


def of_pool(each: Pod, pool: str) -> Pod:
    """The pod with the node selector ``pool``."""
    return selecting(each, {"pool": pool})
