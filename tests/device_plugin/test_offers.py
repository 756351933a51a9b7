"""What is offered of chips, whole or cut, whatever their health and use is."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.vnpus import Vnpu
from device_plugin.device_types import WHOLE_CHIPS, DeviceType, number_of
from device_plugin.driver import ChipFacts, ChipState, VirtualNpu
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.moment import Moment
from device_plugin.health.offers import offered
from device_plugin.health.snapshot import Snapshot, Vnpus
from device_plugin.publish.report import make_report
from tests.device_plugin.builders import server

CHIPS = 4
TEMPLATES = {"vir02": DeviceType("2c"), "vir04": DeviceType("4c")}
CODES = ((), (0x80E18402,), (0x8118043C,))
"""No fault, one that separates the chip, and one that bars new use."""


@dataclass(frozen=True)
class Site:
    """The chips of a node as judged, and what of them pods hold."""

    snapshot: Snapshot
    whole_running: ChipSet
    present: ChipSet
    """The chips that have vNPUs now."""

    def free(self, device_type: DeviceType) -> ChipSet:
        """The devices of a type that a new pod can get, if nothing has them."""
        found = offered(self.snapshot, device_type)
        return found.healthy & ~found.closed_to_new_pods & ~found.recovering & ~found.used


@st.composite
def sites(draw: st.DrawFn) -> Site:
    book = HealthBook(default_rules(), hold_s=0.0)
    numbers: dict[DeviceType, ChipSet] = dict.fromkeys(TEMPLATES.values(), 0)
    for at_s in range(draw(st.integers(1, 3))):
        cut = {
            chip: tuple(
                VirtualNpu(100 + 16 * chip + part, chip, template)
                for part, template in enumerate(draw(st.lists(st.sampled_from(sorted(TEMPLATES)), max_size=3)))
            )
            for chip in range(CHIPS)
        }
        book.on_discovery(server(*(ChipFacts(chip, chip, vnpus=vnpus) for chip, vnpus in cut.items())), Moment(at_s, 0))
        for vnpu in (each for vnpus in cut.values() for each in vnpus):
            device_type = TEMPLATES[vnpu.template]
            numbers[device_type] |= 1 << number_of(Vnpu(device_type.suffix, vnpu.phy_id, vnpu.vdev_id))
    for chip in range(CHIPS):
        book.on_reading(chip, ChipState(draw(st.sampled_from(CODES))), Moment(5, 0))
    used = draw(st.integers(0, (1 << CHIPS) - 1))
    running = used & draw(st.integers(0, (1 << CHIPS) - 1))
    vnpus = {}
    for device_type, known in numbers.items():
        held = chip_set(number for number in chip_ids(known) if draw(st.booleans()))
        runs = chip_set(number for number in chip_ids(held) if draw(st.booleans()))
        given_out = runs & draw(st.sampled_from((runs, 0)))
        vnpus[device_type] = Vnpus(book.vnpus.get(device_type, 0), held, runs, given_out)
    snapshot = book.judge(Moment(6, 0), used=used, running=running, vnpus=vnpus)
    return Site(snapshot, running, chip_set(chip for chip, parts in cut.items() if parts))


@given(sites())
def test_no_chip_is_given_to_new_pods_both_whole_and_in_parts(site: Site) -> None:
    whole = site.free(WHOLE_CHIPS)
    parts = 0
    for device_type in TEMPLATES.values():
        parts |= device_type.chips(site.free(device_type))
        # Nor whole while a pod runs with a part of it, nor in parts while a pod has it whole.
        assert not whole & device_type.chips(site.snapshot.vnpus[device_type].given)
    assert not whole & parts
    assert not parts & site.snapshot.held_whole
    assert not whole & site.present
    assert not make_report(site.snapshot, 1).free & (site.present | parts)


@given(sites())
def test_no_id_of_a_vnpu_is_given_to_new_pods_while_a_pod_has_it_under_another_name(site: Site) -> None:
    for device_type in TEMPLATES.values():
        free = {device_type.vnpu(number) for number in chip_ids(site.free(device_type))}
        for other, found in site.snapshot.vnpus.items():
            given_out = {other.vnpu(number) for number in chip_ids(found.given)}
            assert not {each.vdev_id for each in free} & {each.vdev_id for each in given_out}


@given(sites())
def test_new_pods_get_nothing_of_a_chip_that_the_report_keeps_from_them(site: Site) -> None:
    report = make_report(site.snapshot, 1)
    for device_type in (WHOLE_CHIPS, *TEMPLATES.values()):
        assert not device_type.chips(site.free(device_type)) & report.unhealthy


@given(sites())
def test_of_what_pods_run_with_only_known_faults_are_told_to_the_kubelet(site: Site) -> None:
    faulty = chip_set(chip.chip_id for chip in site.snapshot.chips if chip.faulty)
    silent = replace(site.snapshot, tells_faults_in_use=False)
    for device_type, found in site.snapshot.vnpus.items():
        shown = offered(site.snapshot, device_type)
        assert shown.all_chips == found.present | found.given
        broken = found.running & shown.all_chips & ~shown.sent_healthy
        assert not device_type.chips(broken) & ~faulty
        assert not offered(silent, device_type).all_chips & found.running & ~offered(silent, device_type).sent_healthy
    whole = offered(site.snapshot, WHOLE_CHIPS)
    with_parts = chip_set(
        chip
        for device_type, found in site.snapshot.vnpus.items()
        for chip in range(CHIPS)
        if device_type.chips(found.running & found.offered) >> chip & 1
    )
    assert not site.whole_running & whole.all_chips & ~with_parts & ~whole.sent_healthy & ~faulty
