"""MindCluster's device plugin, as far as other programs on the node notice it (docs/spec/hand-over.md).

It gives a pod the chips written on it, whatever ids the kubelet chose, and records both. The real kubelet's choice is
arbitrary; here it is made to differ from the chips, which is the usual case.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import grpc

from ascend.annotations import CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, chip_name, join_names_sorted
from device_plugin.kubelet.pod_resources import count_healthy
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2 as registration
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2_grpc as registration_grpc
from tests.conformance.node import PODS, PluginNode

ENDPOINT: Final = "Ascend910.sock"
SLOW_RESOURCE: Final = "example.com/slow"
SLOW_S: Final = 60.0


class OtherPlugin(pb_grpc.DevicePluginServicer):
    """A plugin of one node with eight devices.

    Args:
        endpoint: the name of its socket.
        resource: what it registers.
    """

    def __init__(self, endpoint: str, resource: str) -> None:
        self._endpoint = endpoint
        self._resource = resource
        self._next: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._ended = threading.Event()
        self.listed = threading.Event()

    def GetDevicePluginOptions(self, request: pb.Empty, context: grpc.ServicerContext) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    def ListAndWatch(self, request: pb.Empty, context: grpc.ServicerContext) -> Iterator[pb.ListAndWatchResponse]:
        yield pb.ListAndWatchResponse(devices=[pb.Device(ID=chip_name(chip), health="Healthy") for chip in range(8)])
        self.listed.set()
        self._ended.wait()

    def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: grpc.ServicerContext
    ) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        answer.container_responses.add(deviceIDs=map(chip_name, self._next[1]))
        return answer

    def Allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:
        answer = pb.AllocateResponse()
        answer.container_responses.add(envs={"ASCEND_VISIBLE_DEVICES": ",".join(map(str, self._next[0]))})
        return answer

    def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: grpc.ServicerContext
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()

    @contextmanager
    def watched(self, registry: Path) -> Iterator[None]:
        """Serve in the folder in which the kubelet looks for plugins; it registers them by itself."""
        with self._served(registry / self._endpoint, _Info(self._resource)):
            yield

    @contextmanager
    def _served(self, socket: Path, *more: "_Info") -> Iterator[None]:
        pool = ThreadPoolExecutor(max_workers=4)
        server = grpc.server(pool)
        pb_grpc.add_DevicePluginServicer_to_server(self, server)
        for each in more:
            registration_grpc.add_RegistrationServicer_to_server(each, server)
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        try:
            yield
        finally:
            self._ended.set()
            server.stop(grace=None).wait()
            pool.shutdown()

    @contextmanager
    def serving(self, folder: Path) -> Iterator[None]:
        """Serve in the kubelet's folder, registered with it."""
        with self.unregistered(folder) as register:
            register()
            yield

    @contextmanager
    def unregistered(self, folder: Path) -> Iterator[Callable[[], None]]:
        """Serve in the kubelet's folder; what is yielded registers the plugin."""

        def register() -> None:
            options = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
            with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}", options=options) as channel:
                pb_grpc.RegistrationStub(channel).Register(
                    pb.RegisterRequest(
                        version="v1beta1",
                        endpoint=self._endpoint,
                        resource_name=self._resource,
                        options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
                    ),
                    timeout=10,
                )

        with self._served(folder / self._endpoint):
            yield register


class _Info(registration_grpc.RegistrationServicer):
    """What a plugin answers the kubelet's plugin watcher."""

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def GetInfo(self, request: registration.InfoRequest, context: grpc.ServicerContext) -> registration.PluginInfo:
        return registration.PluginInfo(type="DevicePlugin", name=self._resource, supported_versions=["v1beta1"])

    def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()


class ReferencePlugin(OtherPlugin):
    """MindCluster's; the test says which ids the kubelet chooses.

    Args:
        node: the node.
        endpoint: the name of its socket.
    """

    def __init__(self, node: PluginNode, endpoint: str = ENDPOINT) -> None:
        super().__init__(endpoint, RESOURCE)
        self._node = node

    def place(self, name: str, chips: tuple[int, ...], ids: tuple[int, ...]) -> None:
        """Run a pod with these chips, and these ids in the kubelet's ledger."""
        self._next = (chips, ids)
        self._node.place(name, *chips)
        self._node.wait_until(lambda: self._node.phase(name) == "Running", f"pod {name} runs")
        claim = {
            PREDICATE_TIME: str(CLAIMED),
            REAL: join_names_sorted(chips),
            KUBELET_IDS: join_names_sorted(ids),
        }
        self._node.cluster.api.patch(f"{PODS}/{name}", {"metadata": {"annotations": claim}})


class SlowPlugin(OtherPlugin):
    """A plugin of another resource, which does not answer Allocate for a while: the kubelet does nothing meanwhile."""

    def __init__(self) -> None:
        super().__init__("slow.sock", SLOW_RESOURCE)
        self._next = ((0,), (0,))
        self.called = threading.Event()
        self.answers = threading.Event()

    def Allocate(self, request: pb.AllocateRequest, context: grpc.ServicerContext) -> pb.AllocateResponse:
        self.called.set()
        self.answers.wait(SLOW_S)
        return super().Allocate(request, context)


@contextmanager
def reference_plugin(node: PluginNode) -> Iterator[ReferencePlugin]:
    """Stop this project's plugin and run MindCluster's instead."""
    node.plugin.process.stop()
    plugin = ReferencePlugin(node)
    with plugin.serving(node.node.device_plugin_dir):
        # The Node shows the chips of the plugin before for a while, and a pod that comes in between is refused.
        socket = node.node.pod_resources_socket
        node.wait_until(
            lambda: plugin.listed.is_set() and asyncio.run(count_healthy(socket, RESOURCE)) == 8, "the chips are known"
        )
        node.wait_until(lambda: node.counts() == (8, 8), "all chips are allocatable")
        yield plugin
