"""The report of the node: its ConfigMap and the Node's annotations, on a real API server."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from ascend.annotations import SERVER_INDEX, SERVER_TYPE, SUPER_POD_ID
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress
from ascend.chips import ChipSet, chip_set
from ascend.daemon.observable import Observable, wait_for_change
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, decode_report, encode_report
from ascend.errors import ApiError
from ascend.fabric_switches import UNREADABLE_SWITCHES, SwitchReport
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, ConfigMap, JsonObject, Node
from ascend.rate_limiters import Backoff
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.publish import device_info_configmap as board_module
from device_plugin.publish import node_object as node_module
from device_plugin.publish import order as order_module
from device_plugin.publish import reporter as report_module
from device_plugin.publish.device_info_configmap import LAST_UPDATE, SIGNATURE, DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.order import PublishingOrder
from device_plugin.publish.report import make_report
from device_plugin.publish.reporter import Reporter
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import ServedResource
from tests.device_plugin.api import NODE, RecordingClient, Request, node_manifest, running, until
from tests.device_plugin.builders import fault, judged_chip, snapshot

NAME = f"mindx-dl-deviceinfo-{NODE}"
MAPS = "/configmaps"


class Rig:
    def __init__(self, client: RecordingClient) -> None:
        self.client = client
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.switches: Observable[SwitchReport | None] = Observable(None)
        self.metrics = Metrics()
        self.order = PublishingOrder()
        self.edits: list[tuple[ChipSet, ChipSet]] = []
        self.board = DeviceInfoConfigMap(client, NODE, self._edited, lambda _slips: None)
        self.node_object = NodeWriter(client, NODE)
        self.node_object.readers.append(self)
        self.seen = ""
        self.clock: Iterator[int] = itertools.count(1_700_000_000)
        self.reporter = self.make_reporter(self.order)
        self.order.sent(0xFF)

    def on_apply(self, obj: Node) -> None:
        self.seen = obj.metadata.resource_version

    def on_delete(self, obj: Node) -> None:  # noqa: ARG002 - a handler's signature
        self.seen = ""

    def make_reporter(self, order: PublishingOrder) -> Reporter:
        self.order = order
        return Reporter(
            self.board,
            self.node_object,
            snapshots=self.snapshots,
            switches=self.switches,
            order=order,
            metrics=self.metrics,
            now_s=lambda: float(next(self.clock)),
        )

    def _edited(self, added: ChipSet, removed: ChipSet) -> None:
        self.edits.append((added, removed))
        self.snapshots.set(snapshot(1, manually_separated=added))

    async def config_map(self) -> ConfigMap:
        return await self.client.get(CONFIG_MAPS, NAME, NAMESPACE)

    async def report(self) -> DeviceReport:
        return decode_report((await self.config_map()).data)

    def devices(self, state: str) -> float:
        found = self.metrics.registry.collect()
        samples = [each for family in found if family.name == "ascend_dp_devices" for each in family.samples]
        return sum(each.value for each in samples if each.labels["state"] == state)

    def counted(self) -> dict[str, float]:
        """The number of writes by result."""
        metric = self.metrics.report_writes.collect()
        return {
            each.labels["result"]: each.value
            for family in metric
            for each in family.samples
            if each.name == "ascend_dp_report_writes_total"
        }

    async def written(self, count: int) -> None:
        """Wait until the report was sent that often, and the last time successfully."""
        await until(lambda: len(self.writes) >= count and self.client.in_flight == 0 and self.reporter.problem is None)

    @property
    def writes(self) -> list[Request]:
        return [each for each in self.client.sent if MAPS in each.path and each.method in {"POST", "PATCH"}]


@pytest.fixture
async def rig(client: RecordingClient, monkeypatch: pytest.MonkeyPatch) -> Rig:
    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.0)
    await client.create(NODES, node_manifest())
    return Rig(client)


@pytest.fixture
async def reporting(rig: Rig) -> AsyncIterator[Rig]:
    """A running reporter that has reported eight healthy chips."""
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await until(lambda: rig.reporter.problem is None)
        yield rig


async def test_nothing_is_reported_before_the_driver_was_read(rig: Rig) -> None:
    async with running(rig.reporter.run()):
        rig.order.sent(0xFE)
        for _ in range(10):
            await asyncio.sleep(0)
        assert rig.reporter.problem == "the report has not been written yet"
        rig.snapshots.set(snapshot())
        await until(lambda: rig.reporter.problem is None)
    assert [each.method for each in rig.client.sent if MAPS in each.path] == ["POST"]


async def test_the_update_time_grows_although_the_clock_is_set_back(reporting: Rig) -> None:
    times = [(await reporting.report()).update_time_s]
    reporting.clock = itertools.count(1_600_000_000)
    for chip in range(3):
        count = len(reporting.writes)
        reporting.snapshots.set(snapshot(chip))
        await reporting.written(count + 1)
        times.append((await reporting.report()).update_time_s)
    assert times == [times[0], times[0] + 1, times[0] + 2, times[0] + 3]
    reporting.clock = itertools.count(1_800_000_000)
    reporting.snapshots.set(snapshot())
    await until(lambda: len(reporting.writes) == 5 and reporting.client.in_flight == 0)
    assert (await reporting.report()).update_time_s == 1_800_000_000


@pytest.mark.parametrize("ended", [True, False], ids=["signed off", "killed"])
async def test_the_update_time_grows_over_a_restart_although_the_clock_is_set_back(rig: Rig, *, ended: bool) -> None:
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await rig.written(1)
        before = (await rig.report()).update_time_s
    if ended:
        await rig.reporter.sign_off()
        assert (await rig.report()).update_time_s == 0
    restarted = Rig(rig.client)
    restarted.clock = itertools.count(1_600_000_000)
    await restarted.board.fetch()
    async with running(restarted.reporter.run()):
        restarted.snapshots.set(snapshot())
        await restarted.written(1)
    assert (await restarted.report()).update_time_s == before + 1
    assert LAST_UPDATE not in (await restarted.config_map()).metadata.annotations


async def test_nothing_is_reported_while_another_plugin_does(reporting: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "GIVE_WAY_S", 0.01)
    gives_way = True
    looks = itertools.count()

    def look() -> bool:
        next(looks)
        return gives_way

    reporting.reporter.gives_way = look
    count = len(reporting.writes)
    reporting.snapshots.set(snapshot(3))
    await until(lambda: next(looks) > 5)
    assert len(reporting.writes) == count
    gives_way = False
    await until(lambda: len(reporting.writes) > count and reporting.client.in_flight == 0)
    assert (await reporting.report()).unhealthy == 0b1000


async def test_the_config_map_is_created_with_all_keys(reporting: Rig) -> None:
    made = await reporting.config_map()
    assert made.metadata.labels == LABELS == {"mx-consumer-cim": "true"}
    assert set(made.data) == {"DeviceInfoCfg", "ManuallySeparateNPU", "UpgradeFaultReason", "Description"}
    assert (made.data["ManuallySeparateNPU"], made.data["UpgradeFaultReason"]) == ("", "{}")
    latest = decode_report(made.data)  # raises on a wrong CheckCode
    assert (latest.free, latest.unhealthy, latest.network_unhealthy, latest.faults) == (0xFF, 0, 0, ())
    assert latest.update_time_s >= 1_700_000_000


async def test_used_chips_are_not_free_and_unhealthy_ones_have_their_faults(reporting: Rig) -> None:
    broken = judged_chip(
        healthy=False, network_healthy=True, level=FaultLevel.RESTART, faults=(fault("A2", since_ms=77),)
    )
    chips = {7: broken, 3: judged_chip(healthy=True, network_healthy=False)}
    reporting.snapshots.set(snapshot(chips=chips, used=0b0011_0011))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b1000_0000)
    latest = await reporting.report()
    assert (latest.free, latest.unhealthy, latest.network_unhealthy) == (0b0100_1100, 0b1000_0000, 0b1000)
    network, own = latest.faults
    assert (network.npu_name, network.fault_type) == ("Ascend910-3", "CardNetworkUnhealthy")
    assert (network.fault_level, network.fault_code) == ("PreSeparateNPU", "")
    assert (own.npu_name, own.fault_code, own.fault_level) == ("Ascend910-7", "A2", "RestartNPU")
    assert own.fault_time_and_level_map["A2"].fault_time == 77
    assert [reporting.devices(state) for state in ("free", "used", "unhealthy")] == [3, 4, 1]
    assert reporting.metrics.registry.get_sample_value("ascend_dp_used_unhealthy_chips") == 0
    reporting.snapshots.set(snapshot(0, 7, used=0b1111))
    await reporting.written(3)
    assert [reporting.devices(state) for state in ("free", "used", "unhealthy")] == [3, 3, 2]
    assert reporting.metrics.registry.get_sample_value("ascend_dp_used_unhealthy_chips") == 1


async def test_entries_of_others_in_the_config_map_survive(reporting: Rig, client: RecordingClient) -> None:
    others: JsonObject = {
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "data": {"theirs": "c"},
    }
    await client.patch(CONFIG_MAPS, NAME, others, namespace=NAMESPACE)
    reporting.snapshots.set(snapshot(1))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b10)
    kept = await reporting.config_map()
    assert kept.metadata.labels == {"team": "a", **LABELS}
    assert kept.metadata.annotations == {"note": "b", **SIGNATURE}
    assert kept.data["theirs"] == "c"
    assert decode_report(kept.data).unhealthy == 0b10
    assert reporting.edits == []


async def test_an_operators_edit_between_two_reports_is_applied_and_not_undone(
    reporting: Rig, client: RecordingClient
) -> None:
    await client.patch(CONFIG_MAPS, NAME, {"data": {"ManuallySeparateNPU": "Ascend910-2"}}, namespace=NAMESPACE)
    reporting.snapshots.set(snapshot(1))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b10)
    assert reporting.edits == [(0b100, 0)]
    assert (await reporting.report()).manually_separated == 0b100
    assert reporting.counted() == {"written": 2, "conflict": 1}


async def test_a_recovered_chip_is_withheld_until_the_node_shows_it(reporting: Rig) -> None:
    reporting.snapshots.set(snapshot(1))
    reporting.order.sent(0xFD)
    await until(lambda: reporting.order.reported_unhealthy.value == 0b10)
    written = len(reporting.writes)
    reporting.snapshots.set(snapshot())
    await reporting.written(written + 1)
    latest = await reporting.report()
    assert (latest.free, latest.unhealthy, latest.recovering) == (0xFD, 0, 0b10)
    reporting.order.sent(0xFF)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(reporting.writes) == written + 1
    reporting.order.shown(0xFF)
    await reporting.written(written + 2)
    latest = await reporting.report()
    assert (latest.free, latest.recovering) == (0xFF, 0)


async def test_the_last_report_says_that_it_is_no_longer_updated(reporting: Rig) -> None:
    await reporting.reporter.sign_off()
    latest = await reporting.report()
    assert (latest.free, latest.update_time_s) == (0xFF, 0)


async def test_the_last_report_does_not_undo_an_operators_edit(reporting: Rig, client: RecordingClient) -> None:
    await client.patch(CONFIG_MAPS, NAME, {"data": {"ManuallySeparateNPU": "Ascend910-2"}}, namespace=NAMESPACE)
    await reporting.reporter.sign_off()
    latest = await reporting.report()
    assert (latest.manually_separated, latest.update_time_s) == (0b100, 0)


async def test_the_last_report_is_written_after_an_interrupted_write(rig: Rig, server: ApiServer) -> None:
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await rig.written(1)
        server.delay(MAPS, 0.05)
        rig.snapshots.set(snapshot(1))
        await until(lambda: len(rig.writes) == 2)
    server.delay(MAPS, 0.0)
    await rig.client.patch(CONFIG_MAPS, NAME, {"data": {"theirs": "of the same moment"}}, namespace=NAMESPACE)
    await rig.reporter.sign_off()
    latest = await rig.report()
    assert (latest.unhealthy, latest.update_time_s) == (0b10, 0)


@pytest.mark.parametrize("seen", [True, False])
async def test_the_last_report_does_not_overwrite_that_of_another_plugin(
    reporting: Rig,
    client: RecordingClient,
    seen: bool,  # noqa: FBT001 - a parameter
) -> None:
    successor = Rig(client)
    await successor.board.fetch()
    async with running(successor.reporter.run()):
        successor.snapshots.set(snapshot(2))
        await until(lambda: successor.reporter.problem is None)
    if seen:
        reporting.board.on_apply(await reporting.config_map())
    await reporting.reporter.sign_off()
    latest = await reporting.report()
    assert (latest.unhealthy, latest.update_time_s > 0) == (0b100, True)


async def test_refused_reports_do_not_look_like_those_of_another_plugin(reporting: Rig, server: ApiServer) -> None:
    server.fail_next("PATCH", MAPS, 500, times=board_module.REMEMBERED + 1)
    for _ in range(board_module.REMEMBERED + 1):
        with pytest.raises(ApiError):
            await reporting.board.write({"DeviceInfoCfg": f"{len(reporting.writes)}", "ManuallySeparateNPU": ""})
    await reporting.reporter.sign_off()
    assert (await reporting.report()).update_time_s == 0


async def test_the_last_report_is_written_although_the_report_was_deleted(
    reporting: Rig, client: RecordingClient
) -> None:
    await client.delete(CONFIG_MAPS, NAME, NAMESPACE)
    await reporting.reporter.sign_off()
    assert (await reporting.report()).update_time_s == 0


async def test_an_api_server_that_does_not_answer_does_not_delay_the_end(reporting: Rig, server: ApiServer) -> None:
    server.delay(MAPS, 30.0)
    started_s = asyncio.get_running_loop().time()
    await reporting.reporter.sign_off()
    assert asyncio.get_running_loop().time() - started_s < 10.0


async def test_a_deleted_config_map_is_created_again_at_once(reporting: Rig, client: RecordingClient) -> None:
    gone = await reporting.config_map()
    await client.delete(CONFIG_MAPS, NAME, NAMESPACE)
    reporting.board.on_delete(gone)
    await until(lambda: len(client.to(MAPS, "POST")) == 2 and reporting.reporter.problem is None)
    assert (await reporting.config_map()).metadata.labels == LABELS


@pytest.mark.parametrize("lie", [True, False], ids=["report", "label"])
async def test_a_config_map_overwritten_by_others_is_restored_at_once(
    reporting: Rig, client: RecordingClient, *, lie: bool
) -> None:
    reporting.snapshots.set(snapshot(3))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b1000)
    async with running(reporting.board.watch().run()):
        edit: JsonObject = (
            {"data": encode_report(make_report(snapshot(), 7))} if lie else {"metadata": {"labels": None}}
        )
        count = len(reporting.writes)
        await client.patch(CONFIG_MAPS, NAME, edit, namespace=NAMESPACE)
        await reporting.written(count + 2)
        for _ in range(20):  # its own report in the watch is not taken for somebody else's
            await asyncio.sleep(0.005)
    assert (await reporting.report()).unhealthy == 0b1000
    assert (await reporting.config_map()).metadata.labels == LABELS
    assert len(reporting.writes) == count + 2


async def test_nothing_is_written_while_nothing_changes(reporting: Rig) -> None:
    seen = len(reporting.client.sent)
    for _ in range(20):
        reporting.snapshots.set(snapshot())
        await asyncio.sleep(0)
    reporting.snapshots.set(snapshot(used=0b1))
    await reporting.written(2)
    assert [each.path for each in reporting.client.sent[seen:]] == [f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"]


async def test_the_report_is_refreshed_without_changes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "REFRESH_S", 0.05)
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await rig.written(1)
        first = await rig.report()
        await rig.written(3)
        again = await rig.report()
    assert again.update_time_s > first.update_time_s
    assert again.free == first.free
    sent_s = [each.at_s for each in rig.writes]
    assert all(later - earlier >= 0.05 for earlier, later in itertools.pairwise(sent_s))


async def test_irrelevant_changes_do_not_postpone_the_refresh(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy node snapshots change often without changing the report; it must be refreshed nevertheless.
    monkeypatch.setattr(report_module, "REFRESH_S", 0.1)

    async def stir() -> None:
        while True:
            rig.snapshots.set(snapshot())
            await asyncio.sleep(0.01)

    async with running(rig.reporter.run()), running(stir()):
        rig.snapshots.set(snapshot())
        await rig.written(3)


async def test_reports_keep_a_minimum_gap_and_the_last_one_is_correct(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.1)
    async with running(rig.reporter.run()):
        for number in range(40):
            rig.snapshots.set(snapshot(number % 8))
            await asyncio.sleep(0.01)
        rig.snapshots.set(snapshot(1, 2, 3))
        await until(lambda: rig.order.reported_unhealthy.value == 0b1110)
    sent_s = [each.at_s for each in rig.writes]
    assert len(sent_s) > 2
    assert all(later - earlier >= 0.1 for earlier, later in itertools.pairwise(sent_s))
    assert (await rig.report()).unhealthy == 0b1110


@pytest.mark.parametrize("path", ["/configmaps/", "/nodes/"])
async def test_a_failing_api_server_is_a_problem_and_is_retried(reporting: Rig, server: ApiServer, path: str) -> None:
    server.fail_next("PATCH", path, 500, times=3)
    problems = []
    chips = tuple(ChipFacts(chip_id, address=ChipAddress("10.0.0.1")) for chip_id in range(8))
    reporting.snapshots.set(snapshot(*range(8), of=Inventory("Ascend910", chips)))

    def written() -> bool:
        problems.append(reporting.reporter.problem)
        return any(problems) and reporting.order.reported_unhealthy.value == 0xFF and reporting.reporter.problem is None

    await until(written)
    what = "report" if path == "/configmaps/" else "Node"
    assert any(problem is not None and problem.startswith(f"the {what} is not written: ") for problem in problems)
    assert (await reporting.report()).unhealthy == 0xFF
    assert reporting.counted().get("refused", 0) == (3 if path == "/configmaps/" else 0)


@pytest.mark.parametrize(("status", "gap_s"), [(500, 0.2), (503, 2.0)], ids=["minimum gap", "Retry-After"])
async def test_new_content_after_a_failure_waits_only_for_the_gap(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch, status: int, gap_s: float
) -> None:
    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.2)
    monkeypatch.setattr(report_module, "Backoff", lambda limit_s: Backoff(first_s=1000.0, limit_s=limit_s))
    server.fail_next("POST", "/configmaps", status, retry_after_s=2)
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot(1))
        await until(lambda: (rig.reporter.problem or "").startswith("the report is not written: "))
        rig.snapshots.set(snapshot(2))
        await until(lambda: rig.order.reported_unhealthy.value == 0b100)
    failed, written = rig.writes
    assert written.at_s - failed.at_s >= gap_s


async def test_the_report_is_soon_written_once_the_api_server_is_back(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report_module.RETRY_LIMIT_S <= 5.0
    monkeypatch.setattr(report_module, "RETRY_LIMIT_S", 0.05)
    server.fail_next("POST", "/configmaps", 500, times=20)
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot(1))
        await until(lambda: rig.order.reported_unhealthy.value == 0b10)


async def test_a_node_that_refuses_patches_delays_no_fault_in_the_config_map(reporting: Rig, server: ApiServer) -> None:
    server.fail_next("PATCH", "/nodes/", 422, times=1000)
    chips = tuple(ChipFacts(chip_id, address=ChipAddress("10.0.0.1")) for chip_id in range(8))
    reporting.snapshots.set(snapshot(3, of=Inventory("Ascend910", chips)))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b1000)
    assert (await reporting.report()).unhealthy == 0b1000
    await until(lambda: (reporting.reporter.problem or "").startswith("the Node is not written: "))


async def test_an_unanswered_patch_of_the_node_delays_no_fault(
    reporting: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node_module.PATCH_TIMEOUT_S <= report_module.RETRY_LIMIT_S
    monkeypatch.setattr(node_module, "PATCH_TIMEOUT_S", 0.2)
    silence = asyncio.Event()

    async def hang(operation: str, resource: ServedResource, _subresource: str, document: JsonObject) -> JsonObject:
        if operation == "UPDATE" and resource.plural == "nodes":
            await silence.wait()
        return document

    server.admission.append(hang)
    chips = tuple(ChipFacts(chip_id, address=ChipAddress("10.0.0.1")) for chip_id in range(8))
    for failed in (3, 4):  # the second fault while the patch of the Node is pending
        reporting.snapshots.set(snapshot(failed, of=Inventory("Ascend910", chips)))
        await until(lambda: reporting.order.reported_unhealthy.value == 1 << failed)  # noqa: B023 - used before the next iteration
    await until(lambda: (reporting.reporter.problem or "").startswith("the Node is not written: "))
    silence.set()
    await until(lambda: reporting.reporter.problem is None)


async def test_a_node_that_refuses_patches_causes_no_frequent_reports(
    rig: Rig, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report_module.NODE_RETRY_LIMIT_S > report_module.RETRY_LIMIT_S

    def backoff(limit_s: float) -> Backoff:
        return Backoff(1000.0 if limit_s == report_module.NODE_RETRY_LIMIT_S else 0.001, limit_s=limit_s)

    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.01)
    monkeypatch.setattr(report_module, "Backoff", backoff)
    server.fail_next("PATCH", "/nodes/", 422, times=1000)
    chips = tuple(ChipFacts(chip_id, address=ChipAddress("10.0.0.1")) for chip_id in range(8))

    waits: list[float | None] = []

    async def wait(sources: Sequence[Observable[Any]], versions: Sequence[int], within_s: float | None = None) -> bool:
        waits.append(within_s)
        return await wait_for_change(sources, versions, within_s)

    monkeypatch.setattr(report_module, "wait_for_change", wait)

    async def change(*unhealthy: int) -> None:
        waits.clear()
        rig.snapshots.set(snapshot(*unhealthy, of=Inventory("Ascend910", chips)))
        await until(lambda: rig.order.reported_unhealthy.value == chip_set(unhealthy))
        await until(lambda: waits and (waits[-1] or 0.0) > report_module.RETRY_LIMIT_S)

    async with running(rig.reporter.run()):
        await change(3)
        await change(3, 4)
        await change(4)
    assert (rig.reporter.problem or "").startswith("the Node is not written: ")
    assert len(rig.writes) == 3


async def test_a_report_deleted_right_after_its_write_is_written_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.2)
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await rig.written(1)
        rig.board.lost.set(None)  # the watch shows the deletion within the gap
        await rig.written(2)


async def test_with_a_fault_at_the_start_the_report_does_not_wait(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_module, "KUBELET_WAIT_S", 1000.0)
    rig.reporter = rig.make_reporter(PublishingOrder())
    rig.snapshots.set(snapshot(3))
    async with running(rig.reporter.run()):
        await until(lambda: rig.order.reported_unhealthy.value == 0b1000)
        assert (await rig.report()).free == 0  # the kubelet offers no chip yet
        rig.order.sent(0xF7)
        await rig.written(2)
        assert (await rig.report()).free == 0xF7


async def test_a_report_whose_answer_is_lost_is_written_again(reporting: Rig, server: ApiServer) -> None:
    server.lose_answer("PATCH", "/configmaps/")
    reporting.snapshots.set(snapshot(1))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b10)
    assert (await reporting.report()).unhealthy == 0b10
    assert reporting.counted()["unreachable"] == 1


async def node_annotations(client: KubeClient) -> dict[str, str]:
    return (await client.get(NODES, NODE)).metadata.annotations


async def test_the_node_has_its_chips_and_their_addresses(reporting: Rig, client: RecordingClient) -> None:
    def addressed(ip: str) -> Snapshot:
        chips = tuple(ChipFacts(chip_id, address=ChipAddress(ip, 7)) for chip_id in range(2))
        return snapshot(of=Inventory("Ascend910", chips, super_pod_id=4, server_index=5))

    await client.patch(NODES, NODE, {"metadata": {"annotations": {"of": "others"}}})
    reporting.snapshots.set(addressed("10.0.0.1"))
    await until(lambda: len(client.to("/nodes/")) == 3)
    await reporting.written(2)
    latest = await node_annotations(client)
    assert json.loads(latest.pop(BASE_DEVICE_INFOS)) == {
        "Ascend910-0": {"IP": "10.0.0.1", "SuperDeviceID": 7},
        "Ascend910-1": {"IP": "10.0.0.1", "SuperDeviceID": 7},
    }
    assert latest == {"of": "others", SUPER_POD_ID: "4", SERVER_INDEX: "5", SERVER_TYPE: ""}
    reporting.snapshots.set(addressed("10.0.0.2"))
    await until(lambda: len(client.to("/nodes/")) == 4)


async def test_the_nodes_annotations_are_restored_at_the_next_refresh(
    rig: Rig, client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_module, "REFRESH_S", 0.2)
    async with running(rig.reporter.run()):
        rig.snapshots.set(snapshot())
        await rig.written(1)
        right = await node_annotations(client)
        await client.patch(NODES, NODE, {"metadata": {"annotations": {BASE_DEVICE_INFOS: "{}", SUPER_POD_ID: None}}})
        await rig.written(len(rig.writes) + 2)  # the Node is written after the first and before the second
        assert await node_annotations(client) == right


async def test_a_fault_counts_as_reported_only_when_it_is_written(reporting: Rig, server: ApiServer) -> None:
    at_writing = []

    async def look(_operation: str, resource: ServedResource, _subresource: str, document: JsonObject) -> JsonObject:
        if resource.plural == "configmaps":
            at_writing.append((decode_report(document["data"]).unhealthy, reporting.order.reported_unhealthy.value))
        return document

    server.admission.append(look)
    server.fail_next("PATCH", "/configmaps/", 500, times=2)
    reporting.snapshots.set(snapshot(3))
    await until(lambda: reporting.order.reported_unhealthy.value == 0b1000)
    assert at_writing == [(0b1000, 0)]


async def test_the_switches_of_the_last_plugin_stay_reported_until_they_are_read(
    rig: Rig, client: RecordingClient
) -> None:
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {"SwitchInfoCfg": '{"NodeStatus":"UnHealthy"}'},
    }
    await client.create(CONFIG_MAPS, body, NAMESPACE)
    await rig.board.fetch()
    rig.snapshots.set(snapshot(1))
    async with running(rig.reporter.run()):
        await until(lambda: len(client.to(MAPS, "PATCH")) == 1)
        await until(lambda: rig.reporter.problem is None)
        assert (await rig.config_map()).data["SwitchInfoCfg"] == '{"NodeStatus":"UnHealthy"}'
        rig.switches.set(SwitchReport(node_status="Healthy"))
        await until(lambda: len(client.to(MAPS, "PATCH")) == 2)
        rig.switches.set(UNREADABLE_SWITCHES)
        await until(lambda: len(client.to(MAPS, "PATCH")) == 3)
    first, second = (each.body["data"]["SwitchInfoCfg"] for each in client.to(MAPS, "PATCH")[1:])
    assert '"NodeStatus":"Healthy"' in first
    assert '"NodeStatus":""' in second


async def test_an_immutable_config_map_is_a_problem_that_says_what_to_do(reporting: Rig) -> None:
    await reporting.client.patch(CONFIG_MAPS, NAME, {"immutable": True}, namespace=NAMESPACE)
    reporting.snapshots.set(snapshot(1))
    await until(lambda: f"delete {NAMESPACE}/{NAME}, it is made again" in (reporting.reporter.problem or ""))
    async with running(reporting.board.watch().run()):
        await reporting.client.delete(CONFIG_MAPS, NAME, NAMESPACE)
        await until(lambda: reporting.reporter.problem is None)
    assert (await reporting.report()).unhealthy == 0b10


@pytest.fixture
async def watching(reporting: Rig) -> AsyncIterator[Rig]:
    """The same, and it watches the Node."""
    async with running(reporting.node_object.watch().run()):
        yield reporting


async def restored(rig: Rig) -> None:
    """Wait until the Node has what the plugin writes, and the plugin says so."""

    async def check() -> bool:
        written = (await rig.client.get(NODES, NODE)).metadata.annotations
        return BASE_DEVICE_INFOS in written and rig.reporter.problem is None and rig.node_object.problem is None

    async with asyncio.timeout(10.0):
        while not await check():
            pass


async def test_a_node_that_is_made_again_gets_its_annotations_and_labels_at_once(watching: Rig) -> None:
    await watching.client.delete(NODES, NODE)
    await until(lambda: watching.node_object.problem == f"the Node {NODE} was deleted")
    await watching.client.create(NODES, node_manifest())
    await restored(watching)


async def test_a_node_that_is_made_again_while_the_watch_is_interrupted_gets_them_too(reporting: Rig) -> None:
    await reporting.client.delete(NODES, NODE)
    await reporting.client.create(NODES, node_manifest())
    async with running(reporting.node_object.watch().run()):
        await restored(reporting)


async def test_an_annotation_that_somebody_removes_is_written_again(watching: Rig) -> None:
    before = len(watching.client.to("/nodes/"))
    await watching.client.patch(NODES, NODE, {"metadata": {"annotations": {BASE_DEVICE_INFOS: None}}})
    await until(lambda: len(watching.client.to("/nodes/")) == before + 2)  # the test's own and the plugin's
    await restored(watching)


async def test_a_node_that_others_write_to_is_not_written_again(watching: Rig) -> None:
    before = len(watching.client.to("/nodes/"))
    changed = await watching.client.patch(NODES, NODE, {"metadata": {"labels": {"of": "others"}}})
    await until(lambda: watching.seen == changed.metadata.resource_version)
    assert watching.node_object.problem is None
    assert len(watching.client.to("/nodes/")) == before + 1  # the test's own
