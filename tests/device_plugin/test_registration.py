"""The plugin stays registered whatever happens to the kubelet or to itself; real sockets and the sandbox's kubelet."""

import asyncio
import contextlib
import ctypes
import errno
import gc
import itertools
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from ascend.chips import RESOURCE
from device_plugin.pods.admission_matcher import CAP_S
from device_plugin.publish import order as order_module
from device_plugin.serving import folder_watch
from device_plugin.serving import registration as registration_module
from device_plugin.serving import servicer as servicer_module
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet import Kubelet
from tests.device_plugin.api import NODE, RecordingClient, running, until
from tests.device_plugin.builders import snapshot
from tests.device_plugin.node import HEALTHY, Face, SloppyKubelet, dialled
from tests.device_plugin.small_disk import SmallDisk


def no_instance_left(_: int) -> int:
    ctypes.set_errno(errno.EMFILE)
    return -1


@pytest.fixture(params=["inotify", "no inotify instance left"])
def inotify(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "inotify":
        monkeypatch.setattr(folder_watch, "_libc", SimpleNamespace(inotify_init1=no_instance_left))


@pytest.fixture
async def kubelet(client: RecordingClient, folder: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(NODE, client, folder, seed=1) as kubelet:
        yield kubelet


@pytest.fixture
async def face(kubelet: Kubelet) -> AsyncIterator[Face]:
    """Registered and watched."""
    face = Face(kubelet.socket_dir)
    async with running(face.registration.run()):
        await registered(face, kubelet)
        yield face


async def registered(face: Face, kubelet: Kubelet, times: int = 1) -> None:
    """Wait until this kubelet has accepted that many registrations and shows all devices as healthy."""
    await until(
        lambda: (
            face.registration.problem is None
            and kubelet.registrations == times
            and kubelet.devices(RESOURCE) == HEALTHY
        )
    )


async def test_it_says_why_there_can_be_no_socket_and_registers_later(
    client: RecordingClient, small_disk: SmallDisk
) -> None:
    async with Kubelet(NODE, client, small_disk.path, seed=1) as kubelet:
        small_disk.fill_with_files()
        face = Face(kubelet.socket_dir)
        async with running(face.registration.run()):
            await until(lambda: "No space left on device" in (face.registration.problem or ""))
            assert f"can't listen on {kubelet.socket_dir}" in (face.registration.problem or "")
            small_disk.empty()
            await registered(face, kubelet)


async def test_the_kubelet_shows_the_devices(face: Face, kubelet: Kubelet) -> None:
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 8)
    assert (face.registered("registered"), face.registered("failed")) == (1, 0)


async def test_only_the_owner_can_use_the_socket(face: Face) -> None:
    (socket,) = face.sockets
    mode = socket.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


async def test_after_a_kubelet_restart_it_registers_a_new_socket(face: Face, kubelet: Kubelet) -> None:
    before = face.sockets
    await kubelet.restart()
    await registered(face, kubelet)
    assert face.registered("registered") == 2
    assert len(face.sockets) == 1
    assert face.sockets != before


async def test_a_stopped_kubelet_is_waited_for(face: Face, kubelet: Kubelet) -> None:
    await kubelet.stop()
    kubelet.plugin_socket.unlink(missing_ok=True)
    await until(lambda: face.registration.problem == f"waiting for {kubelet.plugin_socket}")
    await kubelet.start()
    await registered(face, kubelet)


async def test_it_registers_again_if_its_socket_is_removed(face: Face, kubelet: Kubelet) -> None:
    (before,) = face.sockets
    before.unlink()
    await registered(face, kubelet, times=2)
    assert before not in face.sockets


@pytest.mark.parametrize("files", ["kubelet.sock", "*.sock", "*"])
async def test_it_keeps_a_stream_that_works_although_files_of_the_folder_are_deleted(
    face: Face, kubelet: Kubelet, files: str
) -> None:
    for path in face.directory.glob(files):
        path.unlink()
    await asyncio.sleep(3 * registration_module.POLL_S)  # so often it looks at the files at least
    assert face.registration.problem is None
    assert (face.registered("registered"), kubelet.devices(RESOURCE)) == (1, HEALTHY)
    await kubelet.restart()
    await registered(face, kubelet)


async def test_it_registers_again_if_its_stream_ends(face: Face, kubelet: Kubelet) -> None:
    face.servicers[-1].end_streams()
    await registered(face, kubelet, times=2)


async def test_it_stays_registered_through_many_restarts(face: Face, kubelet: Kubelet) -> None:
    for _ in range(5):
        await kubelet.restart()
        await registered(face, kubelet)
    assert len(face.sockets) == 1


async def test_it_registers_again_with_a_kubelet_that_opens_no_stream(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "WATCH_DEADLINE_S", 0.05)
    face = Face(folder)
    async with SloppyKubelet(folder) as kubelet, running(face.registration.run()):
        await until(lambda: len(kubelet.endpoints) >= 3)
        assert face.registration.problem == "the kubelet did not open the stream"
        assert len(set(kubelet.endpoints)) == len(kubelet.endpoints)
        await until(lambda: [each.name for each in face.sockets] == kubelet.endpoints[-1:])


async def test_a_refused_registration_is_a_problem_and_is_retried(folder: Path) -> None:
    face = Face(folder)
    async with SloppyKubelet(folder) as kubelet, running(face.registration.run()):
        kubelet.refuses = True
        await until(lambda: face.registered("failed") >= 2)
        assert face.registration.problem == "the kubelet did not register us: not today"
        kubelet.refuses = False
        await until(lambda: face.registered("registered") == 1)


async def test_a_kubelet_replaced_before_it_answered_is_not_waited_for(
    folder: Path, client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "REGISTER_DEADLINE_S", 1000.0)
    (folder / "device-plugins").mkdir()
    face = Face(folder / "device-plugins")
    async with SloppyKubelet(folder / "device-plugins") as hanging, running(face.registration.run()):
        hanging.hangs = True
        await until(lambda: hanging.endpoints)
        (folder / "device-plugins" / "kubelet.sock").unlink()
        async with Kubelet(NODE, client, folder, seed=1) as kubelet:
            await registered(face, kubelet)
    assert face.registered("failed") == 0


async def test_a_kubelet_that_does_not_answer_gets_more_time_each_attempt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "REGISTER_DEADLINE_S", 0.05)
    face = Face(folder)
    async with SloppyKubelet(folder) as kubelet:
        kubelet.hangs = True
        async with running(face.registration.run()):
            await until(lambda: len(kubelet.endpoints) >= 2)
            assert face.registration._register_deadline_s >= 0.1
            kubelet.hangs = False
            await until(lambda: face.registered("registered") >= 1)


async def test_a_socket_without_a_listener_is_a_failed_registration(folder: Path, client: RecordingClient) -> None:
    (folder / "device-plugins").mkdir()
    (folder / "device-plugins" / "kubelet.sock").touch()
    face = Face(folder / "device-plugins")
    async with running(face.registration.run()):
        await until(lambda: face.registered("failed") >= 1)
        assert "the kubelet did not register us" in (face.registration.problem or "")
        (folder / "device-plugins" / "kubelet.sock").unlink()
        async with Kubelet(NODE, client, folder, seed=1) as kubelet:
            await registered(face, kubelet)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Python does not collect garbage at once."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
async def test_refusals_of_a_dead_kubelet_do_not_delay_the_next_one(folder: Path, client: RecordingClient) -> None:
    (folder / "device-plugins").mkdir()
    path = folder / "device-plugins" / "kubelet.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    face = Face(folder / "device-plugins")
    async with running(face.registration.run()):
        await until(lambda: face.registered("failed") >= 1)
        path.unlink()
        await until(lambda: face.registration.problem == f"waiting for {path}")
        refused = face.registered("failed")
        async with Kubelet(NODE, client, folder, seed=1) as kubelet:
            await registered(face, kubelet)
    assert face.registered("failed") == refused


async def test_only_sockets_of_earlier_instances_are_removed(folder: Path) -> None:
    stale, foreign, served = (folder / name for name in ("ascend910-1-7.sock", "other.sock", "ascend910-2-1.sock"))
    stale.touch()
    foreign.touch()
    face = Face(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(served))
        listener.listen()
        async with SloppyKubelet(folder) as kubelet, running(face.registration.run()):
            await until(lambda: kubelet.endpoints)
            assert not stale.exists()
            assert foreign.exists()
            assert served.exists()
        served.unlink()
    assert face.sockets == []


async def test_the_callback_for_a_new_kubelet_runs_before_the_registration(face: Face, kubelet: Kubelet) -> None:
    await registered(face, kubelet)
    assert face.new_kubelets == 0
    await kubelet.restart()
    await registered(face, kubelet)
    assert face.new_kubelets == 1


async def test_on_shutdown_the_streams_end_without_errors(folder: Path) -> None:
    face = Face(folder)
    async with SloppyKubelet(folder) as kubelet, running(face.registration.run()) as registering:
        await until(lambda: kubelet.endpoints)
        async with dialled(folder / kubelet.endpoints[0]) as stub:
            stream = stub.ListAndWatch(pb.Empty())
            assert len((await anext(aiter(stream))).devices) == 8
            ending = asyncio.create_task(drained(stream))
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            assert await ending == 0
    assert face.sockets == []


async def drained(stream: object) -> int:
    """Count the messages until the stream ends; raise if it ends with an error."""
    count = 0
    async for _ in stream:  # type: ignore[attr-defined]  # a call of grpc.aio
        count += 1
    return count


async def test_a_fault_is_sent_to_the_kubelet_after_the_report_has_it(
    face: Face, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 60.0)
    face.snapshots.set(snapshot(3))
    asyncio.get_running_loop().call_later(0.2, face.order.reported_unhealthy.set, 0b1000)
    await kubelet.until(lambda: kubelet.devices(RESOURCE)["Ascend910-3"] == "Unhealthy")
    assert face.order.reported_unhealthy.value == 0b1000


async def test_a_fault_that_cannot_be_reported_is_sent_to_the_kubelet(
    face: Face, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 0.05)
    face.snapshots.set(snapshot(3))
    await kubelet.until(lambda: kubelet.devices(RESOURCE)["Ascend910-3"] == "Unhealthy")
    assert face.order.reported_unhealthy.value == 0
    face.snapshots.set(snapshot())
    await kubelet.until(lambda: kubelet.devices(RESOURCE) == HEALTHY)


async def test_a_recovery_is_sent_to_the_kubelet_at_once(
    face: Face, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 60.0)
    face.order.reported_unhealthy.set(0b1000)
    face.snapshots.set(snapshot(3))
    await kubelet.until(lambda: kubelet.devices(RESOURCE)["Ascend910-3"] == "Unhealthy")
    face.snapshots.set(snapshot())
    await kubelet.until(lambda: kubelet.devices(RESOURCE) == HEALTHY)
    assert face.order.reported_unhealthy.value == 0b1000


async def test_it_registers_again_if_making_the_device_list_fails(
    face: Face, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("an internal error")

    monkeypatch.setattr(servicer_module, "device_list", fail)
    face.snapshots.set(snapshot(3))
    await until(lambda: len(face.servicers) >= 3)
    monkeypatch.undo()
    await until(lambda: face.registration.problem is None and kubelet.devices(RESOURCE).get("Ascend910-3") is not None)


async def test_a_replaced_folder_is_noticed(face: Face, kubelet: Kubelet) -> None:
    await kubelet.stop()
    kubelet.socket_dir.rename(kubelet.socket_dir.with_name("replaced"))
    kubelet.socket_dir.mkdir()
    await kubelet.start()
    await registered(face, kubelet)
    assert len(face.sockets) == 1


class Outage:
    """Measure how long the kubelet is without the plugin."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    def is_within(self, limit_s: float) -> bool:
        return self._loop.time() - self._began_s <= limit_s


@pytest.mark.usefixtures("inotify")
@pytest.mark.parametrize("what", ["kubelet restarted", "socket wiped", "stream ended", "folder replaced"])
async def test_it_is_registered_again_within_a_second(face: Face, kubelet: Kubelet, what: str) -> None:
    # The best of three, because the machine may be busy; `make bench` has the figures.
    for attempt in range(3):
        times = kubelet.registrations + 1
        match what:
            case "kubelet restarted":
                await kubelet.restart()
                times = 1
            case "folder replaced":
                await kubelet.stop()
                kubelet.socket_dir.rename(kubelet.socket_dir.with_name(f"replaced-{attempt}"))
                kubelet.socket_dir.mkdir()
                await kubelet.start()
                times = 1
            case "socket wiped":
                face.sockets[0].unlink()
            case "stream ended":
                face.servicers[-1].end_streams()
        outage = Outage()
        await registered(face, kubelet, times)
        if outage.is_within(1.0):
            return
    raise AssertionError(what)


async def test_a_kubelet_that_opens_no_stream_is_retried_with_backoff(folder: Path) -> None:
    face = Face(folder)
    loop = asyncio.get_running_loop()
    asked_s: list[float] = []
    async with SloppyKubelet(folder) as kubelet, running(face.registration.run()):
        for number in range(1, 5):
            await until(lambda number=number: len(kubelet.endpoints) >= number)  # type: ignore[misc]  # bound in a loop
            asked_s.append(loop.time())
    gaps = [later - earlier for earlier, later in itertools.pairwise(asked_s)]
    assert gaps[0] <= 1.0
    assert gaps[0] < gaps[1] < gaps[2]


async def test_a_new_kubelet_ends_the_backoff_of_a_refusing_one(
    folder: Path, client: RecordingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration_module, "FIRST_WAIT_S", 60.0)
    monkeypatch.setattr(registration_module, "WAIT_LIMIT_S", 60.0)
    (folder / "device-plugins").mkdir()
    face = Face(folder / "device-plugins")
    async with running(face.registration.run()):
        async with SloppyKubelet(folder / "device-plugins") as odd:
            odd.refuses = True
            await until(lambda: face.registration.problem == "the kubelet did not register us: not today")
        (folder / "device-plugins" / "kubelet.sock").unlink(missing_ok=True)
        async with Kubelet(NODE, client, folder, seed=1) as kubelet:
            await registered(face, kubelet)


async def test_the_backoff_starts_over_with_a_new_kubelet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "WAIT_LIMIT_S", 60.0)
    face = Face(folder)
    async with running(face.registration.run()):
        async with SloppyKubelet(folder) as odd:
            odd.refuses = True
            await until(lambda: len(odd.endpoints) >= 6)
        (folder / "kubelet.sock").unlink(missing_ok=True)
        async with SloppyKubelet(folder) as fresh:
            fresh.refuses = True
            # After six refusals the next waits would be one, two and four seconds.
            await until(lambda: len(fresh.endpoints) >= 4, timeout_s=3.0)


async def test_a_cancellation_while_the_server_stops_is_not_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # gRPC's server swallows a cancellation that arrives when it has just stopped.
    stopping = asyncio.Event()
    stop = grpc.aio.Server.stop

    async def swallow(server: grpc.aio.Server, grace: float | None) -> None:
        await stop(server, grace)
        stopping.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    face = Face(folder)
    async with SloppyKubelet(folder) as odd:
        odd.refuses = True
        monkeypatch.setattr(type(grpc.aio.server()), "stop", swallow)
        registering = asyncio.create_task(face.registration.run())
        await stopping.wait()
        registering.cancel()
        ended, _ = await asyncio.wait({registering}, timeout=5.0)
        monkeypatch.undo()
        registering.cancel()
    assert ended


async def test_a_stream_that_waits_for_the_report_counts_as_opened(
    face: Face, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 60.0)
    monkeypatch.setattr(registration_module, "WATCH_DEADLINE_S", 0.01)
    face.snapshots.set(snapshot(3))
    await kubelet.restart()
    await until(lambda: face.servicers[-1].opened.is_set() and kubelet.registrations == 1)
    servicer = face.servicers[-1]
    # Much longer than the deadline for opening the stream.
    await asyncio.sleep(0.3)
    assert face.servicers[-1] is servicer
    assert not servicer.watched.is_set()
    assert face.registration.problem is not None
    face.order.reported_unhealthy.set(0b1000)
    await until(lambda: face.registration.problem is None)


async def test_on_shutdown_a_pending_call_is_answered_before_its_deadline(folder: Path) -> None:
    face = Face(folder)
    async with SloppyKubelet(folder) as kubelet, running(face.registration.run()) as registering:
        await until(lambda: kubelet.endpoints)
        async with dialled(folder / kubelet.endpoints[0]) as stub:
            # No pod matches, so the call waits for seconds.
            request = pb.ContainerAllocateRequest(devices_ids=["Ascend910-0"])
            call = stub.Allocate(pb.AllocateRequest(container_requests=[request]))
            await until(face.matcher._one_at_a_time.locked)
            ending = Outage()
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
            assert ending.is_within(CAP_S)
            with pytest.raises(grpc.aio.AioRpcError, match="no pod bound to this node waits for 1 chip"):
                await call
