"""Which chips are reset together, how often, what they may say meanwhile, and what is written about it."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import RESET_INFO, RESETS
from ascend.chips import ChipSet, chip_set
from ascend.errors import DriverError, Unreachable
from device_plugin.driver import NO_CARD, ChipFacts, ChipType, Inventory
from device_plugin.driver.resetting import reset_groups
from device_plugin.health.levels import FaultLevel
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.reset import users
from device_plugin.reset.reset_info import read_resets, write_resets
from device_plugin.reset.steps import ResetBudget, lasting, obstacles, wanting
from device_plugin.reset.users import Users
from tests.device_plugin.builders import fault, judged_chip, pod, server, snapshot

PARTNERS = {card: (card + 4) % 8 for card in range(8)}


def inventory(kind: ChipType, count: int, *, board: int = 0, per_card: int = 1) -> Inventory:
    chips = (ChipFacts(each, each, each // per_card, each % per_card) for each in range(count))
    return Inventory(kind, tuple(chips), board_id=board)


@pytest.mark.parametrize(
    ("server", "groups"),
    [
        (inventory("Ascend910", 8), [0x0F, 0xF0]),
        (inventory("Ascend910", 4), [0x0F]),
        (inventory("Ascend910B", 8), [0xFF]),
        (inventory("Ascend910B", 16), [0xFFFF]),
        (inventory("Ascend910B", 2, board=0x28), [0b01, 0b10]),
        (inventory("Ascend910B", 2, board=0x3C), [0b01, 0b10]),
        (inventory("Ascend910A3", 16, per_card=2), [0x0303, 0x0C0C, 0x3030, 0xC0C0]),
    ],
    ids=["910A", "910A-4", "910B", "Box16", "A300I A2", "A800I A2", "A3"],
)
def test_the_groups_of_a_server(server: Inventory, groups: Sequence[ChipSet]) -> None:
    assert [*reset_groups(server, PARTNERS)] == groups


def test_cards_of_a3_without_a_partner_are_reset_alone() -> None:
    assert reset_groups(inventory("Ascend910A3", 4, per_card=2), {0: None, 1: None}) == (0b0011, 0b1100)


def test_a_group_that_could_have_more_chips_than_are_listed_is_unknown() -> None:
    whole = inventory("Ascend910A3", 16, per_card=2)
    assert reset_groups(whole, {}) == ()
    gone = tuple(replace(chip, card_id=NO_CARD) if chip.card_id == 4 else chip for chip in whole.chips)
    assert 0x0303 not in reset_groups(replace(whole, chips=gone), PARTNERS)
    assert not any(group & 0x0003 for group in reset_groups(replace(whole, chips=gone), PARTNERS))
    assert reset_groups(replace(inventory("Ascend910B", 7), unidentified=1), {}) == ()


def test_the_levels_that_a_reset_is_for() -> None:
    levels = {number: level for number, level in enumerate(FaultLevel) if number < 8}
    chips = {number: judged_chip(level=level, faults=(fault("80A18008", level),)) for number, level in levels.items()}
    found = wanting(snapshot(chips=chips), 0xFF)
    wanted = {FaultLevel.RESTART_REQUEST, FaultLevel.RESTART_BUSINESS, FaultLevel.FREE_RESTART, FaultLevel.RESTART}
    assert {levels[chip] for chip in found} == wanted
    assert found[6] == "80A18008 (RestartNPU)"


def test_chips_with_faults_that_no_reset_ends() -> None:
    chips = {1: judged_chip(level=FaultLevel.SEPARATE), 2: judged_chip(level=FaultLevel.MANUALLY_SEPARATE)}
    assert lasting(snapshot(chips=chips)) == 0b110


def test_a_pod_holds_its_chips_from_its_binding_to_its_end() -> None:
    pods, allocations = NodePods(lambda _uid: None), Allocations()
    ledgers = Ledgers(pods, allocations)
    now = snapshot()
    assert obstacles(now, 0x0F, ledgers.held) == []
    pods.on_apply(pod("bound", 1, 2, time=1))
    assert obstacles(now, 0x0F, ledgers.held) == ["pod default/bound holds Ascend910-2"]
    assert obstacles(now, 0xF0, ledgers.held) == []
    pods.on_apply(pod("bound", 1, 2, time=1, phase="Succeeded"))
    assert obstacles(now, 0x0F, ledgers.held) == []
    allocations.add(
        Allocation.of_parts(
            "u", "default/early", (3,), (ContainerPart("main", keeps=True, chips=(3,), kubelet_ids=(3,)),)
        )
    )
    assert obstacles(now, 0x0F, ledgers.held) == ["pod default/early holds Ascend910-3"]


def test_a_chip_that_is_not_listed_can_not_be_reset() -> None:
    gone = server(*(ChipFacts(each, each, NO_CARD if each == 1 else each) for each in range(4)))
    assert obstacles(snapshot(of=gone), 0x0F, {}) == ["the driver does not list Ascend910-1"]


@given(st.lists(st.floats(0.0, 20000.0), max_size=30), st.integers(1, 4))
def test_no_more_resets_within_an_hour_than_the_limit(times: list[float], per_hour: int) -> None:
    budget, done = ResetBudget(per_hour), list[float]()
    for now_s in sorted(times):
        if budget.due_s(now_s) <= now_s:
            budget.spend(now_s)
            budget.on_failure(now_s)
            done.append(now_s)
    for first_s, next_s in zip(done, done[per_hour:], strict=False):
        assert next_s - first_s >= 3600.0
    assert all(later - earlier >= 60.0 for earlier, later in itertools.pairwise(done))


def test_the_wait_after_failures_doubles_up_to_an_hour() -> None:
    budget, waits = ResetBudget(100), []
    for _ in range(9):
        budget.on_failure(0.0)
        waits.append(budget.due_s(0.0))
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0, 3600.0]
    budget.on_success()
    assert budget.due_s(0.0) == 0.0


def test_annotations_are_those_of_the_reference_and_are_read_again() -> None:
    third = {"CardId": 1, "DeviceId": 0, "AssociatedCardId": 5, "PhyID": 2, "LogicID": 2}
    text = json.dumps({"ThirdPartyResetDevs": [third], "ManualResetDevs": None})
    earlier = read_resets({RESET_INFO: text})
    assert (earlier.manual, earlier.written) == (0, True)
    written = write_resets([ChipFacts(12, 13, 6, 1)], earlier.third_party, {4: [1795250000.4]})
    manual = {"CardId": 6, "DeviceId": 1, "AssociatedCardId": 0, "PhyID": 12, "LogicID": 13}
    assert written[RESET_INFO] == json.dumps(
        {"ThirdPartyResetDevs": [third], "ManualResetDevs": [manual]}, separators=(",", ":")
    )
    again = read_resets(written)
    assert (again.manual, again.times_s) == (chip_set((12,)), {4: (1795250000.0,)})


@pytest.mark.parametrize(
    "text", ["", "[]", '{"ManualResetDevs": [{"PhyID": "x"}]}', '{"ManualResetDevs": [{"PhyID": 999}]}']
)
def test_unreadable_annotations_are_ignored(text: str) -> None:
    assert read_resets({RESET_INFO: text, RESETS: "?"}).manual == 0
    assert read_resets({}).written is False


class Answers:
    """A driver as far as ``Users`` calls it; it has the processes of each chip, or an error."""

    def __init__(self, processes: dict[int, Any]) -> None:
        self.processes = processes

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        found = self.processes.get(chip.phy_id, ())
        if isinstance(found, DriverError):
            raise found
        return tuple(found)


def asking(processes: dict[int, Any], ledger: PodResources | None) -> Users:
    async def read() -> PodResources:
        if ledger is None:
            raise Unreachable("no kubelet")
        return ledger

    return Users(Answers(processes), read)  # type: ignore[arg-type]  # only ``users`` is called


async def found_by(asked: Users, known: Sequence[str] = ()) -> list[str] | None:
    try:
        return await asked.of([ChipFacts(each, each) for each in range(4)], known)
    finally:
        asked.close()


async def test_users_are_pods_of_the_kubelets_ledger_and_processes() -> None:
    ledger = PodResources({"default/a": {"main": (1,)}, "default/b": {"main": (6,)}, "default/c": {"main": (2,)}})
    assert await found_by(asking({3: [4711]}, ledger), ["default/c"]) == [
        "pod default/a holds Ascend910-1 by the kubelet's ledger",
        "process 4711 uses Ascend910-3",
    ]


async def test_a_name_that_two_pods_have_is_a_user_although_one_of_them_is_known() -> None:
    ledger = PodResources({"default/a": {"main": (1,)}}, {"default/a"})
    assert await found_by(asking({}, ledger), ["default/a"]) == [
        "pod default/a holds Ascend910-1 by the kubelet's ledger"
    ]


@pytest.mark.parametrize(
    ("processes", "ledger"),
    [({}, None), ({2: DriverError("it has dropped")}, PodResources())],
    ids=["kubelet", "driver"],
)
async def test_users_are_unknown_if_one_source_does_not_answer(
    processes: dict[int, Any], ledger: PodResources | None
) -> None:
    assert await found_by(asking(processes, ledger)) is None


async def test_a_call_that_hangs_makes_users_unknown_and_gets_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "DEADLINE_S", 0.05)
    asked = asking({}, PodResources())
    release, calls = asyncio.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def hang() -> None:
        calls.append(1)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result()

    with pytest.raises(DriverError, match="does not answer within"):
        await asked.call(hang)
    with pytest.raises(DriverError, match="has not returned"):
        await asked.call(hang)
    assert await found_by(asked) is None
    release.set()
    assert calls == [1]
