"""Gangs to test with, and what happens to them."""

import msgspec
import pytest

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod

TTL_S = 120.0
GROUP = "scheduling.k8s.io/group-name"
TWO = {GROUP: "train", MIN_AVAILABLE: "2"}
MESHES = {"accelerator-type": "module-910b-8"}
"""On such servers pods of a distributed job may be smaller than a server."""


def gang(job: str, count: int, *, chips: int = 8, minimum: int | None = None, first: int = 0) -> list[Pod]:
    """Pods of one Volcano job that states its minimum itself."""
    annotations = {GROUP: job, MIN_AVAILABLE: str(minimum if minimum is not None else count)}
    return [pod(f"{job}-{number}", chips, annotations=annotations) for number in range(first, first + count)]


def world_of(nodes: int, **labels: str) -> World:
    world = World()
    world.add(*(node(f"n{number}", labels=labels) for number in range(nodes)))
    return world


def bind(world: World, each: Pod) -> Pod:
    """What the commit and the watch do."""
    held = world.engine.place(each)
    world.ledger.advance(each.uid, Stage.BINDING)
    world.ledger.advance(each.uid, Stage.ASSUMED)
    bound = pod(
        each.name, len(held.chips), node=held.node, chips=held.chips, phase="Running",
        annotations=each.metadata.annotations,
    )  # fmt: skip
    world.add(bound)
    assert world.ledger.get(each.uid) is None
    return bound


def reason(world: World, each: Pod, candidates: list[str] | None = None) -> str:
    with pytest.raises(Refusal) as refused:
        world.engine.place(each, candidates)
    return refused.value.reason


def of_pool(each: Pod, pool: str) -> Pod:
    return msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, node_selector={"pool": pool}))
