"""The program: its exit status and what it prints."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

from allocator.cli import main
from allocator.settings import Settings
from ascend.daemon import run as run_module
from ascend.errors import LeadershipLost
from sandbox.apiserver import ApiServer
from tests.allocator.harness import write_kubeconfig


def no_logs(_program: str, *, level: str) -> None:
    """Leave the logs of the test process as they are."""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    """Run the program in this process."""
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
    printed = capsys.readouterr().err
    assert all(word in printed for word in ("reservation_ttl_s", "colour", "'nowhere'", "log_level"))


@pytest.mark.parametrize("content", [None, "{ not yaml"])
def test_an_unreadable_settings_file_is_an_error(
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
def test_a_signal_ends_a_daemon_without_an_error(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = False

    async def serve(_settings: Settings, _source: object) -> None:
        nonlocal ended
        signal.raise_signal(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    monkeypatch.setattr(run_module, "configure_logs", no_logs)
    run_module.run_daemon("test", Settings, serve, [])
    assert ended


def test_an_error_of_a_task_ends_a_daemon_with_its_sentence_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise LeadershipLost("the lease is lost")

    async def serve(_settings: Settings, _source: object) -> None:
        async with asyncio.TaskGroup() as outer:
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fail())
            outer.create_task(asyncio.sleep(0))

    monkeypatch.setattr(run_module, "configure_logs", no_logs)
    with pytest.raises(SystemExit) as ended:
        run_module.run_daemon("test", Settings, serve, [])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "test: the lease is lost\n"


async def test_sigterm_ends_the_program_with_status_0(tmp_path: Path) -> None:
    async with ApiServer() as server:
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from allocator.cli import main; main()",
            f"--kubeconfig={write_kubeconfig(tmp_path, server)}",
            "--extender-address=127.0.0.1:0",
            "--grpc-address=127.0.0.1:0",
            stdout=asyncio.subprocess.PIPE,
        )
        assert program.stdout is not None
        async for line in program.stdout:
            if b'"ready"' in line:
                break
        program.send_signal(signal.SIGTERM)
        rest = await program.stdout.read()
        assert await program.wait() == 0
        assert b"Traceback" not in rest


async def test_sighup_reads_the_settings_again_whoever_answers(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("log_level: INFO\n")
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from allocator.cli import main; main()",
        f"--config={file}",
        f"--kubeconfig={write_kubeconfig(tmp_path, ApiServer())}",  # an API server that does not run
        "--extender-address=127.0.0.1:0",
        "--grpc-address=127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE,
    )
    output = program.stdout
    assert output is not None

    async def logs(event: bytes) -> bytes:
        async with asyncio.timeout(20.0):
            async for line in output:
                if event in line:
                    return line
        raise AssertionError(f"it ended without {event!r}")

    try:
        await logs(b'"listening"')
        file.write_text("log_level: DEBUG\nreservation_ttl_s: 40\n")
        program.send_signal(signal.SIGHUP)
        assert b"reservation_ttl_s" in await logs(b'"changed settings need a restart"')
        await logs(b'"applied changed settings"')
        program.send_signal(signal.SIGTERM)
        assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()


def test_an_address_in_use_is_reported_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "configure_logs", no_logs)
    kubeconfig = write_kubeconfig(tmp_path, ApiServer())
    with socket.create_server(("127.0.0.1", 0)) as used:
        address = f"127.0.0.1:{used.getsockname()[1]}"
        with pytest.raises(SystemExit) as ended:
            run(monkeypatch, "--kubeconfig", str(kubeconfig), "--extender-address", address)
    assert ended.value.code == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("ascend-allocator: ")
    assert address in sentence
