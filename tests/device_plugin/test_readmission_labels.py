"""Recovered chips that await readmission, as labels of the Node, on a real API server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.deviceinfo import NAMESPACE, config_map_name, encode_report
from ascend.kube.objects import CONFIG_MAPS, NODES, JsonObject, Node
from device_plugin.app import Plugin
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Snapshot
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.readmission_labels import CHIPS, PORTS, ReadmissionLabels, read_label, write_label
from device_plugin.publish.report import make_report
from sandbox.apiserver import ApiServer
from tests.device_plugin.api import NODE, RecordingClient, node_manifest, running, until
from tests.device_plugin.builders import fault, judged_chip, snapshot
from tests.device_plugin.whole import whole_node
from tests.e2e.proxy import ApiProxy


class Rig:
    def __init__(self, client: RecordingClient, node: Node) -> None:
        self.client = client
        self.waiting = (0, 0)
        self.readmitted: list[tuple[ChipSet, ChipSet]] = []
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.readmission = ReadmissionLabels(client, node, snapshots=self.snapshots, on_readmit=self._readmit)

    def wait(self, chips: ChipSet, ports: ChipSet = 0) -> None:
        self.waiting = (chips, ports)
        self.snapshots.set(snapshot(awaiting=chips, network_awaiting=ports))

    def _readmit(self, chips: ChipSet, ports: ChipSet) -> None:
        self.readmitted.append((chips, ports))
        self.wait(self.waiting[0] & ~chips, self.waiting[1] & ~ports)

    async def edit(self, **labels: str | None) -> None:
        keys = {"chips": CHIPS, "ports": PORTS}
        body = {"metadata": {"labels": {keys[name]: text for name, text in labels.items()}}}
        await self.client.patch(NODES, NODE, body)

    async def listed(self, chips: str | None, ports: str | None = None) -> None:
        async def there() -> bool:
            labels = (await self.client.get(NODES, NODE)).metadata.labels
            return (labels.get(CHIPS), labels.get(PORTS)) == (chips, ports)

        async with asyncio.timeout(10.0):
            while not await there():
                pass

    @asynccontextmanager
    async def runs(self) -> AsyncIterator[None]:
        node_object = NodeWriter(self.client, NODE)
        node_object.readers.append(self.readmission)
        async with running(node_object.watch().run()), running(self.readmission.run()):
            yield


@pytest.fixture
async def rig(client: RecordingClient) -> Rig:
    return Rig(client, await client.create(NODES, node_manifest()))


async def test_chips_that_await_readmission_are_in_the_label(rig: Rig) -> None:
    rig.wait(0b1001, 0b10)
    async with rig.runs():
        await rig.listed("0.3", "1")
        rig.wait(0b1000)
        await rig.listed("3")
        rig.wait(0)
        await rig.listed(None)
    assert rig.readmitted == []


async def test_an_id_removed_from_the_label_is_readmitted(rig: Rig) -> None:
    rig.wait(0b1101, 0b10)
    async with rig.runs():
        await rig.listed("0.2.3", "1")
        await rig.edit(chips="0.3")
        await until(lambda: rig.readmitted)
        assert rig.readmitted == [(0b100, 0)]
        await rig.edit(chips=None, ports=None)
        await until(lambda: rig.waiting == (0, 0))
    assert (rig.readmitted[-1][0], rig.readmitted[-1][1]) in {(0b1001, 0b10), (0b1001, 0)}


async def test_an_edit_between_the_read_and_the_watch_of_the_labels_counts(rig: Rig, client: RecordingClient) -> None:
    await rig.edit(chips="0.3", ports="1.2")
    started = Rig(client, await client.get(NODES, NODE))
    started.wait(0b1001, 0b110)
    await rig.edit(chips="0", ports=None)
    async with started.runs():
        await until(lambda: started.readmitted)
        await started.listed("0")
    assert started.readmitted == [(0b1000, 0b110)]


async def test_an_edit_during_the_start_is_not_undone(folder: Path) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        await whole.client.patch(NODES, NODE, {"metadata": {"labels": {CHIPS: "3"}}})
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        plugin = Plugin(whole.settings(kubeconfig=behind, readmission="manual"))

        def waiting() -> ChipSet | None:
            snapshot = plugin.snapshots.value
            return snapshot.awaiting_readmission if snapshot is not None else None

        async with proxy.gate("GET", r"/nodes\?") as listing, running(plugin.run()):
            await listing.reached.wait()
            assert waiting() == 0b1000
            await whole.client.patch(NODES, NODE, {"metadata": {"labels": {CHIPS: None}}})
            listing.opened.set()
            await until(lambda: waiting() == 0)
            await until(whole.offers_chips)
        assert CHIPS not in (await whole.client.get(NODES, NODE)).metadata.labels


async def test_a_fault_that_ends_while_no_plugin_runs_awaits_readmission(folder: Path) -> None:
    async with whole_node(folder) as whole:
        broken = judged_chip(healthy=False, network_healthy=False, level=FaultLevel.SEPARATE, faults=(fault("A3"),))
        metadata = {"name": config_map_name(NODE), "namespace": NAMESPACE}
        down = judged_chip(network_healthy=False, network_faults=(fault("A5", FaultLevel.SEPARATE),))
        data = encode_report(make_report(snapshot(chips={3: broken, 5: down}), 1))
        body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await whole.client.create(CONFIG_MAPS, body, NAMESPACE)
        async with running(Plugin(whole.settings(readmission="manual")).run()):
            async with asyncio.timeout(20.0):
                labels: dict[str, str] = {}
                while CHIPS not in labels:
                    await asyncio.sleep(0.01)
                    labels = (await whole.client.get(NODES, NODE)).metadata.labels
            assert (labels[CHIPS], labels.get(PORTS)) == ("3", "5")
            await whole.client.patch(NODES, NODE, {"metadata": {"labels": {CHIPS: None}}})
            await until(whole.offers_chips)


async def test_a_node_recreated_before_the_watch_readmits_nothing(rig: Rig, client: RecordingClient) -> None:
    await rig.edit(chips="0.3")
    started = Rig(client, await client.get(NODES, NODE))
    started.wait(0b1001)
    await client.delete(NODES, NODE)
    await client.create(NODES, node_manifest())
    async with started.runs():
        await started.listed("0.3")
    assert started.readmitted == []


async def test_a_late_event_of_an_older_label_readmits_nothing(rig: Rig, client: RecordingClient) -> None:
    async with running(rig.readmission.run()):
        rig.wait(0b1)
        await rig.listed("0")
        late = await client.get(NODES, NODE)
        rig.wait(0b1001)
        await rig.listed("0.3")
        await until(lambda: rig.readmission._listed == (0b1001, 0))
        rig.readmission.on_apply(late)
    assert rig.readmitted == []


async def test_a_refused_write_of_the_labels_is_retried(rig: Rig, server: ApiServer) -> None:
    server.fail_next("PATCH", "/nodes/", 500, times=2)
    rig.wait(0b1)
    async with rig.runs():
        await rig.listed("0")


async def test_a_conflict_does_not_lose_the_labels(rig: Rig) -> None:
    async with rig.runs():
        for number in range(20):
            await rig.client.patch(NODES, NODE, {"metadata": {"annotations": {"beat": str(number)}}})
            rig.wait(1 << number % 8)
        await rig.listed(str(19 % 8))
    assert rig.readmitted == []


@given(st.integers(0, 2**256 - 1))
def test_a_written_label_is_read_back(chips: int) -> None:
    text = write_label(chips)
    assert (text is None) == (chips == 0)
    assert read_label({CHIPS: text} if text is not None else {}, CHIPS) == chips


@given(st.text(max_size=80))
def test_any_label_can_be_read(text: str) -> None:
    assert read_label({CHIPS: text}, CHIPS) < 1 << 256
