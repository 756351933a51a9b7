"""AI cores: what annotations say, how many the kubelet is offered, and whether a pod may have a part of a chip."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL
from ascend.cores import Cut, parse_cores
from ascend.daemon.observable import Observable
from ascend.errors import InvalidValue, Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from ascend.pod_devices import read_held
from ascend.templates import RESOURCE_CORES, Divisible, divisible
from ascend.vnpus import Vnpu
from device_plugin.device_types import CORES, WHOLE_CHIPS
from device_plugin.driver import ChipFacts, Inventory, VirtualNpu
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, Snapshot
from device_plugin.ledger.core_admission import check_cores
from device_plugin.ledger.cores import CoreLedger, core_allocation, kind_of, offered_cores
from device_plugin.ledger.node_pods import requested_types
from device_plugin.ledger.pod_annotations import Given, read_given

SMALL, LARGE = "vir05_1c_16g", "vir10_3c_32g"
found = divisible("Ascend910B", 20, 64)
assert found is not None
KIND: Divisible = found
SERVER = Inventory("Ascend910B", (ChipFacts(0, hbm_mb=65536),), ai_cores=20)


def core_pod(name: str, count: int, written: str = "", *, real: str = "", started: bool = False) -> Pod:
    annotations = {RESOURCE_CORES: written, PREDICATE_TIME: "1"} if written else {}
    if real:
        annotations |= {REAL: real, PREDICATE_TIME: str(CLAIMED)}
    resources = Resources(limits={RESOURCE_CORES: str(count)})
    return Pod(
        metadata=Metadata(name=name, namespace="default", uid=f"uid-{name}", annotations=annotations),
        spec=PodSpec(node_name="n1", containers=(Container("main", resources=resources),)),
        status=PodStatus(
            phase="Running" if started else "Pending", container_statuses=(ContainerStatus("main"),) if started else ()
        ),
    )


def chips(number: int, unhealthy: Iterable[int] = (), closed: Iterable[int] = ()) -> Snapshot:
    return Snapshot(
        SERVER,
        tuple(
            Chip(
                ChipFacts(each),
                level=FaultLevel.PRE_SEPARATE if each in closed else FaultLevel.NORMAL,
                reason="Fault" if each in unhealthy else "",
            )
            for each in range(number)
        ),
    )


def give(ledger: CoreLedger, name: str, count: int, written: str, ids: Iterable[int]) -> None:
    ledger.pods.on_apply(core_pod(name, count, written))
    pod = ledger.pods.get(f"uid-{name}")
    assert pod is not None
    assert pod.grant is not None
    numbers = tuple(ids)
    ledger.allocations.give(core_allocation(pod, numbers, pod.grant.chips, pod.template, None), numbers)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0-vir05_1c_16g", ((), Cut(0, SMALL))),
        ("15-vir10_3c_32g", ((), Cut(15, LARGE))),
        ("3", ((3,), None)),
        ("0,1", ((0, 1), None)),
    ],
)
def test_grants_are_read(text: str, found: tuple[tuple[int, ...], Cut | None]) -> None:
    assert parse_cores(text) == found


@given(st.text() | st.from_regex(r"[0-9]{1,5}(-vir[0-9_cg]*|(,[0-9]{1,5})*)", fullmatch=True))
def test_any_grant_is_read_or_invalid(text: str) -> None:
    try:
        chips, cut = parse_cores(text)
    except InvalidValue:
        return
    assert bool(chips) == (cut is None)
    assert max(chips) <= 255 if cut is None else cut.chip <= 255


@pytest.mark.parametrize("text", ["00-vir05_1c_16g", "000", "01,2", "0-vir07_1c_16g", "256", "0,0", "0,", ""])
def test_a_grant_that_the_allocator_would_refuse_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=RESOURCE_CORES):
        parse_cores(text)


@pytest.mark.parametrize("group", ["0", "7", "100000", "4294967295"])
def test_a_claim_with_any_group_of_the_driver_is_read_by_both_programs(group: str) -> None:
    name = f"Ascend910-5c.1cpu.16g-100-0_{group}"
    assert read_given(name) == Given((0,), Vnpu("5c.1cpu.16g", 0, 100), int(group))
    assert read_held({REAL: name}).cuts == (Cut(0, SMALL),)


@pytest.mark.parametrize("group", ["", "00", "01", "12345678901", "-1", "x", "1\n"])
def test_a_claim_whose_group_is_no_number_is_read_by_neither_program(group: str) -> None:
    name = f"Ascend910-5c.1cpu.16g-100-0_{group}"
    for read in (read_given, lambda text: read_held({REAL: text})):
        with pytest.raises(InvalidValue):
            read(name)


def test_claims_are_read() -> None:
    assert read_given("Ascend910-5c.1cpu.16g-100-1_3") == Given((1,), Vnpu("5c.1cpu.16g", 1, 100), 3)
    assert read_given("Ascend910-0,Ascend910-1") == Given((0, 1))
    for text in ("Ascend910-5c.1cpu.16g-100-1", "Ascend910-5c.1cpu.16g-100-1_x", "x", "Ascend910-5c-100-1_1_1"):
        with pytest.raises(InvalidValue):
            read_given(text)


def test_cores_have_names_and_a_resource() -> None:
    assert (CORES.resource, CORES.name, CORES.device_name(7)) == ("huawei.com/npu-core", "npu-core", "npu-core-7")
    assert CORES.parse("npu-core-7") == 7
    assert CORES.count(2) == "2 AI cores"
    assert CORES != WHOLE_CHIPS
    for name in ("npu-core-", "npu-core-x", "7", "Ascend910-7", "npu-core-1234567"):
        with pytest.raises(InvalidValue):
            CORES.parse(name)
    assert requested_types(core_pod("p", 5)) == {CORES}


def test_only_known_chips_can_be_cut() -> None:
    assert kind_of(SERVER) == KIND
    assert kind_of(Inventory("Ascend910", (ChipFacts(0, hbm_mb=32768),), ai_cores=32)) is None
    assert kind_of(Inventory("Ascend910B", (ChipFacts(0),), ai_cores=20)) is None


@given(st.data())
def test_as_many_cores_are_healthy_as_pods_have_or_can_get(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 4))
    ledger = CoreLedger(Observable(None))
    ids = data.draw(st.permutations(range(number * 20)))
    free = [20] * number
    taken: set[int] = set()
    for pod in range(data.draw(st.integers(0, 8))):
        chip = data.draw(st.integers(0, number - 1))
        written = data.draw(st.sampled_from([f"{chip}-{SMALL}", f"{chip}-{LARGE}", str(chip)]))
        count = {SMALL: 5, LARGE: 10}.get(written.partition("-")[2], 20)
        if count <= free[chip]:
            own, ids = ids[:count], ids[count:]
            give(ledger, f"p{pod}", count, written, own)
            free[chip] -= count
            taken |= {*own}
    unhealthy = data.draw(st.sets(st.integers(0, number - 1)))
    closed = data.draw(st.sets(st.integers(0, number - 1)))
    offered = offered_cores(chips(number, unhealthy, closed), KIND, ledger, 0)
    healthy = {each.chip_id for each in offered.chips if offered.sent_healthy >> each.chip_id & 1}
    assert taken <= healthy
    assert len(offered.chips) == number * 20
    usable = sum(cores for chip, cores in enumerate(free) if chip not in unhealthy | closed)
    assert len(healthy) == len(taken) + usable


def test_cores_of_a_vnpu_that_is_left_are_not_offered() -> None:
    ledger = CoreLedger(Observable(None))
    ledger.took(frozenset({0, 1}), {(1, 100): VirtualNpu(100, 1, LARGE)})
    offered = offered_cores(chips(2), KIND, ledger, 0)
    assert offered.sent_healthy.bit_count() == 30
    assert offered.sent_healthy & 3 == 3
    assert ledger.used == ledger.cut == 0b10
    assert offered_cores(chips(2), KIND, ledger, 0b10).sent_healthy.bit_count() == 20


def checked(written: str, count: int, ledger: CoreLedger, snapshot: Snapshot, whole: int = 0) -> str:
    ledger.pods.on_apply(core_pod("new", count, written))
    pod = ledger.pods.get("uid-new")
    assert pod is not None
    try:
        check_cores(pod, snapshot, KIND, ledger, whole)
    except Refusal as refusal:
        return str(refusal.reason)
    return ""


def test_the_ai_cpus_of_a_chip_bar_a_vnpu_as_well() -> None:
    ledger = CoreLedger(Observable(None))
    give(ledger, "a", 10, f"0-{LARGE}", range(10))
    assert checked(f"0-{LARGE}", 10, ledger, chips(1)) == ""
    give(ledger, "b", 5, f"0-{SMALL}", range(10, 15))
    assert checked(f"0-{SMALL}", 5, ledger, chips(1)) == ""
    assert checked(f"0-{LARGE}", 10, ledger, chips(1)) == "NoNPUResource"
    assert checked("0", 20, ledger, chips(1)) == "ChipHeld"


def test_a_pod_keeps_its_part_from_later_pods_until_the_kubelet_says_that_it_has_ended() -> None:
    ledger = CoreLedger(Observable(None))
    ledger.pods.on_apply(core_pod("earlier", 20, "0"))
    assert checked(f"0-{SMALL}", 5, ledger, chips(2)) == "ChipHeld"
    ledger.pods.on_delete(core_pod("earlier", 20, "0"))
    give(ledger, "held", 20, "0", range(20))
    ledger.pods.on_delete(core_pod("held", 20, "0"))
    assert checked(f"0-{SMALL}", 5, ledger, chips(2)) == "ChipHeld"
    ledger.allocations.forget("uid-held")
    assert checked(f"0-{SMALL}", 5, ledger, chips(2)) == ""
    assert checked(f"0-{SMALL}", 5, ledger, chips(2), whole=1) == "ChipHeld"
    assert checked(f"0-{SMALL}", 5, ledger, chips(2, unhealthy=(0,))) == "ChipUnhealthy"
    assert checked(f"0-{SMALL}", 5, ledger, chips(2, closed=(0,))) == "ChipUnhealthy"
