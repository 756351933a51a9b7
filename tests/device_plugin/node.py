"""A node with the sandbox's kubelet and the parts of the plugin that face it; the test plays the rest."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import grpc

from ascend.chips import RESOURCE
from ascend.daemon.observable import Observable
from ascend.errors import Unreachable
from ascend.kube.objects import Pod
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pods_api import Registrations
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.container_edits import make_edits
from device_plugin.pods.devices import ChipDevices
from device_plugin.publish.order import PublishingOrder
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.registration import Registration
from device_plugin.serving.servicer import DevicePluginServicer
from device_plugin.serving.succession import Succession
from device_plugin.serving.unknown_plugin import OtherPlugins
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from sandbox.kubelet import Kubelet
from tests.device_plugin.api import sample
from tests.device_plugin.builders import snapshot

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import DevicePluginAsyncStub, _ServicerContext

CHANNEL = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
HEALTHY = {f"Ascend910-{chip_id}": "Healthy" for chip_id in range(8)}


class Face:
    """The plugin's side towards the kubelet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.snapshots: Observable[Snapshot | None] = Observable(snapshot())
        self.order = PublishingOrder()
        self.allocations = Allocations()
        self.pods = NodePods(self.allocations.drop)
        self.metrics = Metrics()
        self.claimed: list[Allocation] = []
        self.api_pods: Callable[[], list[Pod]] = list
        self.devices = ChipDevices(
            DeviceLedger(self.pods, self.allocations),
            lambda chips, _type: make_edits(chips, "runtime", Path("/dev"), lambda _folder: ()),
        )
        self.matcher = AdmissionMatcher(
            snapshots=self.snapshots,
            devices=self.devices,
            finder=AdmittedPodFinder(
                self.pods, self.allocations, kubelet_pods=self._kubelet_pods, api_pods=self._api_pods
            ),
            refresh=self._refresh,
            on_allocation=self.claimed.append,
        )
        self.registrations: Callable[[str], Awaitable[Registrations]] | None = None
        self.kubelet_version = "v1.34.4"
        self.servicers: list[DevicePluginServicer] = []
        self.new_kubelets = 0
        self.on_event: list[tuple[str, str]] = []
        self.registration = Registration(
            directory,
            self.servicer,
            self.metrics,
            on_new_kubelet=self._on_new_kubelet,
            succession=Succession(InstanceLock(directory), self._kubelet_version),
            others=OtherPlugins(
                directory,
                directory.parent / "pod-resources" / "kubelet.sock",
                directory.parent / "plugins_registry",
                self._registrations,
                lambda reason, sentence, _: self.on_event.append((reason, sentence)),
            ),
        )

    async def _on_new_kubelet(self) -> None:
        self.new_kubelets += 1

    async def _kubelet_version(self) -> str:
        return self.kubelet_version

    async def _kubelet_pods(self) -> Sequence[Pod]:
        raise Unreachable("the kubelet lists no pods here")

    async def _registrations(self, resource: str) -> Registrations:
        if self.registrations is None:
            raise Unreachable("the kubelet has no metrics here")
        return await self.registrations(resource)

    async def _api_pods(self) -> Sequence[Pod]:
        return self.api_pods()

    async def _refresh(self) -> None:
        """The test shows the pods itself."""

    def servicer(self) -> DevicePluginServicer:
        made = DevicePluginServicer(
            snapshots=self.snapshots,
            matcher=self.matcher,
            order=self.order,
            metrics=self.metrics,
        )
        self.servicers.append(made)
        return made

    @property
    def sockets(self) -> list[Path]:
        return sorted(self.directory.glob("ascend910-*.sock"))

    def registered(self, result: str) -> float:
        return sample(self.metrics, "ascend_dp_registrations_total", {"result": result})

    def preferred(self, result: str) -> float:
        return sample(self.metrics, "ascend_dp_preferred_allocations_total", {"result": result})

    def allocated(self, result: str) -> float:
        return sample(self.metrics, "ascend_dp_allocations_total", {"result": result})


@asynccontextmanager
async def dialled(socket: Path) -> AsyncIterator["DevicePluginAsyncStub"]:
    """A kubelet's connection to a plugin."""
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
        yield services.DevicePluginStub(channel)


@asynccontextmanager
async def served(face: Face) -> AsyncIterator["DevicePluginAsyncStub"]:
    """The service on a socket without any registration, and a connection to it."""
    server = grpc.aio.server()
    servicer = face.servicer()
    services.add_DevicePluginServicer_to_server(servicer, server)
    socket = face.directory / "served.sock"
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        async with dialled(socket) as stub:
            yield stub
    finally:
        servicer.end_streams()
        await server.stop(None)


class SloppyKubelet(services.RegistrationServicer):
    """Takes registrations but never opens a stream, or refuses them. Use as a context manager."""

    def __init__(self, directory: Path) -> None:
        self.endpoints: list[str] = []
        self.refuses = False
        self.hangs = False
        self._server = grpc.aio.server()
        services.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{directory / 'kubelet.sock'}")

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def Register(self, request: pb.RegisterRequest, context: "_ServicerContext") -> pb.Empty:  # noqa: N802
        assert (request.version, request.resource_name) == ("v1beta1", RESOURCE)
        assert request.options.get_preferred_allocation_available
        self.endpoints.append(request.endpoint)
        if self.hangs:
            await asyncio.sleep(60.0)
        if self.refuses:
            await context.abort(grpc.StatusCode.UNKNOWN, "not today")
        return pb.Empty()


async def first_list(stub: "DevicePluginAsyncStub") -> dict[str, str]:
    """The devices in the first message of a new stream."""
    async with asyncio.timeout(10.0):
        async for message in stub.ListAndWatch(pb.Empty()):
            return {each.ID: each.health for each in message.devices}
    raise AssertionError("the stream ended without a message")


class Lapses:
    """Watches the kubelet's devices all the time."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self.seen: list[dict[str, str]] = []

    async def run(self) -> None:
        """Record the devices whenever they are not all healthy."""
        while True:
            if (devices := self._kubelet.devices(RESOURCE)) != HEALTHY:
                self.seen.append(devices)
            await asyncio.sleep(0)
