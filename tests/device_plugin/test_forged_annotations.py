"""Annotations that a pod's author writes on a pod which was given its chips: they change nothing, and are put right."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import join_names
from ascend.kube.objects import PODS, Pod
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import resource_of
from device_plugin.app import Plugin
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods, read_pod
from device_plugin.metrics import Metrics
from device_plugin.pods.annotation_repairs import AnnotationRepairs
from device_plugin.reset.steps import obstacles
from tests.device_plugin.api import seen, until
from tests.device_plugin.builders import pod, snapshot
from tests.device_plugin.whole import Whole, check_hand_over, whole_node

ALL = join_names(range(8))
VNPU = resource_of("2c")

CHANGES = {
    "more chips": {ALLOCATED: ALL},
    "other chips": {ALLOCATED: "Ascend910-6,Ascend910-7"},
    "fewer chips": {ALLOCATED: "Ascend910-0"},
    "another order": {ALLOCATED: "Ascend910-1,Ascend910-0"},
    "removed": {ALLOCATED: None},
    "empty": {ALLOCATED: ""},
    "garbage": {ALLOCATED: "\x1b[2Jnonsense"},
    "huge": {ALLOCATED: "Ascend910-7," * 15_000},
    "the time": {PREDICATE_TIME: "1"},
    "everything": {ALLOCATED: ALL, REAL: ALL, KUBELET_IDS: ALL, PREDICATE_TIME: "0"},
    "the claim removed": {REAL: None, KUBELET_IDS: None, PREDICATE_TIME: None},
    "the kubelet's ids": {KUBELET_IDS: ALL},
    "AI cores": {RESOURCE_CORES: "2,3,4,5"},
    "a vNPU": {VNPU: "Ascend910-2c-100-3"},
}


def is_right(found: Pod | None, extra: Mapping[str, object]) -> bool:
    """Whether a pod with the chips 0 and 1 has all annotations that it should have, and none of the others."""
    own = join_names((0, 1))
    expected = {ALLOCATED: own, REAL: own, KUBELET_IDS: own, PREDICATE_TIME: str(CLAIMED)}
    annotations = found.metadata.annotations if found is not None else {}
    return expected.items() <= annotations.items() and not (extra.keys() - expected.keys()) & annotations.keys()


async def forge(whole: Whole, name: str, change: Mapping[str, str | None]) -> Pod:
    """Write annotations on a pod as its author can."""
    return await whole.client.patch(PODS, name, {"metadata": {"annotations": change}}, namespace="default")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_running_pods_forged_annotations_are_put_right_and_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Mapping[str, str | None]
) -> None:
    async with whole_node(folder) as whole, whole.plugin(hot_reset="dry-run") as plugin:
        await whole.bind("one", 0, 1)
        await whole.claimed("one")
        free = await seen(whole.report, lambda report: report.free == 0xFC)
        used = _uses(plugin, monkeypatch)
        forged = await forge(whole, "one", change)
        await until(lambda: _is_after(whole.find("one"), forged) and is_right(whole.find("one"), change))
        check_hand_over(whole, await whole.claimed("one"))
        assert used == {0b11}
        assert (await whole.report()).free == free.free
        (note,) = await seen(lambda: whole.notes("NPUAnnotationRepaired"), bool)
        assert all(key in note for key in change.keys() - {PREDICATE_TIME, REAL})
        assert note.isprintable()
        assert plugin.metrics.registry.get_sample_value("ascend_dp_annotation_repairs_total") == 1


def _uses(plugin: Plugin, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The sets of used chips of all judgements from now on."""
    found: set[int] = set()
    receive = plugin.snapshots.set

    def record(judged: Snapshot | None) -> None:
        assert judged is not None
        found.add(judged.used)
        receive(judged)

    record(plugin.snapshots.value)
    monkeypatch.setattr(plugin.snapshots, "set", record)
    return found


def _is_after(found: Pod | None, earlier: Pod) -> bool:
    return found is not None and int(found.metadata.resource_version) > int(earlier.metadata.resource_version)


@pytest.mark.parametrize(
    "change",
    [CHANGES["more chips"], CHANGES["other chips"], CHANGES["garbage"], {ALLOCATED: ALL, REAL: ALL}],
    ids=["more", "other", "garbage", "both"],
)
async def test_annotations_forged_while_no_plugin_runs_are_put_right(
    folder: Path, change: Mapping[str, str | None]
) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("one", 0, 1)
            await whole.claimed("one")
        forged = await forge(whole, "one", change)
        await until(lambda: _is_after(whole.find("one"), forged) or whole.find("one") == forged)
        async with whole.plugin() as plugin:
            await until(lambda: is_right(whole.find("one"), change))
            assert [each.chips for each in plugin.allocations] == [(0, 1)]
            await seen(whole.report, lambda report: report.free == 0xFC)


async def test_a_pod_of_chips_another_claims_by_a_forged_annotation_gets_them(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin():
        await whole.bind("one", 0, 1)
        await whole.claimed("one")
        await forge(whole, "one", {ALLOCATED: ALL, REAL: ALL})
        await whole.bind("next", 4, 5)
        check_hand_over(whole, await whole.claimed("next"))


def books(*pods: Pod, given: Mapping[str, tuple[int, ...]]) -> tuple[NodePods, Allocations]:
    """The node's pods, and what some of them were given."""
    allocations = Allocations()
    known = NodePods(allocations.drop)
    for each in pods:
        known.on_apply(each)
    for name, chips in given.items():
        allocations.add(Allocation(f"uid-{name}", f"default/{name}", chips, chips))
    return known, allocations


@pytest.mark.parametrize("forged", [range(8), (5,)], ids=["more", "another"])
def test_what_is_written_on_a_pod_with_a_hand_over_blocks_no_chip(forged: Sequence[int]) -> None:
    real = {REAL: join_names(forged)}
    pods, allocations = books(
        pod("given", 1, *forged, started=True, annotations=real), pod("waits", 1, 3), given={"given": (0,)}
    )
    assert DeviceLedger(pods, allocations).used == 0b1001
    assert DeviceLedger(pods, allocations).running == 0b1
    assert obstacles(snapshot(), 0b1111_0110, Ledgers(pods, allocations).held) == []
    assert obstacles(snapshot(), 0b1111, Ledgers(pods, allocations).held) == [
        "pod default/given holds Ascend910-0",
        "pod default/waits holds Ascend910-3",
    ]


@pytest.mark.parametrize("annotations", [{ALLOCATED: ALL}, {REAL: ALL}, {ALLOCATED: ALL, REAL: ALL}])
def test_a_list_of_more_chips_than_a_pod_requests_holds_none(annotations: Mapping[str, str]) -> None:
    pods, allocations = books(pod("waits", 1, annotations=annotations), given={})
    assert DeviceLedger(pods, allocations).used == 0
    claimed = {**annotations, PREDICATE_TIME: str(CLAIMED)}
    assert read_pod(pod("runs", 2, 4, 5, annotations={REAL: ALL, PREDICATE_TIME: str(CLAIMED)}), 1).held == 0b11_0000
    assert read_pod(pod("runs", 2, annotations=claimed, started=True), 1).held == 0


@pytest.mark.parametrize(
    "found",
    [pod("one", 1, *range(8), phase="Succeeded"), pod("one", 0, *range(8), started=True)],
    ids=["finished", "without chips"],
)
def test_annotations_of_pods_that_can_have_no_chips_count_for_nothing(found: Pod) -> None:
    pods, allocations = books(found, given={})
    assert DeviceLedger(pods, allocations).used == 0
    assert obstacles(snapshot(), 0xFF, Ledgers(pods, allocations).held) == []


class Repairs:
    """Repairs of one pod's annotations, without an API server."""

    def __init__(self) -> None:
        self.pods, self.allocations = books(pod("one", 1, 0, started=True), given={"one": (0,)})
        self.written: list[Mapping[str, str | None]] = []
        self.told: list[str] = []
        self.repairs = AnnotationRepairs(
            self.pods,
            self.allocations,
            self._claim,
            lambda _pod, _reason, sentence: self.told.append(sentence),
            Metrics(),
        )

    def _claim(self, _allocation: Allocation, others: Mapping[str, str | None] = {}, /) -> None:
        self.written.append(others)

    def show(self, annotations: Mapping[str, str]) -> float | None:
        """Let the watch show the pod with these annotations."""
        self.pods.on_apply(pod("one", 1, annotations=annotations, started=True))
        return self.repairs.look()


RIGHT = {ALLOCATED: "Ascend910-0", REAL: "Ascend910-0", KUBELET_IDS: "Ascend910-0", PREDICATE_TIME: str(CLAIMED)}


@pytest.mark.looptime
async def test_somebody_who_writes_again_and_again_is_answered_less_and_less_often() -> None:
    books = Repairs()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 1800
    while loop.time() < until_s:
        books.show(RIGHT)
        due_in_s = books.show({**RIGHT, ALLOCATED: ALL})
        assert due_in_s is not None
        await asyncio.sleep(1.0)
    assert 8 < len(books.written) < 50
    assert books.told[0] == (
        "the annotation huawei.com/Ascend910 does not say what the pod was given, Ascend910-0: put right, and without "
        "effect on this node"
    )
    assert len(books.told) == len(books.written)
    books.show(RIGHT)
    await asyncio.sleep(3600)
    assert books.show(RIGHT) is None
    before = len(books.written)
    books.show({**RIGHT, ALLOCATED: ALL})
    assert len(books.written) == before + 1


@pytest.mark.looptime
async def test_a_change_that_comes_too_soon_is_repaired_when_it_is_due() -> None:
    books = Repairs()
    books.show(RIGHT)
    books.show({**RIGHT, ALLOCATED: ALL})
    due_in_s = books.show({**RIGHT, ALLOCATED: "Ascend910-7"})
    assert due_in_s is not None
    assert due_in_s > 0
    await asyncio.sleep(due_in_s)
    books.repairs.look()
    assert books.written == [{ALLOCATED: "Ascend910-0"}] * 2


async def test_a_claim_that_is_not_written_yet_is_nobodys_change() -> None:
    books = Repairs()
    assert books.show({ALLOCATED: "Ascend910-0", PREDICATE_TIME: "1"}) is None
    assert books.show({ALLOCATED: "Ascend910-0", PREDICATE_TIME: "1", REAL: "Ascend910-7"}) is None
    assert books.written == []


async def test_what_a_pod_had_beside_its_chips_from_the_start_is_left() -> None:
    books = Repairs()
    assert books.show({**RIGHT, RESOURCE_CORES: "3"}) is None
    assert books.show({**RIGHT, RESOURCE_CORES: "3", VNPU: "Ascend910-2c-100-3"}) is not None
    assert books.written == [{VNPU: None}]


async def test_a_pod_of_mindclusters_plugin_that_was_swapped_keeps_both_lists() -> None:
    # The kubelet has other ids for it, so that nothing says which of the two lists was changed.
    books = Repairs()
    books.allocations.add(Allocation("uid-one", "default/one", (0,), (5,)))
    assert books.show({**RIGHT, ALLOCATED: "Ascend910-3", KUBELET_IDS: "Ascend910-5"}) is None
    assert books.written == []
