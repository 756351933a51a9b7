"""Products other than the 910A, from the driver to the container: the pods of each are placed by its own rule.

On the real cluster the driver reads the chips from a fake DCMI library; in the sandbox the driver is simulated.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from ascend.annotations import KUBELET_IDS, REAL
from ascend.chips import RESOURCE, chip_set
from ascend.products import ASCEND_910B_8, ASCEND_910B_16, ASCEND_A3_16, Product
from ascend.rules.identity import SERVER_TYPE as SERVER_TYPE_LABEL
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from tests.dcmi.compiler import require_compiler
from tests.dcmi.fake import FakeChip, ascend_910b, ascend_a3
from tests.e2e.real import real_world
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import Setup, World, annotated


@dataclass(frozen=True, slots=True)
class Scenario:
    """A partly used server beside an empty one of the same product, and pods to place on them.

    Attributes:
        product: the product of both servers.
        server_type: their label.
        driver: their chips, as the DCMI library reports them.
        held: chips of the first server that another pod holds.
        refused: requests for which the first server has enough free chips, and why they do not fit.
        placed: for each pod the index of its server, and its chips in the order of the rule.
    """

    product: Product
    server_type: str
    driver: Callable[[], list[FakeChip]]
    held: tuple[int, ...]
    refused: dict[int, str]
    placed: tuple[tuple[int, tuple[int, ...]], ...]


SCENARIOS = [
    # In the full mesh any chips fit. The partly used server is filled first, which keeps the other one free for eight.
    # A scheduler that only counts takes the emptier server; and no 910A ring has these four chips.
    Scenario(
        ASCEND_910B_8,
        "Ascend910B-20",
        lambda: ascend_910b(8),
        held=(1, 3, 6),
        refused={},
        placed=((0, (0, 2, 4, 5)), (1, tuple(range(8))), (0, (7,))),
    ),
    # Ten chips are free, five in each ring; of the pairs i and i+8 only 6 and 7 are free. The pod with five chips fits
    # exactly in one ring of the first server, and in no ring of the second.
    Scenario(
        ASCEND_910B_16,
        "Ascend910B-20",
        lambda: ascend_910b(16),
        held=(0, 1, 2, 11, 12, 13),
        refused={
            6: "6 chips requested must be within one ring",
            10: "10 chips requested must be 5 pairs of chips i and i+8; 2 pairs are free",
            9: "14, 16 chips of a 910B-16 server, not 9",
        },
        placed=((1, (0, 8, 1, 9, 2, 10, 3, 11, 4, 12)), (0, (3, 4, 5, 6, 7)), (1, (5, 6, 7))),
    ),
    # Ten dies are free, but only two cards have both. A pod with a single die gets one of a partly used card.
    Scenario(
        ASCEND_A3_16,
        "Ascend910A3-24",
        ascend_a3,
        held=(1, 2, 5, 7, 8, 10),
        refused={
            6: "6 chips requested must be 3 whole cards; 2 whole cards are free",
            3: "14, 16 chips of an A3-16 server, not 3",
        },
        placed=((1, (0, 1, 2, 3, 4, 5)), (0, (0,)), (0, (12, 13, 14, 15)), (1, tuple(range(6, 16)))),
    ),
]


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
def where(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(
    loop_scope="module",
    params=[*(pytest.param(scenario, marks=pytest.mark.long) for scenario in SCENARIOS[:-1]), SCENARIOS[-1]],
    ids=lambda scenario: scenario.product.name,
)
async def scenario(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> AsyncIterator[tuple[World, Scenario]]:
    each: Scenario = request.param
    setup = Setup(each.product)
    if where == "sandbox":
        async with sandbox_world(tmp_path, setup) as world:
            yield world, each
    else:
        require_compiler()
        async with real_world(request.getfixturevalue("cluster"), tmp_path, setup, driver=each.driver) as world:
            yield world, each


async def check_servers(world: World, expected: Scenario) -> None:
    """Check that labels, reports and the allocator have the right product."""
    known = {node.name: (expected.product.name, expected.product.chips) for node in world.nodes}
    async with grpc.aio.insecure_channel(world.grpc_address) as channel:

        async def is_known() -> bool:
            state = await AllocatorStub(channel).GetState(pb.GetStateRequest())
            return {node.node: (node.product, len(node.chips)) for node in state.nodes} == known

        # The chips are allocatable once the plugin has registered; its report may reach the allocator later.
        await world.eventually(is_known, f"the allocator knows {known}")
    for node in world.nodes:

        async def labelled(name: str = node.name) -> bool | None:
            return (await world.node_object(name)).metadata.labels.get(
                SERVER_TYPE_LABEL
            ) == expected.server_type or None

        # The plugin writes the Node after the report.
        await world.eventually(labelled, f"the label of node {node.name} is {expected.server_type}")
        assert (await world.report(node.name)).free == expected.product.all_chips


async def check_container(world: World, name: str, chips: tuple[int, ...]) -> str:
    """Check that a pod has these chips in this order, in its annotations and in its container; return its node."""
    pod = await world.running(name)
    assert pod.metadata.annotations[RESOURCE] == ",".join(f"Ascend910-{chip}" for chip in chips)
    assert annotated(pod, REAL) == annotated(pod, KUBELET_IDS) == chip_set(chips)
    container = await world.node(pod.spec.node_name).container(pod)
    assert container.devices == {"davinci_manager", *(f"davinci{chip}" for chip in chips)}
    assert container.env["ASCEND_VISIBLE_DEVICES"] == ",".join(map(str, chips))
    return pod.spec.node_name


@pytest.mark.shows("sandbox", "910B-8", "910B-16", "A3-16")
@pytest.mark.shows("kubelet", "910B-8", "910B-16", "A3-16")
async def test_each_product_is_placed_by_its_own_rule(scenario: tuple[World, Scenario]) -> None:
    world, expected = scenario
    await check_servers(world, expected)
    first = world.nodes[0].name
    holder = await world.create("holder", len(expected.held), schedulerName="none")
    await world.bind(holder, first, *expected.held, predicate_time=time.time_ns())
    await check_container(world, "holder", expected.held)
    here = {"kubernetes.io/hostname": first}
    for size, why in expected.refused.items():
        pod = await world.create(f"no-{size}", size, nodeSelector=here)
        assert why in await world.pending_because(pod.name)
        await world.delete(pod.name)  # chips would be kept for it
    for number, (index, chips) in enumerate(expected.placed):
        await world.create(f"pod-{number}", len(chips))
        assert await check_container(world, f"pod-{number}", chips) == world.nodes[index].name
