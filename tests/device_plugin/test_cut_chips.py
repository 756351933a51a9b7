"""Chips that are cut into vNPUs: what of them is offered, reported, and announced."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from ascend.annotations import REAL
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.daemon.observable import Observable
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ContainerStatus, Metadata, Node, Pod, PodSpec, PodStatus
from ascend.vnpus import resource_of
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.device_types import MAX_VDEV_ID, WHOLE_CHIPS, DeviceType
from device_plugin.driver import ChipFacts, ChipState, Inventory, VirtualNpu
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import present_moment
from device_plugin.health.offers import OfferedDevices, offered
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.publish.node_object import node_annotations
from device_plugin.publish.report import make_report
from device_plugin.publish.restore import read_known
from device_plugin.reset.steps import obstacles
from device_plugin.telemetry.collector import SEVERAL, Holder, holders
from tests.device_plugin.api import running, until
from tests.device_plugin.builders import pod, server, vnpu_pod

TWO_CORES = DeviceType("2c")
FOUR_CORES = DeviceType("4c")
SEPARATING = 0x80E18402
PRE_SEPARATING = 0x8118043C


@dataclass
class Keeping:
    """A running health monitor with two chips."""

    keeper: HealthMonitor
    snapshots: Observable[Snapshot | None]
    ledgers: Ledgers
    announced: list[tuple[str, str]] = field(default_factory=list)
    codes: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def find(self, vnpus: dict[int, str] | None = None) -> None:
        """Discover the chips, of which chip 1 has these vNPUs: templates by id. Read each."""
        self.keeper.on_discovery(chips(vnpus or {}), present_moment())
        for chip_id in (0, 1):
            self.keeper.on_reading(chip_id, ChipState(self.codes.get(chip_id, ())), present_moment())

    @property
    def snapshot(self) -> Snapshot:
        assert self.snapshots.value is not None
        return self.snapshots.value

    def offered(self, device_type: DeviceType = WHOLE_CHIPS) -> Snapshot:
        """What is offered of a type."""
        found = OfferedDevices(self.snapshots, device_type).value
        assert found is not None
        return found

    def health(self, device_type: DeviceType = WHOLE_CHIPS) -> dict[str, str]:
        """Why each device of a type is unhealthy; nothing for a healthy one."""
        return {device_type.device_name(each.chip_id): each.reason for each in self.offered(device_type).chips}

    async def until(self, health: dict[str, str], device_type: DeviceType = WHOLE_CHIPS) -> None:
        """Wait until exactly these devices of a type are offered, unhealthy for these reasons."""
        await until(lambda: self.snapshots.value is not None and self.health(device_type) == health)

    def give(self, name: str, device: str, device_type: DeviceType = TWO_CORES, kubelet_id: str = "") -> Pod:
        """Let a pod run with a vNPU, which the kubelet's ledger may have under another id."""
        runs = vnpu_pod(name, device, started=True)
        self.ledgers.on_apply(runs)
        number = device_type.parse(device)
        counted = device_type.parse(kubelet_id or device)
        self.ledgers.serve(device_type).allocations.add(Allocation(runs.uid, f"default/{name}", (number,), (counted,)))
        return runs


def chips(vnpus: dict[int, str]) -> Inventory:
    """Two chips, of which chip 1 has these vNPUs."""
    cut = tuple(VirtualNpu(vdev_id, 1, template) for vdev_id, template in vnpus.items())
    return server(ChipFacts(0, 0), ChipFacts(1, 1, vnpus=cut))


@pytest.fixture
async def keeping() -> AsyncIterator[Keeping]:
    snapshots: Observable[Snapshot | None] = Observable(None)
    allocations = Allocations()
    ledgers = Ledgers(NodePods(allocations.drop), allocations)
    announced: list[tuple[str, str]] = []
    keeper = HealthMonitor(
        HealthBook(default_rules(), hold_s=0.0),
        snapshots,
        ledgers=ledgers,
        metrics=Metrics(),
        announce=lambda reason, sentence, _warning: announced.append((reason, sentence)),
    )
    async with running(keeper.run()):
        yield Keeping(keeper, snapshots, ledgers, announced)


async def test_a_chip_cut_before_the_start_is_not_offered_until_it_is_whole(keeping: Keeping) -> None:
    keeping.find({100: "vir02", 101: "vir04"})
    await keeping.until({"Ascend910-0": ""})
    assert keeping.health(TWO_CORES) == {"Ascend910-2c-100-1": ""}
    assert keeping.health(FOUR_CORES) == {"Ascend910-4c-101-1": ""}
    assert keeping.ledgers.types.value == (TWO_CORES, FOUR_CORES)
    keeping.find()
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    assert keeping.health(TWO_CORES) == {}


async def test_a_chip_cut_later_is_unhealthy_as_a_whole_and_its_vnpus_are_served(keeping: Keeping) -> None:
    keeping.find()
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    keeping.find({100: "vir02"})
    await keeping.until({"Ascend910-0": "", "Ascend910-1": "CutIntoVirtual"})
    assert keeping.health(TWO_CORES) == {"Ascend910-2c-100-1": ""}
    report = make_report(keeping.snapshot, 1)
    assert (report.free, report.unhealthy, report.recovering, report.faults) == (0b01, 0, 0, ())
    keeping.find()
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    assert keeping.announced == [
        ("NPUCut", "Ascend910-1 is cut into Ascend910-2c-100-1"),
        ("NPUCut", "Ascend910-1 is no longer cut"),
    ]


async def test_a_vnpu_of_an_unknown_size_is_not_offered_and_takes_its_chip_out(keeping: Keeping) -> None:
    keeping.find({100: "", 101: "vir99", MAX_VDEV_ID + 1: "vir02"})
    await keeping.until({"Ascend910-0": ""})
    assert keeping.ledgers.types.value == ()
    assert node_annotations(keeping.snapshot)[BASE_DEVICE_INFOS] == '{"Ascend910-0":{"IP":"","SuperDeviceID":0}}'


async def test_a_fault_of_a_cut_chip_is_one_of_all_its_vnpus_and_is_reported_as_the_chips(keeping: Keeping) -> None:
    keeping.codes[1] = (SEPARATING,)
    keeping.find({100: "vir02", 101: "vir02"})
    await keeping.until({"Ascend910-2c-100-1": "Fault", "Ascend910-2c-101-1": "Fault"}, TWO_CORES)
    report = make_report(keeping.snapshot, 1)
    assert (report.free, report.unhealthy) == (0b01, 0b10)
    assert [fault.npu_name for fault in report.faults] == ["Ascend910-1"]
    keeping.give("runs", "Ascend910-2c-100-1")
    await until(lambda: keeping.offered(TWO_CORES).running)
    assert keeping.offered(TWO_CORES).sent_healthy == 0
    hiding = replace(keeping.snapshot, tells_faults_in_use=False)
    assert offered(hiding, TWO_CORES).sent_healthy == 1 << TWO_CORES.parse("Ascend910-2c-100-1")


async def test_a_fault_of_a_vnpu_that_the_kubelet_has_under_another_id_is_not_told_to_it(keeping: Keeping) -> None:
    keeping.codes[1] = (SEPARATING,)
    keeping.find({100: "vir02", 101: "vir02"})
    keeping.give("runs", "Ascend910-2c-100-1", kubelet_id="Ascend910-2c-102-0")
    keeping.give("own", "Ascend910-2c-101-1")
    await until(lambda: keeping.snapshots.value is not None and keeping.offered(TWO_CORES).running.bit_count() == 2)
    assert keeping.health(TWO_CORES) == {"Ascend910-2c-100-1": "Fault", "Ascend910-2c-101-1": "Fault"}
    assert keeping.offered(TWO_CORES).sent_healthy == 1 << TWO_CORES.parse("Ascend910-2c-100-1")


async def test_a_fault_that_bars_new_pods_leaves_only_the_vnpus_in_use_healthy(keeping: Keeping) -> None:
    runs = keeping.give("runs", "Ascend910-2c-100-1")
    keeping.codes[1] = (PRE_SEPARATING,)
    keeping.find({100: "vir02", 101: "vir02"})
    await keeping.until({"Ascend910-2c-100-1": "", "Ascend910-2c-101-1": "Fault"}, TWO_CORES)
    assert keeping.offered(TWO_CORES).chips[0].level is FaultLevel.PRE_SEPARATE
    report = make_report(keeping.snapshot, 1)
    assert (report.unhealthy, report.recovering) == (0, 0b10)
    keeping.ledgers.on_delete(runs)
    await keeping.until({"Ascend910-2c-100-1": "Fault", "Ascend910-2c-101-1": "Fault"}, TWO_CORES)
    assert make_report(keeping.snapshot, 1).unhealthy == 0b10


async def test_a_removed_vnpu_stays_while_a_pod_has_it_and_keeps_its_chip_cut(keeping: Keeping) -> None:
    keeping.find({100: "vir02"})
    runs = keeping.give("runs", "Ascend910-2c-100-1")
    keeping.find()
    await keeping.until({"Ascend910-2c-100-1": "Removed"}, TWO_CORES)
    assert keeping.offered(TWO_CORES).sent_healthy == keeping.offered(TWO_CORES).all_chips
    assert keeping.health()["Ascend910-1"] == "CutIntoVirtual"
    assert obstacles(keeping.snapshot, 0b10, keeping.ledgers.held) == [
        "pod default/runs holds Ascend910-1",
        "Ascend910-1 is cut into virtual chips",
    ]
    keeping.ledgers.on_delete(runs)
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    assert keeping.health(TWO_CORES) == {}


async def test_a_pod_that_holds_a_chip_as_a_whole_keeps_its_vnpus_from_others(keeping: Keeping) -> None:
    keeping.find()
    whole = pod("whole", 1, 1, time=1, started=True)
    keeping.ledgers.on_apply(whole)
    keeping.find({100: "vir02"})
    await keeping.until({"Ascend910-2c-100-1": "ChipInUse"}, TWO_CORES)
    assert keeping.offered().sent_healthy == 0b11
    keeping.ledgers.on_delete(whole)
    await keeping.until({"Ascend910-2c-100-1": ""}, TWO_CORES)
    assert keeping.offered().sent_healthy == 0b01


async def test_a_chip_cut_while_a_pod_holds_it_stays_listed_over_a_restart(keeping: Keeping) -> None:
    whole = pod("whole", 1, 1, time=1, started=True)
    keeping.ledgers.on_apply(whole)
    keeping.find({100: "vir02"})  # the first discovery since the restart
    await keeping.until({"Ascend910-0": "", "Ascend910-1": "CutIntoVirtual"})
    assert keeping.offered().sent_healthy == 0b11
    assert keeping.health(TWO_CORES) == {"Ascend910-2c-100-1": "ChipInUse"}
    keeping.ledgers.on_delete(whole)
    await keeping.until({"Ascend910-0": ""})
    assert keeping.health(TWO_CORES) == {"Ascend910-2c-100-1": ""}


@pytest.mark.parametrize(
    ("earlier", "size"),
    [("Ascend910-2c-100-1", TWO_CORES), ("Ascend910-4c-100-0", FOUR_CORES)],
    ids=["other size", "other chip"],
)
async def test_a_vnpu_whose_id_a_pod_holds_under_another_name_is_given_to_none(
    keeping: Keeping, earlier: str, size: DeviceType
) -> None:
    keeping.find()
    runs = keeping.give("runs", earlier, size)
    keeping.find({100: "vir04", 101: "vir04"})
    gone = {earlier: "Removed"}
    new = {"Ascend910-4c-100-1": "ChipInUse", "Ascend910-4c-101-1": ""}
    await keeping.until(new if size is TWO_CORES else gone | new, FOUR_CORES)
    if size is TWO_CORES:
        await keeping.until(gone, size)
    keeping.ledgers.on_delete(runs)
    await keeping.until({"Ascend910-4c-100-1": "", "Ascend910-4c-101-1": ""}, FOUR_CORES)


async def test_the_node_lists_vnpus_by_name_and_the_next_plugin_reads_them_back(keeping: Keeping) -> None:
    keeping.find({100: "vir02", 101: "vir04"})
    await keeping.until({"Ascend910-0": ""})
    text = node_annotations(keeping.snapshot)[BASE_DEVICE_INFOS]
    entry = '{"IP":"","SuperDeviceID":0}'
    assert text == f'{{"Ascend910-0":{entry},"Ascend910-2c-100-1":{entry},"Ascend910-4c-101-1":{entry}}}'
    node = Node(metadata=Metadata(name="n1", annotations={BASE_DEVICE_INFOS: text}))
    known, vnpus = read_known(node)
    assert list(known) == [0]
    assert vnpus == {1: (VirtualNpu(100, 1, "vir02"), VirtualNpu(101, 1, "vir04"))}


async def test_an_annotation_alone_takes_no_chip_out_of_use(keeping: Keeping) -> None:
    keeping.find()
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    keeping.ledgers.on_apply(vnpu_pod("waits", "Ascend910-2c-100-1"))
    assert keeping.ledgers.types.value == ()
    keeping.ledgers.on_apply(vnpu_pod("runs", "Ascend910-4c-100-1", started=True))
    types: tuple[DeviceType, ...] = keeping.ledgers.types.value
    assert types == (FOUR_CORES,)  # its kubelet's ledger says whether it has a vNPU that was removed
    await until(lambda: keeping.snapshot.vnpus.keys() == {FOUR_CORES})
    assert keeping.health() == {"Ascend910-0": "", "Ascend910-1": ""}
    assert keeping.health(FOUR_CORES) == {}
    assert make_report(keeping.snapshot, 1).free == 0b11
    keeping.give("runs", "Ascend910-4c-100-1", FOUR_CORES)
    await keeping.until({"Ascend910-4c-100-1": "Removed"}, FOUR_CORES)
    assert keeping.health()["Ascend910-1"] == "CutIntoVirtual"


async def test_requests_alone_make_no_resource_and_invented_sizes_never_do(keeping: Keeping) -> None:
    keeping.find()
    await keeping.until({"Ascend910-0": "", "Ascend910-1": ""})
    sizes = [f"{cores}c" for cores in range(1, 100)]
    names = [f"Ascend910-{size}-100-1" for size in sizes]
    containers = tuple(Container(size, Resources(limits={resource_of(size): "1"})) for size in sizes)
    runs = Pod(
        metadata=Metadata(name="runs", namespace="default", uid="uid-runs"),
        spec=PodSpec(node_name="n1", containers=containers),
        status=PodStatus(phase="Running", container_statuses=(ContainerStatus("1c"),)),
    )
    keeping.ledgers.on_apply(runs)
    assert not keeping.ledgers.vnpus
    runs.metadata.annotations[REAL] = names[1]
    keeping.ledgers.on_apply(runs)
    assert list(keeping.ledgers.vnpus) == [TWO_CORES]
    runs.metadata.annotations.update({resource_of(size): name for size, name in zip(sizes, names, strict=True)})
    keeping.ledgers.on_apply(runs)
    assert {each.suffix for each in keeping.ledgers.vnpus} == {"1c", "2c", "4c", "8c", "16c"}


async def test_a_chip_has_the_label_of_a_container_if_only_one_has_a_part_of_it(keeping: Keeping) -> None:
    keeping.find({100: "vir02", 101: "vir04"})
    await keeping.until({"Ascend910-0": ""})
    keeping.ledgers.serve(TWO_CORES).allocations.add(given("one", TWO_CORES.parse("Ascend910-2c-100-1")))
    assert holders(keeping.ledgers)[1] == Holder("default", "one", "main")
    keeping.ledgers.serve(FOUR_CORES).allocations.add(given("other", FOUR_CORES.parse("Ascend910-4c-101-1")))
    assert holders(keeping.ledgers)[1].pod_name == SEVERAL


def given(name: str, number: int) -> Allocation:
    """What a pod with one container was given."""
    part = ContainerPart("main", keeps=True, chips=(number,), kubelet_ids=(number,))
    return Allocation.of_parts(f"uid-{name}", f"default/{name}", (number,), (part,))


async def test_hand_overs_of_vnpus_are_those_of_their_chips(keeping: Keeping) -> None:
    keeping.find({100: "vir02"})
    keeping.give("runs", "Ascend910-2c-100-1")
    assert [(each.pod, each.chips, each.kubelet_ids) for each in keeping.ledgers] == [("default/runs", (1,), (1,))]
