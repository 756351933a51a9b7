"""Servers other than the 910A, from the driver to the container: each is placed by its own rule."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ascend.annotations import KUBELET_IDS, REAL
from ascend.chips import RESOURCE, chip_ids
from ascend.products import ASCEND_910B_8, ASCEND_910B_16, ASCEND_A3_16, Product
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import World, annotated


@dataclass(frozen=True, slots=True)
class Scenario:
    """Pods in their order, and the sizes of the groups of linked chips they take; then one that no server takes.

    Attributes:
        product: the nodes.
        chips: by pod size, the chips it gets on an empty cluster, one after the other on the same node.
        invalid: a size the product doesn't take.
    """

    product: Product
    chips: tuple[tuple[int, ...], ...]
    invalid: int


SCENARIOS = [
    # Any chips of the full mesh.
    Scenario(ASCEND_910B_8, ((0, 1, 2), (3, 4, 5, 6, 7)), 9),
    # Ten are five pairs of chips i and i+8; three stay within one ring.
    Scenario(ASCEND_910B_16, ((0, 8, 1, 9, 2, 10, 3, 11, 4, 12), (5, 6, 7)), 11),
    # A single die breaks a card; the next one takes its other half; pods of more take whole cards.
    Scenario(ASCEND_A3_16, ((0,), (2, 3, 4, 5), (1,)), 3),
]


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.product.name)
async def scenario(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[World, Scenario]]:
    async with sandbox_world(tmp_path, request.param.product) as world:
        yield world, request.param


async def test_each_product_is_placed_by_its_own_rule(scenario: tuple[World, Scenario]) -> None:
    world, expected = scenario
    nodes = set()
    for number, chips in enumerate(expected.chips):
        name = f"pod-{number}"
        await world.create(name, len(chips))
        pod = await world.running(name)
        assert pod.metadata.annotations[RESOURCE] == ",".join(f"Ascend910-{chip}" for chip in chips)
        taken = annotated(pod, RESOURCE)
        assert annotated(pod, REAL) == annotated(pod, KUBELET_IDS) == taken
        container = await world.node(pod.spec.node_name).container(pod)
        assert container.devices == {"davinci_manager", *(f"davinci{chip}" for chip in chip_ids(taken))}
        nodes.add(pod.spec.node_name)
    assert len(nodes) == 1  # the started server is filled first
    await asyncio.gather(world.create("odd", expected.invalid), world.create("whole", expected.product.chips))
    assert annotated(await world.running("whole"), RESOURCE) == expected.product.all_chips
    assert not (await world.pod("odd")).spec.node_name
