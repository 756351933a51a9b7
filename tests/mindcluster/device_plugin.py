"""MindCluster's device plugin: what the kubelet, the schedulers and the pods notice of it, at its own pace.

Its defects are part of it: it finds the pod of an Allocate by count and time, trusts what is written on it, keeps a map
of ids that it never prunes, writes AscendReal from that map a second later, and overwrites its report
(docs/spec/hand-over.md, docs/spec/node-report.md#writing-the-report, docs/spec/mindcluster-plugin.md#timing).
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import msgspec

from ascend.daemon.grpc_start import start_server
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, Pod
from ascend.kube.reflector import Reflector
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.kubelet.pod_resources import read_ledger
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from tests.e2e.node import WorldNode
from tests.e2e.programs import Program
from tests.mindcluster.report import LABELS, RESOURCE, config_map_data

SOCKET: Final = "Ascend910.sock"
REAL: Final = "huawei.com/AscendReal"
KUBELET_IDS: Final = "huawei.com/kltDev"
CONFIGURATION: Final = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
PREDICATE_TIME: Final = "predicate-time"
CLAIMED: Final = (1 << 64) - 1

PERIOD_S: Final = 5
"""The main loop; a change of a pod starts the next cycle at the next of the polls."""
POLL_S: Final = 1.0
ATTEMPTS: Final = 3
ATTEMPT_S: Final = 1.0
REWRITE_S: Final = 300.0
"""How long an unchanged report is not written again."""
_CHANNEL: Final = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))


@dataclass(slots=True)
class Chance:
    """What depends on chance, as tests want it.

    Attributes:
        misread: the chips that AscendReal names, by name of the pod, where the map of ids was overwritten before.
        answers: set unless each Allocate is to wait.
        waiting: how many of them wait.
        reports: set unless AscendReal is to wait.
        order: the order of a map of Go, of which each iteration begins somewhere else.
    """

    misread: dict[str, tuple[int, ...]] = field(default_factory=dict)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: int = 0
    reports: asyncio.Event = field(default_factory=asyncio.Event)
    order: random.Random = field(default_factory=lambda: random.Random(11))

    def reset(self) -> None:
        """Let nothing wait, and nothing be false."""
        self.misread.clear()
        self.answers.set()
        self.reports.set()


class MindClusterPlugin(Program):
    """The plugin of a node, as ``-volcanoType=true -presetVirtualDevice=true`` and ascend-docker-runtime make it.

    Args:
        node: its node.
        client: the API server.

    Attributes:
        chance: what depends on chance.
    """

    def __init__(self, node: WorldNode, client: KubeClient) -> None:
        self._node = node
        self._client = client
        self._process: _Process | None = None
        self._running: asyncio.Task[None] | None = None
        self.chance = Chance()
        self.chance.reset()

    @property
    def runs(self) -> bool:
        return self._running is not None and not self._running.done()

    async def start(self) -> None:
        """Start it, with nothing in its memory."""
        self._process = _Process(self._node, self._client, self.chance)
        self._running = asyncio.create_task(self._process.run())

    async def knows(self, pod: str) -> bool:
        """Whether it has seen a pod of its node, by name."""
        return self._process is not None and any(each.name == pod for each in self._process.pods.objects.values())

    async def pause(self) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        """End it; it has no orderly end either: its last report stays as it is."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def stop(self) -> None:
        await self.kill()


class _Process(pb_grpc.DevicePluginServicer):
    """One life of the plugin."""

    def __init__(self, node: WorldNode, client: KubeClient, chance: Chance) -> None:
        self._node = node
        self._client = client
        self._chance = chance
        self.pods = Reflector(client, PODS, self, field_selector=f"spec.nodeName={node.name}")
        self._reals: dict[str, str] = {}  # by kubelet id; never pruned
        self._claimed: set[str] = set()
        self._allocating = asyncio.Lock()
        self._triggered = False
        self._lost = False
        self._listed = self._devices()
        self._sends = asyncio.Condition()
        self._written: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        self._written_s = 0.0
        self._address = ""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.pods.run())
            await self.pods.synced.wait()
            await self._describe_node()
            tasks.create_task(self._serve())
            tasks.create_task(self._main_loop())

    # The informer of pods.

    def on_apply(self, obj: Pod) -> None:
        self._triggered = True

    def on_delete(self, obj: Pod) -> None:
        self._triggered = True

    # The chips.

    def _health(self) -> dict[str, bool]:
        server = msgspec.json.decode(self._node.state_file.read_bytes(), type=SimulatedServer)
        return {f"Ascend910-{each.id}": each.health == "Healthy" for each in server.chips}

    async def _describe_node(self) -> None:
        addresses = {
            name: {"IP": f"10.20.0.{number + 1}", "SuperDeviceID": 0} for number, name in enumerate(self._health())
        }
        metadata = {
            "labels": {
                "accelerator": "huawei-Ascend910",
                "node.kubernetes.io/npu.chip.name": "910A",
                "servertype": "Ascend910-30",
                "huawei.com/driver.version": "24.1.rc3",
            },
            "annotations": {
                "baseDeviceInfos": json.dumps(addresses, separators=(",", ":")),
                "superPodID": "-2",
                "serverIndex": "-2",
                "serverType": "",
            },
        }
        body = {"metadata": metadata}
        patched = await self._client.patch(
            NODES, self._node.name, body, content_type=STRATEGIC_MERGE_PATCH, subresource="status"
        )
        self._address = patched.internal_ip

    # The kubelet.

    async def _serve(self) -> None:
        """Serve and register, again whenever the kubelet has closed the stream; that is polled every five seconds."""
        while True:
            server = grpc.aio.server()
            pb_grpc.add_DevicePluginServicer_to_server(self, server)
            socket = self._node.device_plugins / SOCKET
            server.add_insecure_port(f"unix:{socket}")
            await start_server(server)
            try:
                self._lost = not await self._register()
                while not self._lost:  # noqa: ASYNC110 - it polls
                    await asyncio.sleep(PERIOD_S)
            finally:
                await server.stop(None)
                socket.unlink(missing_ok=True)
            await asyncio.sleep(0)

    async def _register(self) -> bool:
        address = f"unix:{self._node.device_plugins / 'kubelet.sock'}"
        request = pb.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=RESOURCE)
        async with grpc.aio.insecure_channel(address, options=_CHANNEL) as channel:
            try:
                await pb_grpc.RegistrationStub(channel).Register(request)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(PERIOD_S)
                return False
        return True

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        raise NotImplementedError

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        try:
            while True:
                sent = self._listed
                yield pb.ListAndWatchResponse(devices=[pb.Device(ID=name, health=each) for name, each in sent.items()])
                async with self._sends:
                    await self._sends.wait_for(lambda sent=sent: self._listed != sent)  # type: ignore[misc]  # bound
        finally:
            self._lost = True

    def _devices(self) -> dict[str, str]:
        """The health of each kubelet id (docs/spec/hand-over.md#kubelet-ids-and-real-chips)."""
        health = self._health()
        names = sorted(health)
        ids_of_reals = list(self._reals.items())
        self._chance.order.shuffle(ids_of_reals)  # of two ids for one chip, any may win
        taken = {real: kubelet_id for kubelet_id, real in ids_of_reals}
        unused = [name for name in names if name not in taken.values()]
        rest = [name for name in names if name not in taken]
        ids = taken | dict(zip(rest, unused, strict=True))
        return {ids[real]: "Healthy" if health[real] else "Unhealthy" for real in names}

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        (container,) = request.container_requests
        ids = list(container.devices_ids)
        self._chance.waiting += 1
        try:
            await self._chance.answers.wait()
        finally:
            self._chance.waiting -= 1
        if len(ids) == len(self._health()):
            return _answer(ids)  # docs/spec/hand-over.md#which-way-is-taken
        async with self._allocating:
            pod = await self._find(len(ids))
            if pod is None:
                await context.abort(grpc.StatusCode.UNKNOWN, "not get valid pod")
                raise AssertionError("unreachable")
            self._claimed.add(pod.uid)
            claim = {"metadata": {"annotations": {PREDICATE_TIME: str(CLAIMED)}}}
            await self._client.patch(
                PODS, pod.name, claim, namespace=pod.metadata.namespace, content_type=STRATEGIC_MERGE_PATCH
            )
            reals = pod.metadata.annotations[RESOURCE].split(",")
            self._reals.update(zip(ids, reals, strict=True))
            return _answer(reals)

    async def _find(self, count: int) -> Pod | None:
        """The pod with the smallest time among those with so many chips (docs/spec/hand-over.md#finding-the-pod)."""
        for attempt in range(ATTEMPTS):
            pods = list(self.pods.objects.values())
            if attempt == ATTEMPTS - 1:
                pods = await self._client.list_objects(PODS, field_selector=f"spec.nodeName={self._node.name}")
            candidates = [each for each in pods if self._may_be_meant(each, count)]
            if candidates:
                return min(candidates, key=_predicate_time)
            await asyncio.sleep(ATTEMPT_S)
        return None

    def _may_be_meant(self, pod: Pod, count: int) -> bool:
        written = pod.metadata.annotations.get(RESOURCE, "")
        return (
            any(RESOURCE in each.resources.limits for each in pod.spec.containers)
            and len(written.split(",")) == count
            and bool(written)
            and pod.metadata.deletion_timestamp is None
            and pod.status.reason != "UnexpectedAdmissionError"
            and pod.is_live
            and pod.uid not in self._claimed
            and _predicate_time(pod) != CLAIMED
        )

    # The main loop.

    async def _main_loop(self) -> None:
        while True:
            for _ in range(PERIOD_S):
                await asyncio.sleep(POLL_S)
                if self._triggered:
                    break
            self._triggered = False
            with suppress(ApiError, Unreachable):
                await self._write_annotations()
                await self._notify_kubelet()
                await self._write_report()

    async def _write_annotations(self) -> None:
        if not self._chance.reports.is_set():
            return
        ledger = (await read_ledger(self._node.pod_resources_socket)).pods
        for pod in list(self.pods.objects.values()):
            ids = [f"Ascend910-{chip}" for chips in ledger.get(pod.key, {}).values() for chip in chips]
            if not ids or not pod.is_live:
                continue
            if real := pod.metadata.annotations.get(REAL):
                if not all(each in self._reals for each in ids):  # after a restart
                    self._reals.update(zip(sorted(ids), real.split(","), strict=False))
                continue
            if not all(each in self._reals for each in ids):
                continue
            reals = sorted(self._reals[each] for each in ids)
            if pod.name in self._chance.misread:
                reals = [f"Ascend910-{chip}" for chip in self._chance.misread[pod.name]]
            await self._annotate(pod, sorted(ids), reals)

    async def _annotate(self, pod: Pod, ids: list[str], reals: list[str]) -> None:
        devices = [
            {"device_id": str(number), "device_ip": f"10.20.0.{number + 1}", "super_device_id": "0"}
            for number in sorted(_number(each) for each in reals)
        ]
        configuration = {
            "pod_name": pod.name,
            "server_id": pod.uid,
            "host_ip": self._address,
            "super_pod_id": -2,
            "devices": devices,
            "rack_id": 0,
            "server_index": "-2",
            "server_ip": self._address,
        }
        annotations = {
            KUBELET_IDS: ",".join(ids),
            REAL: ",".join(reals),
            CONFIGURATION: json.dumps(configuration, separators=(",", ":")),
        }
        with suppress(NotFound):
            await self._client.patch(
                PODS,
                pod.name,
                {"metadata": {"annotations": annotations}},
                namespace=pod.metadata.namespace,
                content_type=STRATEGIC_MERGE_PATCH,
            )

    async def _notify_kubelet(self) -> None:
        """Always before the report is written."""
        devices = self._devices()
        if devices != self._listed:
            self._listed = devices
            async with self._sends:
                self._sends.notify_all()

    async def _write_report(self) -> None:
        """Overwrite the report, without a resourceVersion."""
        used = {
            name for pod in self.pods.objects.values() if pod.is_live for name in _list(pod.metadata.annotations, REAL)
        }
        health = self._health()
        free = tuple(sorted(name for name, is_healthy in health.items() if is_healthy and name not in used))
        unhealthy = tuple(sorted(name for name, is_healthy in health.items() if not is_healthy))
        now_s = time.monotonic()
        if self._written == (free, unhealthy) and now_s - self._written_s < REWRITE_S:
            return
        name = f"mindx-dl-deviceinfo-{self._node.name}"
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "kube-system", "labels": LABELS},
            "data": config_map_data(free, unhealthy, int(time.time())),
        }
        try:
            await self._client.request("PUT", CONFIG_MAPS.path(namespace="kube-system", name=name), body=body)
        except NotFound:
            await self._client.request("POST", CONFIG_MAPS.path(namespace="kube-system"), body=body)
        self._written, self._written_s = (free, unhealthy), now_s


def _answer(names: list[str]) -> pb.AllocateResponse:
    answer = pb.AllocateResponse()
    visible = ",".join(str(_number(each)) for each in names)
    answer.container_responses.add(envs={"ASCEND_VISIBLE_DEVICES": visible, "ASCEND_RUNTIME_OPTIONS": ""})
    return answer


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


def _predicate_time(pod: Pod) -> int:
    """As an unsigned 64-bit integer; the largest but one if there is none that can be read."""
    text = pod.metadata.annotations.get(PREDICATE_TIME, "")
    return int(text) if text.isdecimal() else CLAIMED - 1


def _list(annotations: Any, key: str) -> Iterator[str]:
    names = annotations.get(key, "").split(",")
    return iter(names if names != [""] and len(names) <= 100 else ())
