"""Reading a program's settings, and the errors of wrong ones."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ascend.daemon.settings import Address, DaemonSettings, SettingsSource, fixed_settings
from ascend.errors import InvalidValue


class Settings(DaemonSettings):
    """A program's settings."""

    model_config = SettingsConfigDict(env_prefix="T_", extra="forbid")

    hold_s: float = Field(default=1.0, gt=0)
    port: int = 1
    insecure: bool = False
    names: list[str] = Field(default=[])
    kinds: list[Literal["pods", "nodes"]] = Field(default=[])
    label: str = Field(default="a", min_length=1)
    address: Address = "127.0.0.1:0"

    @model_validator(mode="after")
    def _agrees(self) -> "Settings":
        if self.port == 99:
            raise ValueError("port: 99 is taken")
        return self


def errors(*arguments: str) -> list[str]:
    with pytest.raises(InvalidValue) as refused:
        SettingsSource(Settings, "program", arguments).read()
    first, *lines = refused.value.message.splitlines()
    assert first == "the settings are not valid:"
    return [line.removeprefix("  ") for line in lines]


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--hold-s=0", "hold_s: must be greater than 0 (got '0')"),
        ("--hold-s=x", "hold_s: must be a number (got 'x')"),
        ("--port=1.5", "port: must be an integer (got '1.5')"),
        ("--insecure=maybe", "insecure: must be true or false (got 'maybe')"),
        ("--kinds=x", "kinds.0: must be 'pods' or 'nodes' (got 'x')"),
        ("--label=", "label: must have at least 1 character (got '')"),
        ("--address=x", "address: 'x' is not an address like 127.0.0.1:8080 (got 'x')"),
        ("--log-level=loud", "log_level: must be 'DEBUG', 'INFO', 'WARNING' or 'ERROR' (got 'LOUD')"),
        ("--port=99", "port: 99 is taken"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(flag: str, sentence: str) -> None:
    assert errors(flag) == [sentence]


def test_an_unknown_setting_is_named_with_the_most_similar_one(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hold: 2\ncolour: red\n7: 8\n")
    assert errors("--config", str(file)) == [
        "hold: there is no such setting; did you mean hold_s? (got 2)",
        "colour: there is no such setting (got 'red')",
        "7: there is no such setting (got 8)",
    ]


def test_a_list_in_the_environment_that_is_not_json_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("T_NAMES", "a,b")
    assert errors() == ['names: the variable T_NAMES must be JSON, like ["a", "b"]']
    monkeypatch.setenv("T_NAMES", '["a", "b"]')
    assert SettingsSource(Settings, "program", []).read().names == ["a", "b"]


@pytest.mark.parametrize("level", ["debug", "Debug", "DEBUG"])
def test_the_log_level_may_be_in_any_case(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SettingsSource(Settings, "program", ["--log-level", level]).read().log_level == "DEBUG"
    assert fixed_settings(Settings, None, {"log-level": level}).log_level == "DEBUG"
    monkeypatch.setenv("T_LOG_LEVEL", level)
    assert SettingsSource(Settings, "program", []).read().log_level == "DEBUG"


@pytest.mark.parametrize("kind", [Settings, DaemonSettings])
def test_the_version_is_printed(kind: type[BaseSettings], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        SettingsSource(kind, "program", ["--port=0", "--version"]).read()
    assert (end.value.code, capsys.readouterr().out) == (0, f"program {version('ascend-affinity')}\n")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        SettingsSource(Settings, "program", ["--help"]).read()
    out = capsys.readouterr().out
    assert end.value.code == 0
    assert [flag for flag in ("--hold-s", "--config", "--version", "--log-level") if flag not in out] == []


@pytest.mark.parametrize(("text", "loads_yaml"), [('{"log_level": "DEBUG"}', False), ("log_level: DEBUG", True)])
def test_a_json_file_does_not_need_the_yaml_parser(tmp_path: Path, text: str, *, loads_yaml: bool) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    program = (
        "import sys\n"
        "import ascend.daemon.run, device_plugin.app\n"
        "from ascend.daemon.settings import SettingsSource\n"
        "from device_plugin.settings import Settings\n"
        f"arguments = ['--config={file}', '--node-name=n1']\n"
        "settings = SettingsSource(Settings, 'ascend-device-plugin', arguments).read()\n"
        "print(settings.log_level, 'yaml' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == f"DEBUG {loads_yaml}\n", done.stderr


@pytest.mark.parametrize("text", ["{", "a: [", "log_level: {}: 3"])
def test_a_file_that_is_neither_json_nor_yaml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    with pytest.raises(InvalidValue, match=re.escape(f"--config: {file}: ")):
        SettingsSource(Settings, "program", [f"--config={file}"]).read()
