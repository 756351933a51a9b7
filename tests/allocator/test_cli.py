"""The program: its settings, and how it starts and stops."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
import yaml

from allocator.cli import main
from allocator.settings import Settings
from ascend.daemon.settings import read_settings
from sandbox.apiserver import ApiServer


def test_flags_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("reservation_ttl_s: 7\nlog_level: DEBUG\ngrpc_address: 127.0.0.1:1\n")
    monkeypatch.setenv("ASCEND_ALLOCATOR_LOG_LEVEL", "WARNING")
    monkeypatch.setenv("ASCEND_ALLOCATOR_GRPC_ADDRESS", "127.0.0.1:2")
    settings = read_settings(Settings, "p", ["--config", str(file), "--grpc-address", "unix:/run/a.sock"])
    assert settings.reservation_ttl_s == 7
    assert settings.log_level == "WARNING"
    assert settings.grpc_address == "unix:/run/a.sock"
    assert settings.extender_address == "127.0.0.1:8080"


def test_the_file_may_be_named_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("reservation_ttl_s: 7\n")
    monkeypatch.setenv("ASCEND_ALLOCATOR_CONFIG", str(file))
    assert read_settings(Settings, "p", []).reservation_ttl_s == 7


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ascend-allocator", *arguments])
    main()


def test_all_invalid_settings_are_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("reservation_ttl_s: -1\ncolour: red\n")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--config", str(file), "--extender-address", "nowhere", "--log-level", "LOUD")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("reservation_ttl_s", "colour", "'nowhere'", "log_level"))


@pytest.mark.parametrize("content", [None, "{ not yaml"])
def test_a_file_that_can_not_be_read_is_an_error(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "--config", str(file))
    assert ended.value.code == 2
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_asked_to_stop_it_exits_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from allocator.cli import main; main()",
            f"--kubeconfig={kubeconfig}",
            "--extender-address=127.0.0.1:0",
            "--grpc-address=127.0.0.1:0",
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdout is not None
        async for line in program.stdout:
            if b'"ready"' in line:
                break
        program.send_signal(number)
        rest = await program.stdout.read()
        assert await program.wait() == 0
        assert b"Traceback" not in rest


async def test_an_address_in_use_is_one_sentence_and_exit_status_1(tmp_path: Path) -> None:
    async with ApiServer() as server:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(server.kubeconfig()))
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from allocator.cli import main; main()",
            f"--kubeconfig={kubeconfig}",
            f"--extender-address={server.url.removeprefix('http://')}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await program.communicate()
        assert program.returncode == 1
        assert said.startswith(b"ascend-allocator: cannot listen on 127.0.0.1:")
        assert said.count(b"\n") == 1
