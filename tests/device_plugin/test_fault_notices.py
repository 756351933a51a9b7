"""Pods are told of the faults of their chips, by Events."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_set
from ascend.daemon.observable import Observable
from ascend.kube.objects import EVENTS, Pod
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, FaultRecord, Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.pods.notices import FAULT, FaultNotices
from tests.device_plugin.api import until
from tests.device_plugin.builders import fault, judged_chip, pod, snapshot
from tests.device_plugin.whole import Whole, whole_node

MEMORY = "80E01801"
SEPARATE = "80E18402"
ROWS = "64 rows of its memory have had uncorrectable errors, the most that can be isolated"
LINK = "81078603"


class Site:
    """Pods with chips, and what they were told."""

    def __init__(self) -> None:
        self.snapshots: Observable[Snapshot | None] = Observable(snapshot())
        self.allocations = Allocations()
        self.pods = NodePods(self.allocations.drop)
        self.said: list[tuple[str, str]] = []
        self.notices = FaultNotices(self.snapshots, self.pods, self.allocations, self._announce)

    def _announce(self, about: NodePod, reason: str, sentence: str) -> None:
        assert reason == FAULT
        self.said.append((about.name, sentence))

    def run(self, name: str, *chips: int, **state: Any) -> Pod:
        """Let a pod run with chips."""
        made = pod(name, len(chips), *chips, time=1, **{"started": True, "phase": "Running", **state})
        self.pods.on_apply(made)
        self.allocations.add(
            Allocation.of_parts(
                made.uid, f"default/{name}", chips, (ContainerPart("main", keeps=True, chips=chips, kubelet_ids=chips),)
            )
        )
        return made

    def judge(self, **chips: Chip) -> list[tuple[str, str]]:
        """Judge chips anew, and return what was said about it: ``chip_3`` is chip 3; the others have no fault."""
        numbered = {int(name.removeprefix("chip_")): chip for name, chip in chips.items()}
        running = chip_set(chip for each in self.allocations for chip in each.chips)
        self.snapshots.set(snapshot(chips=numbered, running=running))
        self.said.clear()
        self.notices.look()
        return [*self.said]


def faulty(*faults: FaultRecord, network: Sequence[FaultRecord] = ()) -> Chip:
    """A chip with these faults, the most serious first."""
    level = faults[0].level if faults else FaultLevel.NORMAL
    return judged_chip(
        healthy=not level.bars_use,
        level=level,
        faults=faults,
        network_healthy=not network,
        network_faults=tuple(network),
    )


def test_a_pod_is_told_of_the_fault_of_its_chip_and_what_to_do() -> None:
    site = Site()
    site.run("train", 2, 3)
    site.run("other", 4)
    ((name, sentence),) = site.judge(chip_3=faulty(fault(SEPARATE, FaultLevel.SEPARATE)))
    assert name == "train"
    assert sentence == (
        f"Ascend910-3 has the fault 80E18402 (SeparateNPU, {ROWS}): delete the pod, so that the one that replaces it "
        "gets other chips; the chip has to be repaired or replaced"
    )


@pytest.mark.parametrize(
    ("code", "level", "says"),
    [
        (
            MEMORY,
            FaultLevel.RESTART_BUSINESS,
            "(RestartBusiness, uncorrectable error of its memory): if its work fails, delete",
        ),
        (
            SEPARATE,
            FaultLevel.RESTART,
            f"(RestartNPU, {ROWS}): if its work fails, delete the pod, so that the one that replaces it gets",
        ),
        (SEPARATE, FaultLevel.PRE_SEPARATE, f"(PreSeparateNPU, {ROWS}): the pod can go on; no other pod gets"),
        (
            SEPARATE,
            FaultLevel.MANUALLY_SEPARATE,
            "it is used again once an operator removes it from ManuallySeparateNPU",
        ),
    ],
)
def test_the_advice_follows_the_level_of_the_fault(code: str, level: FaultLevel, says: str) -> None:
    site = Site()
    site.run("train", 3)
    ((_, sentence),) = site.judge(chip_3=faulty(fault(code, level)))
    assert sentence.startswith(f"Ascend910-3 has the fault {code}")
    assert says in sentence


def test_a_pod_is_told_of_the_fault_of_a_network_port() -> None:
    site = Site()
    site.run("train", 3)
    ((_, sentence),) = site.judge(chip_3=faulty(network=[fault(LINK, FaultLevel.PRE_SEPARATE)]))
    assert sentence.startswith("the network port of Ascend910-3 has the fault 81078603 (PreSeparateNPU, no link): ")
    assert "jobs of several pods" in sentence


def test_one_fault_of_several_chips_is_one_event_of_each_pod() -> None:
    site = Site()
    site.run("train", 0, 1)
    site.run("serve", 2)
    bad = faulty(fault(SEPARATE))
    said = site.judge(chip_0=bad, chip_1=bad, chip_2=bad)
    assert [(name, sentence.partition(" have ")[0].partition(" has ")[0]) for name, sentence in said] == [
        ("train", "Ascend910-0,Ascend910-1"),
        ("serve", "Ascend910-2"),
    ]


def test_a_fault_is_said_once_for_each_pod_that_it_hits() -> None:
    site = Site()
    train = site.run("train", 3)
    bad = faulty(fault(SEPARATE))
    assert len(site.judge(chip_3=bad)) == 1
    assert site.judge(chip_3=bad) == []
    assert site.judge() == []
    assert site.judge(chip_3=bad) == []
    assert len(site.judge(chip_3=faulty(fault(SEPARATE), fault(MEMORY, FaultLevel.RESTART)))) == 1
    site.pods.on_delete(train)
    assert site.judge(chip_3=bad) == []
    site.run("again", 3, uid="another")
    assert [name for name, _ in site.judge(chip_3=bad)] == ["again"]


@pytest.mark.parametrize(
    "chip",
    [
        judged_chip(healthy=False),
        faulty(fault(SEPARATE, FaultLevel.NOT_HANDLE)),
        faulty(fault(SEPARATE, FaultLevel.SUB_HEALTH)),
        faulty(network=[fault(LINK, FaultLevel.NOT_HANDLE)]),
    ],
    ids=["unhealthy without a fault", "harmless", "sub-healthy", "harmless network"],
)
def test_nothing_is_said_without_a_fault_that_bars_the_chip(chip: Chip) -> None:
    site = Site()
    site.run("train", 3)
    assert site.judge(chip_3=chip) == []


def test_only_pods_that_run_with_the_chip_are_told() -> None:
    site = Site()
    site.pods.on_apply(pod("bound", 1, 3, time=1))
    ended = site.run("ended", 3)
    site.pods.on_apply(pod("ended", 1, 3, time=1, phase="Failed"))
    assert ended.uid not in site.allocations
    assert site.judge(chip_3=faulty(fault(SEPARATE))) == []


@given(
    st.lists(st.dictionaries(st.integers(0, 7), st.sets(st.sampled_from(list(FaultLevel)), max_size=2)), max_size=6),
    st.sets(st.integers(0, 7)),
)
def test_each_fault_that_bars_a_used_chip_is_said_exactly_once(
    judgements: list[dict[int, set[FaultLevel]]], unknown: set[int]
) -> None:
    site = Site()
    holders = {"a": (0, 1), "b": (2,), "c": (3, 4, 5)}
    for name, chips in holders.items():
        site.run(name, *chips)
    codes = {level: f"80E1840{level:X}" for level in FaultLevel}
    expected, told = set[tuple[str, int, str]](), list[tuple[str, int, str]]()
    for judged in judgements:
        shown = {}
        for chip, levels in judged.items():
            shown[f"chip_{chip}"] = faulty(*(fault(codes[level], level) for level in sorted(levels, reverse=True)))
            expected |= {
                (name, chip, codes[level])
                for name, held in holders.items()
                for level in levels
                if chip in held and level.bars_new_use
            }
        for chip in unknown - judged.keys():
            shown[f"chip_{chip}"] = judged_chip(healthy=False)
        for name, sentence in site.judge(**shown):
            named, _, rest = sentence.partition(" has the fault ")
            if not rest:
                named, _, rest = sentence.partition(" have the fault ")
            told += [(name, int(each.removeprefix("Ascend910-")), rest[:8]) for each in named.split(",")]
    assert sorted(told) == sorted(expected)


async def events(whole: Whole) -> list[dict[str, Any]]:
    """The Events about faults on pods."""
    found = json.loads(await whole.client.request("GET", EVENTS.path()))["items"]
    return [each for each in found if each["reason"] == FAULT]


async def test_a_pod_has_one_event_of_the_fault_of_its_chip_also_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            bound = await whole.bind("train", 4, 5)
            await whole.claimed("train")
            whole.node.edit_chip(5, fault_codes=[SEPARATE])
            await until(lambda: plugin.snapshots.value is not None and plugin.snapshots.value.unhealthy == 1 << 5)
            while not (found := await events(whole)):
                pass
        async with whole.plugin(0xDF) as again:
            await until(lambda: bound.uid in again.allocations)
            # A fault that the plugin tells of after the first one: what came before it is posted.
            whole.node.edit_chip(4, fault_codes=[MEMORY])
            while len(after := await events(whole)) < 2:
                pass
    (event,) = found
    assert (event["regarding"]["uid"], event["metadata"]["namespace"], event["type"]) == (
        bound.uid,
        "default",
        "Warning",
    )
    assert event["note"].startswith(f"Ascend910-5 has the fault 80E18402 (SeparateNPU, {ROWS}): delete the pod")
    assert sorted(each["note"].partition(" ")[0] for each in after) == ["Ascend910-4", "Ascend910-5"]


async def test_a_pod_is_not_told_that_its_chip_is_silent(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin(stale_s=1.5, scan_period_s=0.1) as plugin:
        await whole.bind("train", 4, 5)
        await whole.claimed("train")
        whole.node.edit_chip(5, delay_s=5.0)
        await until(lambda: plugin.snapshots.value is not None and plugin.snapshots.value.unhealthy == 1 << 5)
        whole.node.edit_chip(4, fault_codes=[SEPARATE])
        while not (found := await events(whole)):
            pass
    assert [each["note"].partition(" ")[0] for each in found] == ["Ascend910-4"]
