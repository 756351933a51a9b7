"""Reloading settings while a program runs."""

import asyncio
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from ascend.daemon.reload import Outcome, SettingsReload
from ascend.daemon.setting import setting
from ascend.daemon.settings import DaemonSettings, SettingsSource
from ascend.errors import InvalidValue
from tests.device_plugin.api import running, until


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonSettings):
    """A program's settings."""

    prefix: ClassVar[str] = "T_"

    hold_s: float = setting(default=1.0, ge=0, reloaded=True)
    port: int = 1

    def __post_init__(self) -> None:
        if self.hold_s > 50 and self.port == 1:
            raise InvalidValue("hold_s: more than 50 needs another port")


class Program:
    """A program that reloads its settings."""

    def __init__(self, file: Path, *flags: str) -> None:
        source = SettingsSource(Settings, "p", ["--config", str(file), *flags])
        self.on_apply: list[Settings] = []
        self.outcomes: list[Outcome] = []
        self.reload = SettingsReload(
            source, source.read(), self.on_apply.append, count=self.outcomes.append, poll_s=0.01
        )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text("hold_s: 1\n")
    return path


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


async def test_a_changed_file_is_applied_without_a_restart(file: Path) -> None:
    program = Program(file)
    async with running(program.reload.run()):
        file.write_text("hold_s: 30\nlog_level: DEBUG\n")
        await until(lambda: program.outcomes)
    assert program.outcomes == ["applied"]
    assert [each.hold_s for each in program.on_apply] == [30]
    assert program.reload.settings.hold_s == 30
    assert logging.getLogger().level == logging.DEBUG


async def test_a_change_of_a_mounted_config_map_is_noticed(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "settings.yaml").write_text(f"hold_s: {number}\n")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "settings.yaml").symlink_to("..data/settings.yaml")
    program = Program(tmp_path / "settings.yaml")
    async with running(program.reload.run()):
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").replace(tmp_path / "..data")
        await until(lambda: program.outcomes)
    assert program.reload.settings.hold_s == 2


async def test_all_errors_of_a_file_are_logged_and_the_old_settings_stay(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(file)
    file.write_text("hold_s: -5\nport: many\ncolour: red\n")
    assert await program.reload.reload() == "refused"
    logged = capsys.readouterr().out
    assert [word for word in ("hold_s", "'many'", "colour") if word not in logged] == []
    assert (program.reload.settings.hold_s, program.on_apply) == (1, [])
    for broken in ("{", "\x00", "- a list"):
        file.write_text(broken)
        assert await program.reload.reload() == "refused"
    file.write_bytes(b"\xff")
    assert await program.reload.reload() == "refused"
    file.unlink()
    assert await program.reload.reload() == "refused"
    file.write_text("hold_s: 2\n")
    assert await program.reload.reload() == "applied"


async def test_settings_that_need_a_restart_are_named_and_others_applied(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = Program(file)
    file.write_text("hold_s: 7\nport: 2\n")
    assert await program.reload.reload() == "needs_restart"
    assert program.reload.awaiting_restart == ("port",)
    assert (program.reload.settings.hold_s, program.reload.settings.port) == (7, 1)
    assert "port" in capsys.readouterr().out
    file.write_text("hold_s: 7\n")
    assert await program.reload.reload() == "unchanged"
    assert not program.reload.awaiting_restart


async def test_a_setting_that_needs_the_new_value_of_another_waits_for_the_restart_too(file: Path) -> None:
    program = Program(file)
    file.write_text("hold_s: 60\nport: 2\nlog_level: DEBUG\n")
    assert await program.reload.reload() == "needs_restart"
    assert program.reload.awaiting_restart == ("log_level", "hold_s", "port")
    assert (program.reload.settings, program.on_apply) == (Settings(), [])


async def test_a_flag_wins_over_the_changed_file(file: Path) -> None:
    program = Program(file, "--hold-s", "5")
    file.write_text("hold_s: 9\n")
    assert await program.reload.reload() == "unchanged"
    assert program.on_apply == []


async def test_sighup_reloads_at_once_even_without_a_change(file: Path) -> None:
    program = Program(file)
    program.reload._poll_s = 3600.0
    async with running(program.reload.run()):
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: program.outcomes)
    assert program.outcomes == ["unchanged"]


async def test_sighup_while_the_program_ends_does_not_kill_it(file: Path) -> None:
    async with running(Program(file).reload.run()):
        await asyncio.sleep(0)
    assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
