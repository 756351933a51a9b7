"""Pods get their chips whatever ids the kubelet counts for the pods of another device plugin."""

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_set
from ascend.vnpus import Vnpu
from device_plugin.device_types import DeviceType, number_of
from device_plugin.driver import ChipFacts
from device_plugin.health.offers import offered
from device_plugin.health.snapshot import Vnpus
from device_plugin.ledger.allocations import Allocation, Allocations
from device_plugin.ledger.chip_choice import counted_for, substitute_ids
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from tests.device_plugin.builders import judged_chip, server, snapshot

CHIPS = frozenset(range(16))


@st.composite
def foreign(draw: st.DrawFn) -> list[Allocation]:
    """Pods whose chips and ids another plugin has mapped in any way."""
    chips, ids = draw(st.permutations(sorted(CHIPS))), draw(st.permutations(sorted(CHIPS)))
    sizes = draw(st.lists(st.integers(1, 4), max_size=4))
    made, start = [], 0
    for number, size in enumerate(sizes):
        part = slice(start, start + size)
        made.append(Allocation(f"uid-{number}", f"default/{number}", tuple(chips[part]), tuple(ids[part])))
        start += size
    return made


@given(foreign(), st.data())
def test_every_free_chip_can_be_given_until_none_is_left(running: list[Allocation], data: st.DataObject) -> None:
    free = sorted(CHIPS.difference(*(each.chips for each in running)))
    waiting = data.draw(st.permutations(free))
    while waiting:
        size = data.draw(st.integers(1, len(waiting)))
        chips, waiting = tuple(waiting[:size]), waiting[size:]
        offered = CHIPS - counted_for(running)
        ids = substitute_ids(chips, offered, running)
        assert ids is not None
        assert len(set(ids)) == len(ids) == size
        assert offered.issuperset(ids)
        assert {chip for chip in chips if chip in offered} <= set(ids)
        running.append(Allocation(f"uid-{waiting}", "default/new", chips, ids))
        if data.draw(st.booleans()):
            ended = running.pop(data.draw(st.integers(0, len(running) - 1)))
            waiting = [*waiting, *ended.chips]
            if ended.chips == chips:
                break


@given(foreign(), st.data())
def test_ids_of_free_chips_are_left_to_the_pods_that_will_get_them(
    running: list[Allocation], data: st.DataObject
) -> None:
    free = sorted(CHIPS.difference(*(each.chips for each in running)))
    chips = tuple(data.draw(st.lists(st.sampled_from(free), unique=True))) if free else ()
    ids = substitute_ids(chips, CHIPS - counted_for(running), running)
    assert ids is not None
    assert not set(ids).intersection(set(free).difference(chips))


def test_an_id_withheld_for_another_reason_has_no_stand_in() -> None:
    other = Allocation("uid-other", "default/other", (0, 1), (2, 3))
    assert substitute_ids((2, 4), {0, 1, 5, 6, 7}, [other]) is None


@given(foreign(), st.frozensets(st.integers(0, 15)))
def test_the_kubelet_shows_no_fault_in_the_status_of_a_pod_that_has_not_the_chip(
    running: list[Allocation], faulty: frozenset[int]
) -> None:
    ledger = Ledgers(NodePods(lambda _uid: None), Allocations()).whole
    for each in running:
        ledger.allocations.add(each)
    broken = faulty & {chip for each in running for chip in each.chips}
    chips = {chip: judged_chip(healthy=chip not in broken) for chip in CHIPS}
    shown = replace(
        snapshot(chips=chips, of=server(*map(ChipFacts, sorted(CHIPS))), running=ledger.given),
        under_other_ids=ledger.under_other_ids,
    )
    unhealthy = {chip for chip in CHIPS if not shown.sent_healthy >> chip & 1}
    for each in running:
        assert unhealthy.intersection(each.kubelet_ids) == broken.intersection(each.chips, each.kubelet_ids)


@given(foreign(), st.frozensets(st.integers(0, 15)))
def test_the_kubelet_shows_no_fault_in_the_status_of_a_pod_that_has_not_the_vnpu(
    running: list[Allocation], faulty: frozenset[int]
) -> None:
    """Each chip is one vNPU here."""
    device_type = DeviceType("2c")

    def vnpus(chips: Iterable[int]) -> tuple[int, ...]:
        return tuple(number_of(Vnpu(device_type.suffix, chip, 100 + chip)) for chip in chips)

    ledger = Ledgers(NodePods(lambda _uid: None), Allocations()).serve(device_type)
    for each in running:
        ledger.allocations.add(replace(each, chips=vnpus(each.chips), kubelet_ids=vnpus(each.kubelet_ids)))
    broken = faulty & {chip for each in running for chip in each.chips}
    judged = snapshot(*broken, of=server(*map(ChipFacts, sorted(CHIPS))))
    found = Vnpus(chip_set(vnpus(CHIPS)), ledger.used, ledger.running, ledger.given, 0, ledger.under_other_ids)
    shown = offered(replace(judged, vnpus={device_type: found}), device_type)
    unhealthy = {chip for chip in CHIPS if not shown.sent_healthy >> vnpus([chip])[0] & 1}
    for each in running:
        assert unhealthy.intersection(each.kubelet_ids) == broken.intersection(each.chips, each.kubelet_ids)
