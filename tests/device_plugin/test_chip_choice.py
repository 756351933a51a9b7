"""Pods that no allocator has placed get chips by the rule of the server's product."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import PODS, Metadata, Node, Pod
from ascend.products import ASCEND_910A, PRODUCTS, Product
from ascend.reasons import Reason
from ascend.rules.families import RULES
from ascend.slices import ContainerRequest
from device_plugin.driver import ChipFacts, ChipType
from device_plugin.health.levels import FaultLevel
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.chip_choice import ChipChooser
from device_plugin.ledger.node_pods import NodePods, read_pod
from sandbox.cluster import pod_manifest
from tests.device_plugin.api import NODE, until
from tests.device_plugin.builders import judged_chip, pod, server, snapshot
from tests.device_plugin.test_admission_matcher import Node as Admission
from tests.device_plugin.whole import Whole, asking, containers, whole_node, written

CHIP_TYPES: dict[str, ChipType] = {"910A": "Ascend910", "910B": "Ascend910B", "A3": "Ascend910A3"}
SERVERS = [product for product in PRODUCTS.values() if product.chip]


class Choice:
    """A server of a product, with chips that are unhealthy, closed to new pods, or held."""

    def __init__(self, product: Product, unhealthy: ChipSet = 0, closed: ChipSet = 0, held: ChipSet = 0) -> None:
        facts = tuple(ChipFacts(chip_id, chip_id) for chip_id in range(product.chips))
        chips = {
            chip_id: judged_chip(
                healthy=not unhealthy >> chip_id & 1,
                level=FaultLevel.PRE_SEPARATE if closed >> chip_id & 1 else FaultLevel.NORMAL,
            )
            for chip_id in chip_ids(unhealthy | closed)
        }
        self.snapshot = snapshot(of=server(*facts, chip_type=CHIP_TYPES[product.chip]), chips=chips)
        self.allocations = Allocations()
        self.pods = NodePods(self.allocations.drop)
        if held:
            self.allocations.add(Allocation("uid-holder", "default/holder", chip_ids(held), chip_ids(held)))
        labels = {"accelerator-type": product.node_types[0]}
        self.chooser = ChipChooser(
            Node(metadata=Metadata(name="n1", labels=labels)), DeviceLedger(self.pods, self.allocations)
        )

    def choose(self, count: int, *offers: ChipSet) -> ChipSet:
        """Choose for what the kubelet can allocate, and then for what it has chosen, if it has."""
        asked = read_pod(pod("asks", count), 1)
        for wanted in offers or (self.snapshot.all_chips,):
            placed = self.chooser.place(asked, self.snapshot, chip_ids(wanted))
        assert placed.grant is not None
        assert placed.grant.chip_set == placed.held
        return placed.held


def follows_rule(product: Product, chips: ChipSet, count: int) -> bool:
    """Whether a rule could choose exactly these chips of a server."""
    placement = RULES[product.family].place(product, chips, count)
    return placement is not None and placement.taken == chips


@given(st.sampled_from(SERVERS), st.data())
def test_chosen_chips_are_free_healthy_and_linked_as_the_product_requires(
    product: Product, data: st.DataObject
) -> None:
    masks = st.integers(0, product.all_chips)
    unhealthy, closed, held, unoffered = (data.draw(masks) for _ in range(4))
    offered = product.all_chips & ~unoffered
    count = data.draw(st.integers(1, product.chips))
    free = offered & ~unhealthy & ~closed & ~held
    choice = Choice(product, unhealthy, closed, held)
    if count not in product.requests or RULES[product.family].place(product, free, count) is None:
        with pytest.raises(Refusal):
            choice.choose(count, offered)
        return
    chosen = choice.choose(count, offered)
    assert chosen.bit_count() == count
    assert not chosen & ~free
    assert follows_rule(product, chosen, count)


@given(st.sampled_from(SERVERS), st.data())
def test_the_chips_that_the_kubelet_chose_are_taken_if_the_rule_allows_them(
    product: Product, data: st.DataObject
) -> None:
    count = data.draw(st.sampled_from(product.requests))
    wanted = chip_set(data.draw(st.permutations(range(product.chips)))[:count])
    if follows_rule(product, wanted, count):
        assert Choice(product).choose(count, wanted) == wanted
        assert Choice(product).choose(count, product.all_chips, wanted) == wanted
    else:
        assert follows_rule(product, Choice(product).choose(count, product.all_chips, wanted), count)
        with pytest.raises(Refusal):
            Choice(product).choose(count, wanted)


def test_chips_written_on_a_waiting_pod_are_not_chosen() -> None:
    choice = Choice(ASCEND_910A)
    choice.pods.on_apply(pod("placed", 4, 0, 1, 2, 3, time=1))
    assert choice.choose(2, 0xFF, 0b11) & 0xF0


def test_a_chip_whose_id_the_kubelet_counts_for_another_pod_can_be_chosen() -> None:
    choice = Choice(ASCEND_910A)
    choice.allocations.add(Allocation("uid-other", "default/other", (0, 1, 2, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 7)))
    assert choice.choose(1, 0b0001) == 0b1000


async def test_chips_that_the_kubelet_counts_for_an_unknown_pod_are_not_given() -> None:
    """The pod got them from the plugin before this one, and is neither claimed nor seen admitted yet."""
    node = Admission()
    node.matcher.chooser = ChipChooser(Node(metadata=Metadata(name="n1")), DeviceLedger(node.pods, node.allocations))
    node.allocations.add(Allocation("uid-known", "default/known", (2, 4, 6, 7), (2, 4, 6, 7)))
    node.api = [pod("known", 4, 2, 4, 6, 7, started=True, phase="Running"), pod("asks", 2)]
    for each in node.api:
        node.pods.on_apply(each)
    with pytest.raises(Refusal) as refused:
        await node.admit(2, ["Ascend910-3", "Ascend910-5"])
    assert refused.value.reason is Reason.RING_TOO_SMALL
    assert "the rings have 1 + 1 free chips" in refused.value.message


@pytest.mark.parametrize(
    ("count", "held", "reason", "sentence"),
    [
        (3, 0, Reason.INVALID_REQUEST, "a pod may request 1, 2, 4, 8 chips of a 910A server, not 3"),
        (4, 0b0011_1111, Reason.NOT_ENOUGH_CHIPS, "4 chips requested, 2 free of 8 healthy"),
        (4, 0b0011_0001, Reason.RING_TOO_SMALL, "4 chips requested must be within one ring; the rings have 3 + 2 free"),
    ],
)
def test_a_refusal_names_the_rule(count: int, held: ChipSet, reason: Reason, sentence: str) -> None:
    with pytest.raises(Refusal, match=re.escape(sentence)) as refused:
        Choice(ASCEND_910A, held=held).choose(count)
    assert refused.value.reason is reason


async def bind(whole: Whole, name: str, count: int, asks: tuple[ContainerRequest, ...] = ()) -> None:
    """Bind a pod as a scheduler does that only counts devices."""
    body = pod_manifest(name, count, terminationGracePeriodSeconds=0)
    if asks:
        body["spec"] |= containers(asks)
    created = await whole.client.create(PODS, body, "default")
    await whole.client.bind(namespace="default", name=name, uid=created.uid, node=NODE, annotations={})


def check(whole: Whole, found: Pod) -> ChipSet:
    """Check that claim, kubelet and containers of a running pod have the same chips, linked by the rule."""
    chips = written(found, REAL)
    assert ALLOCATED not in found.metadata.annotations
    assert found.metadata.annotations[PREDICATE_TIME] == str(CLAIMED)
    assert written(found, KUBELET_IDS) == chips
    for ask in found.container_requests:
        assert chip_set(whole.visible(found.name, ask.container)) == whole.ledger(found.name, ask.container)
        assert not whole.ledger(found.name, ask.container) & ~chips
    assert follows_rule(ASCEND_910A, chips, chips.bit_count())
    return chips


async def test_pods_of_a_scheduler_that_only_counts_get_chips_of_one_ring(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin(choose_chips=True):
        held = 0
        for name, count in (("one", 1), ("four", 4), ("two", 2), ("another", 1)):
            await bind(whole, name, count)
            chips = check(whole, await whole.claimed(name))
            assert not chips & held
            held |= chips
        assert held == 0xFF


async def test_a_pod_that_fits_in_no_ring_is_refused_with_the_rule(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin(choose_chips=True):
        await whole.bind("placed-0", 0)
        await whole.bind("placed-4", 4)
        await whole.claimed("placed-0")
        await whole.claimed("placed-4")
        await bind(whole, "refused", 4)
        await until(lambda: (found := whole.find("refused")) is not None and found.status.phase == "Failed")
        found = whole.find("refused")
        assert found is not None
        assert "RingTooSmall: 4 chips requested must be within one ring" in found.status.message
        await bind(whole, "next", 2)
        check(whole, await whole.claimed("next"))


@pytest.mark.parametrize("asks", ["a2 a2", "i4 a4", "i2 s1 a2 a1", "i1 i4 a1"])
async def test_all_containers_of_a_pod_get_their_part_of_its_chips(folder: Path, asks: str) -> None:
    async with whole_node(folder) as whole, whole.plugin(choose_chips=True):
        await whole.bind("placed", 5)
        await whole.claimed("placed")
        await bind(whole, "several", 0, asking(asks))
        assert check(whole, await whole.claimed("several")).bit_count() == 4


async def test_a_restarted_plugin_does_not_choose_chips_that_pods_run_with(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin(choose_chips=True):
            await bind(whole, "first", 4)
            first = check(whole, await whole.claimed("first"))
        async with whole.plugin(choose_chips=True):
            await bind(whole, "second", 4)
            assert check(whole, await whole.claimed("second")) == 0xFF & ~first
