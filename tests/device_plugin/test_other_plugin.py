"""Another device plugin registers the same resource: this one gives way, says so, and comes back."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from ascend.chips import RESOURCE
from device_plugin.serving import other_plugin
from device_plugin.serving import registration as registration_loop
from device_plugin.serving.other_plugin import EVENT, SOCKET
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from sandbox.kubelet import Kubelet
from tests.device_plugin.api import NODE, RecordingClient, running, until
from tests.device_plugin.node import CHANNEL, HEALTHY, Face


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_plugin, "POLL_S", 0.01)
    monkeypatch.setattr(registration_loop, "LOOK_S", 0.02)


@pytest.fixture
async def kubelet(client: RecordingClient, folder: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(NODE, client, folder, seed=1) as kubelet:
        yield kubelet


@asynccontextmanager
async def another(kubelet: Kubelet, socket: str = SOCKET) -> AsyncIterator[Face]:
    """Another plugin of the resource, by default MindCluster's, as far as the kubelet and this one see it."""
    async with unregistered(kubelet, socket) as (face, register):
        await register()
        yield face


@asynccontextmanager
async def unregistered(
    kubelet: Kubelet, socket: str = SOCKET
) -> AsyncIterator[tuple[Face, Callable[[], Awaitable[None]]]]:
    """Another plugin that serves, and what registers it with the kubelet."""
    face = Face(kubelet.socket_dir)
    server, servicer = grpc.aio.server(), face.servicer()
    services.add_DevicePluginServicer_to_server(servicer, server)
    path = kubelet.socket_dir / socket
    server.add_insecure_port(f"unix:{path}")
    await server.start()

    async def register() -> None:
        async with grpc.aio.insecure_channel(f"unix:{kubelet.plugin_socket}", options=CHANNEL) as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=socket, resource_name=RESOURCE)
            await services.RegistrationStub(channel).Register(request)
        await until(servicer.watched.is_set)

    try:
        yield face, register
    finally:
        servicer.end_streams()
        await server.stop(None)
        path.unlink(missing_ok=True)


def gives_way(face: Face) -> bool:
    return "MindCluster's device plugin serves huawei.com/Ascend910" in (face.registration.problem or "")


async def test_it_gives_way_without_a_lapse_and_comes_back(kubelet: Kubelet) -> None:
    face = Face(kubelet.socket_dir)
    async with running(face.registration.run()):
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)
        async with another(kubelet) as other:
            await until(lambda: gives_way(face) and face.sockets == [])
            assert [reason for reason, _ in face.on_event] == [EVENT]
            registrations = kubelet.registrations
            # Its stream is the only one left, and it is the kubelet's plugin.
            other.snapshots.set(None)
            for _ in range(50):
                assert kubelet.devices(RESOURCE) == HEALTHY
                await asyncio.sleep(0.005)
            assert kubelet.registrations == registrations
            assert other.servicers[-1].watched.is_set()
            assert not other.servicers[-1].broken.is_set()
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)
        assert kubelet.registrations == registrations + 1
        assert len(face.on_event) == 1


async def test_it_does_not_register_while_another_one_serves(kubelet: Kubelet) -> None:
    face = Face(kubelet.socket_dir)
    async with another(kubelet):
        registrations = kubelet.registrations
        async with running(face.registration.run()):
            await until(lambda: gives_way(face))
            assert kubelet.registrations == registrations
    async with running(face.registration.run()):
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)


async def test_a_socket_that_another_one_left_is_ignored(kubelet: Kubelet) -> None:
    async with another(kubelet):
        left = kubelet.socket_dir / SOCKET
        left.rename(left.with_name("kept"))
    left.with_name("kept").rename(left)
    assert left.is_socket()
    face = Face(kubelet.socket_dir)
    async with running(face.registration.run()):
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)
        assert face.on_event == []
