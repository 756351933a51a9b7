"""A plugin of the same resource whose socket has any name: this one says so, and registers again once it has ended."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from ascend.chips import RESOURCE
from ascend.errors import Unreachable
from device_plugin.kubelet.identity import KubeletIdentity
from device_plugin.kubelet.pods_api import KubeletPods, Registrations, parse_registrations
from device_plugin.serving import other_plugin, unknown_plugin, watched_plugins
from device_plugin.serving import registration as registration_loop
from device_plugin.serving.other_plugin import EVENT
from device_plugin.serving.unknown_plugin import CHECKPOINT, UnknownPlugin
from device_plugin.serving.watched_plugins import WatchedPlugins
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2 as registration
from protos.k8s.pluginregistration.v1 import pluginregistration_pb2_grpc as registration_services
from sandbox.kubelet import Kubelet
from tests.device_plugin.api import NODE, RecordingClient, running, until
from tests.device_plugin.builders import snapshot
from tests.device_plugin.node import CHANNEL, HEALTHY, Face, Lapses
from tests.device_plugin.test_other_plugin import another, gives_way, unregistered

NAME = "vendor.sock"
UNHEALTHY = dict.fromkeys(HEALTHY, "Unhealthy")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_plugin, "POLL_S", 0.01)
    monkeypatch.setattr(registration_loop, "LOOK_S", 0.02)
    monkeypatch.setattr(unknown_plugin, "LOOK_S", 0.01)
    monkeypatch.setattr(unknown_plugin, "READ_S", 0.02)
    monkeypatch.setattr(unknown_plugin, "RETRY_S", 0.02)


@pytest.fixture(params=[True, False], ids=["kubelet before 1.37", "kubelet from 1.37"])
async def kubelet(request: pytest.FixtureRequest, client: RecordingClient, folder: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(NODE, client, folder, seed=1, reregistration_race=request.param) as kubelet:
        yield kubelet


async def nobody() -> Mapping[str, str]:
    return {}


async def leaves() -> bool:
    """This plugin is not registered any more once the other one has ended."""
    return False


class Count:
    """Reads the kubelet's count of registrations, and counts the readings."""

    def __init__(self, read: Callable[[str], Awaitable[Registrations]]) -> None:
        self._read = read
        self.readings = 0

    async def __call__(self, resource: str) -> Registrations:
        found = await self._read(resource)
        self.readings += 1
        return found

    async def newer_than(self, readings: int) -> None:
        """Wait until more than so many readings were made."""
        await until(lambda: self.readings > readings)


def has_race(kubelet: Kubelet) -> bool:
    """Whether the end of either of two plugins makes all devices unhealthy, as before 1.37."""
    return kubelet._dependencies.reregistration_race


@asynccontextmanager
async def counted(kubelet: Kubelet) -> AsyncIterator[tuple[Face, Count]]:
    """The plugin, registered, with the number of registrations so far read."""
    async with KubeletPods(
        lambda: kubelet.pods_url, nobody, KubeletIdentity(Path("/nonexistent"), insecure=True)
    ) as port:
        face = Face(kubelet.socket_dir)
        if not has_race(kubelet):
            face.kubelet_version = "v1.37.1"
        face.registrations = count = Count(port.registrations)
        async with running(face.registration.run()):
            await until(lambda: count.readings and kubelet.devices(RESOURCE) == HEALTHY)
            yield face, count


def says_so(face: Face) -> bool:
    return f"another device plugin has registered {RESOURCE}" in (face.registration.problem or "")


async def test_another_plugin_is_noticed_by_the_count_of_registrations(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, _):
        assert face.registration.problem is None
        async with another(kubelet, NAME):
            await until(lambda: says_so(face))
            assert face.registration.others.problem == face.registration.problem
            assert f"socket {NAME} in {kubelet.socket_dir}" in str(face.registration.problem)
            assert [reason for reason, _ in face.on_event] == [EVENT]
            # It is not ended by this one, nor replaced.
            registrations = kubelet.registrations
            for _ in range(20):
                assert kubelet.devices(RESOURCE) == HEALTHY
                await asyncio.sleep(0.005)
            assert kubelet.registrations == registrations
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)
        assert kubelet.registrations == registrations + has_race(kubelet)
        assert len(face.on_event) == 1


async def test_the_kubelet_keeps_this_plugin_until_mindclusters_has_registered(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, _), unregistered(kubelet) as (_, register):
        await until(lambda: gives_way(face))
        assert [reason for reason, _ in face.on_event] == [EVENT]
        for _ in range(50):
            assert kubelet.devices(RESOURCE) == HEALTHY
            await asyncio.sleep(0.005)
        assert len(face.sockets) == 1
        lapses = Lapses(kubelet)
        async with running(lapses.run()):
            await register()
            await until(lambda: face.sockets == [])
            for _ in range(50):
                await asyncio.sleep(0.005)
        assert lapses.seen == []
        assert gives_way(face)


async def test_it_gives_way_to_mindclusters_beside_one_that_it_knows_already(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, _), another(kubelet, NAME):
        await until(lambda: says_so(face))
        async with another(kubelet):
            await until(lambda: gives_way(face) and face.sockets == [])


async def test_a_registration_is_noticed_though_sockets_could_not_be_looked_at_when_it_was_counted(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts_connections, failed = other_plugin.accepts_connections, 0

    async def refused_once(socket: Path) -> bool:
        nonlocal failed
        failed += 1
        if failed == 1:
            raise OSError(errno.EMFILE, "too many open files")
        return await accepts_connections(socket)

    async with counted(kubelet) as (face, _), unregistered(kubelet) as (_, register):
        await until(lambda: gives_way(face))
        monkeypatch.setattr(unknown_plugin, "accepts_connections", refused_once)
        await register()
        await until(lambda: face.sockets == [])
        assert failed > 1


async def test_after_its_end_the_kubelet_has_this_plugins_list_again(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, _):
        async with another(kubelet, NAME) as other:
            await until(lambda: says_so(face))
            other.snapshots.set(snapshot(0, 1))
            await until(lambda: kubelet.devices(RESOURCE)["Ascend910-1"] == "Unhealthy")
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)


async def test_one_that_keeps_its_socket_has_ended_once_the_kubelet_has_no_devices(
    client: RecordingClient, folder: Path
) -> None:
    async with (
        Kubelet(NODE, client, folder, seed=1) as kubelet,
        counted(kubelet) as (face, _),
        another(kubelet, NAME) as other,
    ):
        await until(lambda: says_so(face))
        other.servicers[-1].end_streams()
        await until(lambda: kubelet.devices(RESOURCE) == UNHEALTHY)
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)


async def test_one_that_came_and_went_unseen_leaves_no_kubelet_without_devices(
    client: RecordingClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_plugin, "ASK_S", 0.05)
    async with Kubelet(NODE, client, folder, seed=1) as kubelet:
        face = Face(kubelet.socket_dir)  # without the right to read the count
        async with running(face.registration.run()):
            await until(lambda: kubelet.devices(RESOURCE) == HEALTHY)
            async with another(kubelet, NAME):
                pass
            await until(lambda: kubelet.devices(RESOURCE) == UNHEALTHY)
            await until(lambda: kubelet.devices(RESOURCE) == HEALTHY)
            assert face.registration.problem is None


async def test_a_kubelet_without_healthy_devices_is_left_alone_if_no_chip_is_healthy(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_plugin, "ASK_S", 0.0)
    looks = 0
    has_ended = UnknownPlugin.has_ended

    async def counting(plugin: UnknownPlugin, *, has_healthy: bool, stays: Callable[[], Awaitable[bool]]) -> bool:
        nonlocal looks
        looks += not has_healthy
        return await has_ended(plugin, has_healthy=has_healthy, stays=stays)

    monkeypatch.setattr(UnknownPlugin, "has_ended", counting)
    async with counted(kubelet) as (face, _):
        registrations = kubelet.registrations
        face.snapshots.set(snapshot(*range(8)))
        await until(lambda: kubelet.devices(RESOURCE) == UNHEALTHY)
        await until(lambda: looks > 3)
        assert kubelet.registrations == registrations


async def test_restarts_of_the_kubelet_and_upgrades_are_no_other_plugin(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, count):
        for _ in range(3):
            readings = count.readings
            await kubelet.restart()
            await until(lambda: kubelet.devices(RESOURCE) == HEALTHY)
            await count.newer_than(readings)
            assert face.registration.problem is None
        assert face.on_event == []
    # The next instance finds the registrations of the one before.
    async with counted(kubelet) as (face, count):
        assert count.readings
        assert face.registration.problem is None
        assert face.on_event == []


async def test_one_that_registers_first_with_a_new_kubelet_is_noticed(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_plugin, "SAME_PROCESS_S", 0.0)  # this kubelet was started just before
    async with counted(kubelet) as (face, _):
        await kubelet.stop()
        arrived = asyncio.Event()
        hold = face.registration._on_new_kubelet

        async def wait() -> None:
            await arrived.wait()
            await hold()

        face.registration._on_new_kubelet = wait
        await kubelet.start()
        async with another(kubelet, NAME):
            arrived.set()
            await until(lambda: says_so(face))
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)


async def test_registrations_of_other_resources_do_not_count(kubelet: Kubelet) -> None:
    async with counted(kubelet) as (face, count):
        other = Face(kubelet.socket_dir)
        server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(other.servicer(), server)
        server.add_insecure_port(f"unix:{kubelet.socket_dir / NAME}")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{kubelet.plugin_socket}", options=CHANNEL) as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint=NAME, resource_name="example.com/rdma")
            await services.RegistrationStub(channel).Register(request)
        readings = count.readings
        await count.newer_than(readings)
        assert face.registration.problem is None
        other.servicers[-1].end_streams()
        await server.stop(None)


class Found(registration_services.RegistrationServicer):
    """A socket of the kubelet's folder of plugins: what it says it is.

    Attributes:
        asked: how often it was asked.
    """

    def __init__(self, kind: str = "DevicePlugin", name: str = RESOURCE) -> None:
        self._info = registration.PluginInfo(type=kind, name=name, supported_versions=["v1beta1"])
        self.asked = 0

    async def GetInfo(
        self, request: registration.InfoRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> registration.PluginInfo:
        self.asked += 1
        return self._info

    async def NotifyRegistrationStatus(
        self, request: registration.RegistrationStatus, context: grpc.aio.ServicerContext[object, object]
    ) -> registration.RegistrationStatusResponse:
        return registration.RegistrationStatusResponse()

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[None]:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.aio.server()
        registration_services.add_RegistrationServicer_to_server(self, server)
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(None)


@pytest.mark.parametrize("name", ["x-reg.sock", "vendor/reg.sock"])
async def test_a_plugin_that_the_kubelets_watcher_has_found_is_noticed(kubelet: Kubelet, name: str) -> None:
    """The kubelet does not count it as registered."""
    async with counted(kubelet) as (face, _):
        socket = kubelet.socket_dir.parent / "plugins_registry" / name
        async with Found().serving(socket):
            await until(lambda: says_so(face))
            assert f"(socket {socket})" in str(face.registration.problem)
            assert [reason for reason, _ in face.on_event] == [EVENT]
        await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE) == HEALTHY)


async def test_other_sockets_in_the_folder_of_plugins_are_asked_once(folder: Path) -> None:
    driver, other, hidden = Found("CSIPlugin"), Found(name="example.com/x"), Found()
    watched = WatchedPlugins(folder, RESOURCE)
    async with (
        driver.serving(folder / "csi.sock"),
        other.serving(folder / "other.sock"),
        hidden.serving(folder / ".hidden.sock"),
    ):
        for _ in range(3):
            assert await watched.serving() == []
        assert (driver.asked, other.asked, hidden.asked) == (1, 1, 0)
        (folder / "other.sock").unlink()
        async with (again := Found()).serving(folder / "other.sock"):
            assert await watched.serving() == [str(folder / "other.sock")]
            assert again.asked == 1


async def test_a_socket_that_does_not_answer_is_asked_again_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_plugins, "DEADLINE_S", 0.05)
    connected = 0

    def connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.close()

    watched = WatchedPlugins(folder, RESOURCE)
    async with await asyncio.start_unix_server(connect, folder / "mute.sock"):
        assert await watched.serving() == []
        assert (first := connected) > 0
        assert await watched.serving() == []
        assert connected == first
        monkeypatch.setattr(watched_plugins, "ASK_AGAIN_S", 0.0)
        watched = WatchedPlugins(folder, RESOURCE)
        await watched.serving()
        second = connected
        await watched.serving()
        assert connected > second > first


async def test_a_missing_folder_of_plugins_has_none(folder: Path) -> None:
    assert await WatchedPlugins(folder / "none", RESOURCE).serving() == []


class Reading:
    """The parts of a node that the rules look at, without a kubelet: a socket, and a count that the test sets."""

    def __init__(self, folder: Path) -> None:
        self.found: Registrations | Unreachable = Registrations(1, 100.0)
        self.readings = 0
        self.folder = folder
        self.plugin = UnknownPlugin(folder, folder / "none.sock", folder / "registry", self._read, lambda *_: None)

    async def _read(self, resource: str) -> Registrations:
        assert resource == RESOURCE
        self.readings += 1
        if isinstance(self.found, Unreachable):
            raise self.found
        return self.found

    async def look(self, *, written: bool = True) -> None:
        """Look once, after the kubelet has written its checkpoint."""
        if written:
            (self.folder / "new").write_text(str(self.readings))
            (self.folder / "new").rename(self.folder / CHECKPOINT)
        self.plugin._looked_s = self.plugin._read_s = float("-inf")
        await self.plugin.has_ended(has_healthy=False, stays=leaves)


@pytest.fixture
async def node(folder: Path) -> AsyncIterator[Reading]:
    async with await asyncio.start_unix_server(lambda _, writer: writer.close(), folder / NAME):
        yield Reading(folder)


async def test_the_count_is_read_only_after_the_kubelet_has_written_its_checkpoint(node: Reading) -> None:
    await node.look()
    for _ in range(5):
        await node.look(written=False)
    assert node.readings == 1
    await node.look()
    assert node.readings == 2
    assert node.plugin.problem is None


async def test_a_socket_that_changes_without_a_restart_is_no_new_kubelet(node: Reading) -> None:
    node.found = Registrations(7, 100.0)
    await node.look()
    node.plugin.meet_new_kubelet(others_count=True)
    node.plugin.count_own()
    node.found = Registrations(8, 101.0)
    await node.look()
    assert node.plugin.problem is None
    node.found = Registrations(9, 100.0)
    await node.look()
    assert "another device plugin" in str(node.plugin.problem)


async def test_what_cannot_be_read_is_tried_again(node: Reading) -> None:
    await node.look()
    node.found = Unreachable("403 Forbidden")
    await node.look()
    await node.look(written=False)
    assert node.plugin.problem is None
    node.found = Registrations(2, 100.0)
    await node.look(written=False)
    assert "another device plugin" in str(node.plugin.problem)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        (f'kubelet_device_plugin_registration_total{{resource_name="{RESOURCE}"}} 1.2e+06\n', 1_200_000),
        (f'kubelet_device_plugin_registration_total{{resource_name="{RESOURCE}-2c"}} 4\n', 0),
        ('kubelet_device_plugin_registration_total{resource_name="huawei_com/Ascend910"} 4\n', 0),
        ("", 0),
    ],
)
def test_the_kubelets_count_is_that_of_the_resource(page: str, found: int) -> None:
    parsed = parse_registrations(f"# HELP x y\n{page}process_start_time_seconds 1.76388e+09\n", RESOURCE)
    assert parsed == Registrations(found, 1.76388e9)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "404 page not found",
        "process_start_time_seconds soon\n",
        f'process_start_time_seconds 1\nkubelet_device_plugin_registration_total{{resource_name="{RESOURCE}"}} +Inf\n',
    ],
)
def test_a_page_of_another_program_is_no_count(page: str) -> None:
    with pytest.raises(Unreachable, match="metrics"):
        parse_registrations(page, RESOURCE)
