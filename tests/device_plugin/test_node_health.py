"""The Node's conditions about its chips, and its taint, on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import NODES, Metadata, Node
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import DOUBTS, RESETTING, Chip, Snapshot
from device_plugin.publish import node_health as module
from device_plugin.publish.node_conditions import CHIPS, LONGEST_MESSAGE, PORTS, TAINT, TaintRule, node_conditions
from device_plugin.publish.node_health import NodeHealthWriter
from device_plugin.publish.node_object import NodeWriter
from sandbox.apiserver import ApiServer
from tests.device_plugin.api import NODE, RecordingClient, node_manifest, running, seen, until
from tests.device_plugin.builders import fault, judged_chip, server, snapshot
from tests.device_plugin.whole import whole_node

SEPARATED = judged_chip(healthy=False, level=FaultLevel.SEPARATE, faults=(fault("80E18402"),))
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"}
CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}


def doubtful(reason: str, level: FaultLevel = FaultLevel.NORMAL) -> Chip:
    chip = judged_chip(healthy=False, level=level)
    return Chip(chip.facts, level, reason=reason, sentence="it is not read", in_doubt=True)


def test_a_fault_is_a_condition_with_its_level_as_reason() -> None:
    chips, ports = node_conditions(snapshot(chips={2: SEPARATED, 5: doubtful("DriverSilent")}))
    assert (chips.type, chips.status, chips.reason) == (CHIPS, "True", "SeparateNPU")
    assert chips.message == "Ascend910-2: 80E18402 (SeparateNPU); Ascend910-5: it is not read"
    assert (ports.type, ports.status, ports.reason) == (PORTS, "False", "NoFault")


def test_a_chip_without_a_known_fault_gives_its_own_reason() -> None:
    (chips, _) = node_conditions(snapshot(chips={5: doubtful("DriverSilent", FaultLevel.SUB_HEALTH)}))
    assert (chips.status, chips.reason) == ("True", "DriverSilent")


def test_a_fault_that_bars_only_new_pods_is_told_while_a_pod_runs_with_the_chip() -> None:
    kept = judged_chip(level=FaultLevel.PRE_SEPARATE, faults=(fault("A0", FaultLevel.PRE_SEPARATE),))
    (chips, _) = node_conditions(snapshot(chips={1: kept}, used=0b10, running=0b10))
    assert (chips.status, chips.reason, chips.message) == ("True", "PreSeparateNPU", "Ascend910-1: A0 (PreSeparateNPU)")


def test_chips_that_are_withheld_for_a_reset_of_others_are_no_problem() -> None:
    withheld = Chip(judged_chip().facts, reason=RESETTING, sentence="withheld")
    assert {each.status for each in node_conditions(snapshot(chips={1: withheld}))} == {"False"}


def test_a_network_port_is_a_condition_of_its_own() -> None:
    port = fault("81078603", FaultLevel.PRE_SEPARATE)
    broken = judged_chip(network_healthy=False, network_level=FaultLevel.PRE_SEPARATE, network_faults=(port,))
    chips, ports = node_conditions(snapshot(chips={3: broken}))
    assert chips.status == "False"
    assert (ports.status, ports.reason, ports.message) == (
        "True",
        "PreSeparateNPU",
        "Ascend910-3: 81078603 (PreSeparateNPU)",
    )


def test_the_message_of_a_whole_server_is_bounded() -> None:
    many = judged_chip(healthy=False, level=FaultLevel.SEPARATE, faults=tuple(fault(f"{code:X}") for code in range(99)))
    (chips, _) = node_conditions(snapshot(chips=dict.fromkeys(range(8), many)))
    assert len(chips.message) == LONGEST_MESSAGE


LEVELS = st.sampled_from(FaultLevel)


@given(
    st.lists(st.tuples(LEVELS, st.booleans()), max_size=8),
    LEVELS,
    st.sampled_from([None, "SeparateNPU"]),
    st.sampled_from([0, 0xFF]) | st.integers(0, 0xFF),
)
def test_a_node_is_tainted_exactly_while_a_fault_of_the_level_lasts_or_may_last(
    chips: list[tuple[FaultLevel, bool]], lowest: FaultLevel, present: str | None, being_reset: ChipSet
) -> None:
    judged = {
        index: doubtful(min(DOUBTS), level) if in_doubt else judged_chip(level=level)
        for index, (level, in_doubt) in enumerate(chips)
    }
    shown = snapshot(chips=judged, of=server()).withholding(being_reset, {})
    taint = TaintRule(lowest, "NoSchedule").taint(shown, present)
    worst = max((level for level, _ in chips), default=FaultLevel.NORMAL)
    if worst >= lowest:
        assert taint is not None
        assert taint.value == worst.wire
    else:
        stays = present is not None and any(in_doubt for _, in_doubt in chips)
        assert (taint.value if taint is not None else None) == (present if stays else None)


def test_a_taint_stays_while_the_chip_that_had_the_fault_is_held_back_and_reset() -> None:
    held_back = snapshot(chips={2: doubtful("Recovering")}).withholding(0b1111, {})
    taint = TaintRule(FaultLevel.SEPARATE, "NoSchedule").taint(held_back, "SeparateNPU")
    assert taint is not None
    assert taint.value == "SeparateNPU"


class ShownNode:
    """The Node as the API server has it."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client

    async def node(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(await self.client.request("GET", NODES.path(name=NODE)))
        return answer

    async def condition(self, kind: str = CHIPS) -> dict[str, str]:
        found = (await self.node()).get("status", {}).get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    async def shows(self, status: str, reason: str) -> dict[str, str]:
        """Wait for the condition of the chips; return it."""
        return await seen(self.condition, lambda found: (found.get("status"), found.get("reason")) == (status, reason))

    async def taints(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = (await self.node()).get("spec", {}).get("taints", [])
        return found

    async def tainted(self, value: str | None) -> list[dict[str, str]]:
        """Wait for the taint; return all taints of the Node."""
        wanted = [value] if value is not None else []
        return await seen(
            self.taints, lambda found: [each["value"] for each in found if each["key"] == TAINT] == wanted
        )


class Rig(ShownNode):
    def __init__(self, client: RecordingClient, rule: TaintRule | None) -> None:
        super().__init__(client)
        self.recorded = client
        self.snapshots: Observable[Snapshot | None] = Observable(snapshot())
        self.clock = datetime(2026, 1, 1, tzinfo=UTC)
        self.other: str | None = None
        self.health = NodeHealthWriter(client, NODE, snapshots=self.snapshots, rule=rule, now=lambda: self.clock)
        self.writer = NodeWriter(client, NODE)
        self.writer.readers.append(self.health)


@pytest.fixture(autouse=True)
def _writes_follow_each_other_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_GAP_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.01)


@pytest.fixture
async def rig(client: RecordingClient) -> AsyncIterator[Rig]:
    """A running writer, on a node with a condition and a taint of others."""
    await client.create(NODES, {**node_manifest(), "spec": {"taints": [CORDONED]}})
    status = {"status": {"conditions": [READY]}}
    await client.patch(NODES, NODE, status, subresource="status", content_type=STRATEGIC_MERGE_PATCH)
    rig = Rig(client, TaintRule(FaultLevel.SEPARATE, "NoExecute"))
    async with running(rig.writer.watch().run()), running(rig.health.run(lambda: rig.other)):
        await rig.shows("False", "NoFault")
        yield rig


async def test_a_fault_and_its_end_reach_condition_and_taint_and_nothing_else(rig: Rig) -> None:
    rig.clock = datetime(2026, 1, 1, 1, tzinfo=UTC)
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    taints = await rig.tainted("SeparateNPU")
    assert taints == [CORDONED, {"key": TAINT, "value": "SeparateNPU", "effect": "NoExecute"}]
    found = await rig.shows("True", "SeparateNPU")
    assert found["lastTransitionTime"] == "2026-01-01T01:00:00Z"
    assert await rig.condition("Ready") == READY
    rig.clock = datetime(2026, 1, 1, 2, tzinfo=UTC)
    rig.snapshots.set(snapshot())
    assert await rig.tainted(None) == [CORDONED]
    assert (await rig.shows("False", "NoFault"))["lastTransitionTime"] == "2026-01-01T02:00:00Z"


async def test_another_reason_is_no_transition(rig: Rig) -> None:
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    before = await rig.shows("True", "SeparateNPU")
    rig.clock = datetime(2026, 1, 1, 1, tzinfo=UTC)
    rig.snapshots.set(snapshot(chips={2: doubtful("DriverSilent")}))
    after = await rig.shows("True", "DriverSilent")
    assert after["lastTransitionTime"] == before["lastTransitionTime"]
    assert after["lastHeartbeatTime"] == "2026-01-01T01:00:00Z"
    await rig.tainted("SeparateNPU")


async def test_nothing_is_written_while_nothing_changes(rig: Rig) -> None:
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    await rig.tainted("SeparateNPU")
    await rig.shows("True", "SeparateNPU")
    before = len(rig.recorded.to("/nodes/"))
    rig.snapshots.set(snapshot(chips={2: SEPARATED}, used=1))
    await rig.client.patch(NODES, NODE, {"metadata": {"labels": {"of": "others"}}})
    await until(lambda: rig.health._seen.value is not None and "of" in rig.health._seen.value.metadata.labels)
    await asyncio.sleep(0)
    assert len(rig.recorded.to("/nodes/")) == before + 1  # the test's own


async def test_heartbeats_tell_that_the_conditions_are_kept(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_S", 0.0)
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    first = await rig.shows("True", "SeparateNPU")
    rig.clock = datetime(2026, 1, 2, tzinfo=UTC)
    found = await seen(rig.condition, lambda now: now["lastHeartbeatTime"] == "2026-01-02T00:00:00Z")
    assert found["lastTransitionTime"] == first["lastTransitionTime"]


async def test_what_somebody_removes_is_written_again(rig: Rig) -> None:
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    await rig.tainted("SeparateNPU")
    await rig.client.patch(NODES, NODE, {"spec": {"taints": None}})
    await rig.tainted("SeparateNPU")
    await rig.client.delete(NODES, NODE)
    await rig.client.create(NODES, node_manifest())
    await rig.tainted("SeparateNPU")
    await rig.shows("True", "SeparateNPU")


async def test_while_another_plugin_serves_the_node_nothing_is_said_of_its_chips(rig: Rig) -> None:
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    await rig.tainted("SeparateNPU")
    rig.other = "another plugin serves"
    assert (await rig.shows("Unknown", "OtherPlugin"))["message"] == "another plugin serves"
    await rig.tainted(None)
    rig.other = None
    await rig.tainted("SeparateNPU")


@pytest.mark.parametrize("path", ["/status$", f"/nodes/{NODE}$"])
async def test_a_right_that_is_missing_withholds_not_the_other_half(rig: Rig, server: ApiServer, path: str) -> None:
    server.fail_next("PATCH", path, 403, times=1000)
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    if path == "/status$":
        await rig.tainted("SeparateNPU")
    else:
        await rig.shows("True", "SeparateNPU")


async def test_without_the_right_to_watch_the_node_condition_and_taint_are_written(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.cluster.server.fail_next("GET", r"/nodes\?", 403, times=1000)
        shown = ShownNode(whole.client)
        whole.node.edit_chip(3, fault_codes=["80E18402"])
        async with whole.plugin(0xF7, taint_from="SeparateNPU"):
            await shown.tainted("SeparateNPU")
            whole.node.edit_chip(3, fault_codes=[])
            await shown.tainted(None)
            await shown.shows("False", "NoFault")


async def test_a_taint_that_an_earlier_plugin_left_is_removed_if_none_is_wanted(client: RecordingClient) -> None:
    left = {"key": TAINT, "value": "SeparateNPU", "effect": "NoSchedule"}
    await client.create(NODES, {**node_manifest(), "spec": {"taints": [left, CORDONED]}})
    rig = Rig(client, None)
    rig.snapshots.set(snapshot(chips={2: SEPARATED}))
    async with running(rig.writer.watch().run()), running(rig.health.run(lambda: None)):
        assert await rig.tainted(None) == [CORDONED]
        await rig.shows("True", "SeparateNPU")


async def test_the_end_of_the_plugin_leaves_no_taint_and_no_health_that_nobody_watches(folder: Path) -> None:
    async with whole_node(folder) as whole:
        shown = ShownNode(whole.client)
        whole.node.edit_chip(3, fault_codes=["80E18402"])
        async with whole.plugin(0xF7, taint_from="SeparateNPU"):
            await shown.tainted("SeparateNPU")
            await shown.shows("True", "SeparateNPU")
        assert await shown.tainted(None) == []
        assert (await shown.condition())["status"] == "Unknown"
        assert (await shown.condition(PORTS))["reason"] == "DevicePluginEnded"


async def ended_plugin(client: RecordingClient) -> NodeHealthWriter:
    """The writer of a plugin that has ended before the API server's answer to its taint was read."""
    await client.create(NODES, node_manifest())
    snapshots: Observable[Snapshot | None] = Observable(snapshot(chips={2: SEPARATED}))
    health = NodeHealthWriter(client, NODE, snapshots=snapshots, rule=TaintRule(FaultLevel.SEPARATE, "NoSchedule"))
    health.on_apply(await client.get(NODES, NODE))
    async with running(health.run(lambda: None)):
        client.answers_lost = lambda body: "spec" in (body or {})
        await ShownNode(client).tainted("SeparateNPU")
    client.answers_lost = lambda _body: False
    return health


async def test_a_taint_whose_answer_was_not_read_goes_with_the_plugin(client: RecordingClient) -> None:
    health = await ended_plugin(client)
    await health.sign_off()
    shown = ShownNode(client)
    assert await shown.taints() == []
    assert (await shown.condition())["reason"] == "DevicePluginEnded"


async def test_a_write_of_others_at_the_end_of_the_plugin_keeps_no_taint(
    client: RecordingClient, server: ApiServer
) -> None:
    health = await ended_plugin(client)
    server.fail_next("PATCH", f"/nodes/{NODE}$", 409, times=2)
    await health.sign_off()
    assert await ShownNode(client).taints() == []


async def test_the_taint_does_not_wait_for_conditions_at_the_end_of_the_plugin(
    client: RecordingClient, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIGN_OFF_S", 60.0)
    health = await ended_plugin(client)
    server.delay("/status$", 60.0)
    async with running(health.sign_off()):
        await ShownNode(client).tainted(None)


class SilentServer(KubeClient):
    """An API server that answers to writes of conditions only."""

    def __init__(self) -> None:
        self.written: list[Any] = []

    async def request(self, _method: str, path: str, *, body: Any = None, **_options: Any) -> bytes:  # type: ignore[override]  # what is used of it
        if not path.endswith("/status"):
            await asyncio.get_running_loop().create_future()
        self.written.append(body)
        return json.dumps(node_manifest()).encode()


@pytest.mark.looptime
async def test_a_taint_that_is_not_answered_withholds_no_conditions_at_the_end_of_the_plugin() -> None:
    client = SilentServer()
    health = NodeHealthWriter(
        client, NODE, snapshots=Observable(None), rule=TaintRule(FaultLevel.SEPARATE, "NoSchedule")
    )
    health.on_apply(Node(metadata=Metadata(name=NODE, resource_version="1")))
    await health.sign_off()
    (body,) = client.written
    assert {each["status"] for each in body["status"]["conditions"]} == {"Unknown"}
