"""The program: its settings, its start and its end."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ascend.chips import RESOURCE
from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue
from device_plugin.cli import main
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.settings import Settings
from sandbox.cluster import save_server
from tests.device_plugin.node import HEALTHY
from tests.device_plugin.whole import Whole, as_given, whole_node


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ascend-device-plugin", *arguments])
    main()


def test_on_without_quotes_in_the_file_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node_name: n1\nhot_reset: on\n")
    with pytest.raises(InvalidValue) as refused:
        SettingsSource(Settings, "p", ["--config", str(file)]).read()
    assert "hot_reset: must be 'off', 'dry-run' or 'on' (got True); YAML reads on and off without quotes as" in str(
        refused.value
    )


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("node_name: from-file\nhost_ip: 10.0.0.1\nscan_period_s: 4\ninjection: devices\n")
    monkeypatch.setenv("ASCEND_DP_SCAN_PERIOD_S", "3")
    monkeypatch.setenv("ASCEND_DP_INJECTION", "runtime")
    settings = SettingsSource(Settings, "p", ["--config", str(file), "--scan-period-s", "2"]).read()
    assert (settings.node_name, settings.host_ip) == ("from-file", "10.0.0.1")
    assert (settings.injection, settings.scan_period_s) == ("runtime", 2)
    assert settings.device_plugin_dir == Path("/var/lib/kubelet/device-plugins")


def test_all_settings_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n7")
    monkeypatch.setenv("ASCEND_DP_HTTP_ADDRESS", "[::]:9000")
    monkeypatch.setenv("NODE_NAME", "somebody else's")
    settings = SettingsSource(Settings, "p", []).read()
    assert (settings.node_name, settings.http_address) == ("n7", "[::]:9000")


def test_all_invalid_settings_are_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("colour: red\nscan_period_s: 0\n")
    monkeypatch.setenv("ASCEND_DP_INJECTION", "magic")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--config", str(file), "--http-address", "nowhere", "--driver", "dcmi", "--log-level", "LOUD")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("ascend-device-plugin: ")
    wrong = ("node_name: must be given\n", "colour", "scan_period_s", "'magic'", "'nowhere'", "'LOUD'")
    assert [word for word in wrong if word not in said] == []


@pytest.mark.parametrize("given", ["scan_period_s: 6\n", "stale_s: 1.5\n", "scan_period_s: 30\nstale_s: 59\n"])
def test_the_scan_period_is_at_most_half_of_the_stale_time(tmp_path: Path, given: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(f"node_name: n1\n{given}")
    with pytest.raises(InvalidValue, match=r"scan_period_s: [\d.]+ is more than half of stale_s"):
        SettingsSource(Settings, "p", ["--config", str(file)]).read()
    file.write_text("node_name: n1\nscan_period_s: 30\nstale_s: 60\n")
    assert SettingsSource(Settings, "p", ["--config", str(file)]).read().scan_period_s == 30


def test_run_is_the_default_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "run", "--node-name", "n1", "--injection", "magic")
    assert ended.value.code == 2
    assert "'magic'" in capsys.readouterr().err


def test_an_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--node-name", "n1", "--colour", "red")
    assert ended.value.code == 2
    assert "--colour" in capsys.readouterr().err


class Program:
    """The plugin as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.logged: list[dict[str, Any]] = []

    async def logs(self, event: str) -> None:
        """Wait for a log line."""
        assert self._process.stdout is not None
        async with asyncio.timeout(20.0):
            while line := await self._process.stdout.readline():
                self.logged.append(msgspec.json.decode(line))
                if self.logged[-1]["event"] == event:
                    return
        raise AssertionError(f"the program ended without {event!r}: {self.logged}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def ended_by(self, number: signal.Signals) -> tuple[int, bytes]:
        """Send a signal; return the exit status and standard error."""
        self.send(number)
        async with asyncio.timeout(20.0):
            _, printed = await self._process.communicate()
        return self._process.returncode or 0, printed


@asynccontextmanager
async def program(whole: Whole, file: Path | None = None, *from_file: str, **changes: Any) -> AsyncIterator[Program]:
    """Run it; with a file, these settings are read from there."""
    settings = as_given(whole.settings(**changes))
    for name in from_file:
        del settings[name]
    if file is not None:
        settings["config"] = str(file)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from device_plugin.cli import main; main()",
        *(f"--{name.replace('_', '-')}={value}" for name, value in settings.items()),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_ends_the_streams_and_exits_with_0(folder: Path, number: signal.Signals) -> None:
    async with whole_node(folder) as whole, program(whole) as running:
        kubelet = whole.node.kubelet
        await kubelet.until(lambda: kubelet.devices(RESOURCE) == HEALTHY, timeout_s=20.0)
        status, printed = await running.ended_by(number)
        assert (status, printed) == (0, b"")
        await kubelet.until(lambda: set(kubelet.devices(RESOURCE).values()) == {"Unhealthy"}, timeout_s=1.0)
        assert not list(kubelet.socket_dir.glob("ascend910-*.sock"))


async def test_a_driver_that_hangs_does_not_delay_the_shutdown(folder: Path) -> None:
    async with whole_node(folder) as whole:
        server = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
        async with program(whole) as running:
            await running.logs("registered")
            server.delay_s = 3600.0
            save_server(server, whole.node.state_file)
            await running.logs("the driver can't be read")
            assert (await running.ended_by(signal.SIGTERM)) == (0, b"")


async def test_an_address_in_use_is_one_sentence_and_exit_status_1(folder: Path) -> None:
    async with whole_node(folder) as whole:
        taken = whole.cluster.server.url.removeprefix("http://")
        async with program(whole, http_address=taken) as running:
            async with asyncio.timeout(20.0):
                _, printed = await running._process.communicate()
            assert running._process.returncode == 1
            assert printed.startswith(f"ascend-device-plugin: cannot listen on {taken}:".encode())
            assert printed.count(b"\n") == 1


async def test_a_missing_node_object_is_waited_for(folder: Path) -> None:
    async with whole_node(folder) as whole, program(whole, node_name="later") as running:
        await running.logs("waiting for this node's Node object")
        status = {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}
        await whole.cluster.server.create(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "later"}, "status": status}
        )
        await running.logs("learned this node's address")
        assert running.logged[-1]["address"] == "10.0.0.9"


async def test_a_missing_node_object_does_not_delay_the_driver(folder: Path) -> None:
    async with whole_node(folder) as whole, program(whole, node_name="later") as running:
        await running.logs("discovered")
        assert not list(whole.node.kubelet.socket_dir.glob("ascend910-*.sock"))
        await whole.cluster.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "later"}})
        await running.logs("registered")


@pytest.mark.parametrize("what", ["mindx-dl-fault-config", "mindx-dl-deviceinfo-"])
async def test_initial_reads_are_retried(folder: Path, what: str) -> None:
    async with whole_node(folder) as whole:
        whole.cluster.server.fail_next("GET", f"configmaps/{what}", 503, times=1)
        async with program(whole) as running:
            await running.logs("initial read failed, retrying")
            assert not list(whole.node.kubelet.socket_dir.glob("ascend910-*.sock"))
            await running.logs("registered")


async def test_settings_are_read_again_while_the_node_object_is_missing(folder: Path) -> None:
    file = folder / "settings.yaml"
    file.write_text("stale_s: 10\n")
    async with whole_node(folder) as whole, program(whole, file, "stale_s", node_name="later") as running:
        await running.logs("waiting for this node's Node object")
        running.send(signal.SIGHUP)
        await running.logs("reloaded settings, nothing has changed")
        file.write_text("stale_s: 20\n")
        running.send(signal.SIGHUP)
        await running.logs("applied changed settings")
        assert running.logged[-1]["stale_s"] == "20.0"
