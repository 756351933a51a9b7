"""A chip with a fault that only bars new use: a pod that runs with it keeps it, and no other pod gets it."""

from pathlib import Path

from ascend.annotations import CLAIMED, REAL
from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.kube.objects import PODS
from device_plugin.app import Plugin
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.driver import ChipFacts, ChipState
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import present_moment
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.publish.report import make_report
from tests.device_plugin.api import running, until
from tests.device_plugin.builders import judged_chip, pod, server, snapshot
from tests.device_plugin.node import Face
from tests.device_plugin.whole import check_hand_over, whole_node

CODE = "8118043C"  # PreSeparateNPU


def healthy(plugin: Plugin) -> ChipSet:
    snapshot = plugin.snapshots.value
    return snapshot.healthy if snapshot is not None else 0


def transitions(plugin: Plugin) -> dict[str, float]:
    """The number of changes of chips' health, by the new health."""
    samples = [each for family in plugin.metrics.transitions.collect() for each in family.samples]
    return {each.labels["to"]: each.value for each in samples if each.name.endswith("_total")}


async def test_a_chip_that_bars_new_use_is_not_given_to_a_bound_pod(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        whole.node.edit_chip(3, fault_codes=[CODE])
        await until(lambda: healthy(plugin) == 0xF7)
        judged: list[ChipSet] = []

        async def follow() -> None:
            while True:
                await plugin.snapshots.newer_than(plugin.snapshots.version)
                judged.append(healthy(plugin))

        async with running(follow()):
            await whole.bind("late", 3)
            await until(lambda: (found := whole.find("late")) is not None and found.status.phase == "Failed")
            refused = whole.find("late")
            assert refused is not None
            assert "ChipUnhealthy: Ascend910-3 is unhealthy" in refused.status.message
            await whole.client.delete(PODS, "late", "default")
            await whole.bind("next", 4)
            check_hand_over(whole, await whole.claimed("next"))
        assert set(judged) <= {0xF7}
        assert transitions(plugin) == {"unhealthy": 1}


async def test_a_pod_keeps_a_chip_that_bars_new_use_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            await whole.bind("keeps", 3)
            await whole.claimed("keeps")
            whole.node.edit_chip(3, fault_codes=[CODE])
            await until(lambda: (found := plugin.snapshots.value) is not None and found.closed_to_new_pods == 0b1000)
        # The chips are read long before the pods are known.
        whole.cluster.server.delay(r"/pods\?", 0.3)
        async with whole.plugin() as plugin:
            await until(lambda: len(list(plugin.allocations)) == 1)
            assert healthy(plugin) == 0xFF
            assert transitions(plugin) == {}
            await whole.client.delete(PODS, "keeps", "default")
            await until(lambda: healthy(plugin) == 0xF7)


async def test_a_chip_that_bars_new_use_is_not_free_when_its_pod_ends() -> None:
    allocations = Allocations()
    pods = NodePods(allocations.drop)
    judged: list[Snapshot] = []

    class Followed(Observable[Snapshot | None]):
        def set(self, value: Snapshot | None) -> None:
            assert value is not None
            judged.append(value)
            super().set(value)

    book = HealthBook(default_rules(), hold_s=0.0)
    keeper = HealthMonitor(
        book, Followed(None), ledgers=Ledgers(pods, allocations), metrics=Metrics(), announce=lambda *_: None
    )
    keeper.on_discovery(server(ChipFacts(0)), present_moment())
    keeper.on_reading(0, ChipState((int(CODE, 16),)), present_moment())
    pods.on_apply(pod("keeps", 1, 0, time=1, started=True))
    async with running(keeper.run()):
        await until(lambda: judged)
        pods.on_delete(pod("keeps", 1, 0, time=1, started=True))
        await until(lambda: len(judged) > 1)
    assert [(make_report(each, 1).free, make_report(each, 1).unhealthy) for each in judged] == [(0, 0), (0, 1)]


def test_the_chips_of_a_bound_pod_are_used_but_not_running() -> None:
    allocations = Allocations()
    pods = NodePods(allocations.drop)
    pods.on_apply(pod("bound", 1, 0, time=1))
    pods.on_apply(pod("over", 1, 1, time=1, phase="Succeeded"))
    pods.on_apply(pod("started", 1, 2, time=1, started=True))
    pods.on_apply(pod("claimed", 1, 3, time=CLAIMED, annotations={REAL: "Ascend910-3"}))
    pods.on_apply(pod("forged", 1, 4, time=1, annotations={REAL: "Ascend910-4"}))
    allocations.add(Allocation("uid-handed", "default/handed", (5,), (6,)))
    assert (
        DeviceLedger(pods, allocations).used == 0b011_1101
    )  # not chip 6, whose id another plugin's pod has at the kubelet
    assert DeviceLedger(pods, allocations).running == 0b010_1100


async def test_a_fault_that_bars_new_use_does_not_stop_a_partly_admitted_pod(folder: Path) -> None:
    face = Face(folder)
    face.pods.on_apply(pod("many", 0, 0, 1, time=1, asks={"left": 1, "right": 1}))
    await face.matcher.allocate(await face.matcher.prefer(["Ascend910-0", "Ascend910-1"], [], 1))
    face.snapshots.set(snapshot(chips={1: judged_chip(level=FaultLevel.PRE_SEPARATE)}))
    answer = await face.matcher.allocate(await face.matcher.prefer(["Ascend910-1"], [], 1))
    assert answer.part.chips == (1,)
