"""Without file descriptors, or with a folder that can't be read, the plugin knows less and goes on."""

import asyncio
import json
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue, LockLost, Refusal
from device_plugin.device_types import WHOLE_CHIPS
from device_plugin.kubelet.pods_api import Registrations
from device_plugin.pods.cdi_file import ContainerInjector, list_folder
from device_plugin.pods.container_edits import CDI_FILE
from device_plugin.serving import other_plugin
from device_plugin.serving.instance_lock import NAME, InstanceLock
from device_plugin.serving.other_plugin import OtherPlugin, accepts_connections, socket_of
from device_plugin.serving.unknown_plugin import UnknownPlugin
from device_plugin.settings import Settings
from tests.device_plugin.api import until
from tests.device_plugin.test_unknown_plugin import leaves
from tests.device_plugin.whole import Whole, as_given, whole_node

SPARE = 8


@asynccontextmanager
async def without_descriptors() -> AsyncIterator[None]:
    """Within the block this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def listener(path: Path) -> AsyncIterator[None]:
    """A program that listens on a socket."""
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
    async with server:
        yield


def unheard(_reason: str, _sentence: str, _is_warning: bool) -> None:  # noqa: FBT001 - an announcer's signature
    """Take an Event."""


async def test_another_plugin_that_can_not_be_looked_for_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(other_plugin, "POLL_S", 0.0)
    plugin = OtherPlugin(tmp_path, unheard)
    async with without_descriptors():
        # It may serve: this plugin does not register beside it.
        assert await plugin.serves()
    assert not await plugin.serves()
    async with without_descriptors():
        assert not await plugin.serves()
        assert not await plugin.serves()
        assert "Too many open files" in str(plugin.unknown)
    async with listener(tmp_path / socket_of(WHOLE_CHIPS)):
        assert await plugin.serves()
        assert plugin.unknown is None
        async with without_descriptors():
            assert await plugin.serves()
            with pytest.raises(OSError, match="Too many open files"):
                await accepts_connections(tmp_path / socket_of(WHOLE_CHIPS))
    assert not await plugin.serves()
    assert not [each for each in caplog.records if each.levelname == "ERROR"]


async def test_an_unknown_plugin_has_not_ended_because_nobody_can_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("device_plugin.serving.unknown_plugin.LOOK_S", 0.0)
    monkeypatch.setattr("device_plugin.serving.unknown_plugin.READ_S", 0.0)
    (tmp_path / "registry").mkdir()
    counts = iter((0, 1))

    async def registrations(_resource: str) -> Registrations:
        return Registrations(next(counts), 0.0)

    plugin = UnknownPlugin(tmp_path, tmp_path / "none.sock", tmp_path / "registry", registrations, unheard)
    async with listener(tmp_path / "vendor.sock"):
        for content in ("", "another"):
            (tmp_path / "kubelet_internal_checkpoint").write_text(content)
            assert not await plugin.has_ended(has_healthy=False, stays=leaves)
        assert "vendor.sock" in str(plugin.problem)
        async with without_descriptors():
            assert not await plugin.has_ended(has_healthy=False, stays=leaves)
            assert "Too many open files" in str(plugin.unknown)
        assert not await plugin.has_ended(has_healthy=False, stays=leaves)
        assert plugin.unknown is None
    assert await plugin.has_ended(has_healthy=False, stays=leaves)


async def test_a_lock_that_can_not_be_taken_again_is_tried_later(tmp_path: Path) -> None:
    lock, second = InstanceLock(tmp_path), InstanceLock(tmp_path)
    async with lock.held():
        (tmp_path / NAME).unlink()
        async with without_descriptors():
            with pytest.raises(OSError, match="Too many open files"):
                lock.renew()
            assert lock.is_still_ours()
        (tmp_path / NAME).unlink(missing_ok=True)
        async with second.held():
            with pytest.raises(LockLost):
                lock.renew()
            assert not lock.is_still_ours()


async def test_device_nodes_and_cdi_files_that_can_not_be_read_are_not_taken_for_missing(tmp_path: Path) -> None:
    (tmp_path / "davinci_manager").touch()
    injector = ContainerInjector("cdi", tmp_path, tmp_path)
    injector.prepare((0, 1))
    before = (tmp_path / CDI_FILE).read_bytes()
    async with without_descriptors():
        with pytest.raises(Refusal, match="can't be read: Too many open files"):
            list_folder(tmp_path)
        with pytest.raises(Refusal, match="can't be read: Too many open files"):
            injector.prepare((2,))
    assert (tmp_path / CDI_FILE).read_bytes() == before
    injector.prepare((2,))
    assert {each["name"] for each in json.loads((tmp_path / CDI_FILE).read_bytes())["devices"]} >= {"0", "1", "2"}


@asynccontextmanager
async def program(
    whole: Whole, folder: Path, **changes: object
) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """The installed device plugin, and the port of its pages."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    file = folder / "settings.json"
    file.write_text(json.dumps(as_given(whole.settings(http_address=f"127.0.0.1:{port}", **changes))))
    command = [str(Path(sys.executable).with_name("ascend-device-plugin")), "run", "--config", str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        await until(lambda: process.returncode is not None or whole.offers_chips(0xFF), timeout_s=60)
        assert process.returncode is None
        yield process, port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def test_the_program_goes_on_without_descriptors_and_recovers(folder: Path) -> None:
    async with whole_node(folder) as whole, program(whole, folder) as (process, port):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as http:

            async def page(path: str) -> str:
                async with http.get(f"http://127.0.0.1:{port}/{path}") as answer:
                    return await answer.text()

            async def says(text: str) -> None:
                async with asyncio.timeout(30):
                    while text not in await page("readyz"):  # noqa: ASYNC110 - a program of its own
                        await asyncio.sleep(0.1)

            await says("[+] kubelet: ok")
            limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
            await says("can't look for other plugins: [Errno 24] Too many open files")
            # The kubelet restarts: this plugin can't register with it, and tries again.
            await whole.node.kubelet.restart()
            await says("Too many open files")
            await asyncio.sleep(2)  # longer than the look for other plugins
            assert process.returncode is None
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
            await says("[+] kubelet: ok")
        await until(lambda: whole.offers_chips(0xFF), timeout_s=30)
        await whole.bind("a", 0, 1)
        await whole.claimed("a")
        assert whole.visible("a") == (0, 1)


async def test_settings_that_can_not_be_read_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"node_name": "n1"}')
    source = SettingsSource(Settings, "ascend-device-plugin", ["--config", str(file)])
    source.read()
    file.write_text('{"node_name": "n1", "log_level": "DEBUG"}')
    async with without_descriptors():
        with pytest.raises(InvalidValue, match="Too many open files"):
            source.read()
    assert source.has_changed()
    assert source.read().log_level == "DEBUG"
    assert not source.has_changed()
