"""Reading a program's settings, and the errors of wrong ones."""

import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from ascend.daemon.setting import setting
from ascend.daemon.settings import DaemonSettings, ProgramSettings, SettingsSource, checked_address, fixed_settings
from ascend.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Settings(DaemonSettings):
    """A program's settings."""

    prefix: ClassVar[str] = "T_"

    hold_s: float = setting(default=1.0, gt=0)
    port: int = 1
    insecure: bool = False
    names: list[str] = setting(default=[], parse=str.lower)
    kinds: list[Literal["pods", "nodes"]] = setting(default=[])
    label: str = setting(default="a", min_length=1)
    percent: int = setting(default=5, ge=0, le=100, description="as a number, not as 5%")
    owners: list[str] = setting(default=["me"], min_length=1)
    folder: Path | None = None
    address: str = setting(default="127.0.0.1:0", parse=checked_address)

    def __post_init__(self) -> None:
        if self.port == 99:
            raise InvalidValue("port: 99 is taken")


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
        ("--percent=101", "percent: must be at least 0 and at most 100 (got '101')"),
        ("--owners=[]", "owners: must have at least 1 item (got [])"),
        ("--owners=[1]", "owners.0: must be a string (got 1)"),
        ("--owners=[a", 'owners: --owners must be JSON, like ["a", "b"]'),
        ("--port=99", "port: 99 is taken"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(flag: str, sentence: str) -> None:
    assert errors(flag) == [sentence]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("folder: 5", "folder: must be a path (got 5)"),
        ("owners: me", "owners: must be a list (got 'me')"),
        ("owners: [me, 5]", "owners.1: must be a string (got 5)"),
        ("kinds: [pods, 5]", "kinds.1: must be 'pods' or 'nodes' (got 5)"),
        ("address: 5", "address: must be a string (got 5)"),
        ("log_level: 5", "log_level: must be 'DEBUG', 'INFO', 'WARNING' or 'ERROR' (got 5)"),
        ("port: null", "port: must be an integer (got None)"),
        ("port: {a: 1}", "port: must be an integer (got {'a': 1})"),
        ("hold_s: true", "hold_s: must be a number (got True)"),
        ("hold_s: .nan", "hold_s: must be greater than 0 (got nan)"),
        ("insecure: 2", "insecure: must be true or false (got 2)"),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(line)
    assert errors("--config", str(file)) == [sentence]


def test_the_errors_of_all_sources_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("colour: red\nport: x\nhold_s: wrong, but overridden\n")
    monkeypatch.setenv("T_NAMES", "a,b")
    monkeypatch.setenv("T_OWNERS", "wrong, but overridden")
    assert errors("--config", str(file), "--hold-s=2", "--owners=me", "--label=") == [
        "port: must be an integer (got 'x')",
        'names: the variable T_NAMES must be JSON, like ["a", "b"]',
        "label: must have at least 1 character (got '')",
        "colour: there is no such setting (got 'red')",
    ]


def test_a_setting_without_a_default_must_be_given() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Named(Settings):
        """Settings with a name."""

        name: str = setting(description="the name")

    with pytest.raises(InvalidValue, match=r"\n  name: must be given$"):
        SettingsSource(Named, "program", []).read()


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], []),
        (["--names=a,b"], ["a", "b"]),
        (["--names=A", "--names=b,c"], ["a", "b", "c"]),
        (['--names=["a,b", "it\'s: #1"]', "--names=c"], ["a,b", "it's: #1", "c"]),
    ],
)
def test_a_list_is_given_with_commas_as_json_or_by_several_flags(flags: list[str], names: list[str]) -> None:
    assert SettingsSource(Settings, "program", flags).read().names == names


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("False", False), ("1", True), ("0", False)])
def test_true_and_false_can_be_spelled_in_text(text: str, *, expected: bool) -> None:
    assert SettingsSource(Settings, "program", ["--insecure", text]).read().insecure is expected


def test_settings_of_the_right_type_are_taken_as_they_are(tmp_path: Path) -> None:
    given = {"hold_s": 5, "names": ["a"], "folder": tmp_path, "kubeconfig": None}
    read = fixed_settings(Settings, None, given)
    assert (read.hold_s, read.names, read.folder, read.kubeconfig) == (5.0, ["a"], tmp_path, None)


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
def test_the_version_is_printed(kind: type[ProgramSettings], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        SettingsSource(kind, "program", ["--port=0", "--version"]).read()
    assert (end.value.code, capsys.readouterr().out) == (0, f"program {version('ascend-affinity')}\n")


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        SettingsSource(Settings, "program", ["--help"]).read()
    out = capsys.readouterr().out
    assert end.value.code == 0
    words = ("--hold-s", "--config", "--version", "--log-level", "as a number, not as 5% (default: 5)", "{pods,nodes}")
    assert [word for word in words if word not in out] == []


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
