"""A small cluster of A3 servers in SuperPods, and jobs with blocks."""

from collections.abc import Iterable

from msgspec.structs import replace

from allocator.rules.asked import SuperPodLimits
from allocator.state.reservation import Stage
from ascend.annotations import BLOCK, MIN_AVAILABLE, RANK, SERVER_INDEX, SUPER_POD_ID
from ascend.kube.objects import Node, Pod
from tests.allocator.builders import GROUP, TYPE, World, node, pod

SELECTOR = {TYPE: "module-a3-16-super-pod"}
CHIPS = 16


def server(super_pod: int, index: int, **options: object) -> Node:
    """The A3 server ``<super pod>-<index>``."""
    made = node(f"{super_pod}-{index}", chips=range(CHIPS), allocatable=CHIPS, labels=SELECTOR, **options)  # type: ignore[arg-type]
    ids = {SUPER_POD_ID: str(super_pod), SERVER_INDEX: str(index)}
    return replace(made, metadata=replace(made.metadata, annotations=made.metadata.annotations | ids))


def super_pods(*sizes: int, limits: SuperPodLimits | None = None, earmark_share: float = 0.0) -> World:
    """SuperPods with the ids 0, 1, … and so many free servers each."""
    limits = limits if limits is not None else SuperPodLimits(10, 2)
    world = World(super_pods=limits, earmark_share=earmark_share)
    world.add(*(server(number, index) for number, size in enumerate(sizes) for index in range(size)))
    return world


def job(
    pods: int,
    block: int | None = 2,
    *,
    name: str = "train",
    minimum: int | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ranks: Iterable[int] | None = None,
) -> list[Pod]:
    """The pods of a job whose blocks have ``block`` nodes."""
    own = {GROUP: name, MIN_AVAILABLE: str(minimum if minimum is not None else pods)} | (annotations or {})
    if block is not None:
        own["sp-block"] = str(block * CHIPS)
    return [
        pod(f"{name}-{rank}", CHIPS, labels=labels, annotations=own | {RANK: str(rank)}, selector=SELECTOR)
        for rank in (range(pods) if ranks is None else ranks)
    ]  # fmt: skip


def placed(world: World, pods: Iterable[Pod]) -> list[str]:
    """The nodes of pods, each placed as its scheduler asks for it."""
    return [world.engine.place(each).node for each in pods]


def super_pod_of(name: str) -> int:
    return int(name.partition("-")[0])


def bind(world: World, each: Pod) -> Pod:
    """Place a pod, and show it bound and running."""
    held = world.engine.place(each)
    world.ledger.advance(each.uid, Stage.ASSUMED)
    assert held.part is not None
    annotations = each.metadata.annotations | {BLOCK: str(held.part.block)}
    bound = pod(
        each.name, CHIPS, node=held.node, chips=held.take.chips, phase="Running",
        labels=each.metadata.labels, annotations=annotations, selector=SELECTOR,
    )  # fmt: skip
    bound = replace(bound, metadata=replace(bound.metadata, owner_references=each.metadata.owner_references))
    world.add(bound)
    return bound
