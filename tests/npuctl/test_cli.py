"""What all commands have in common: version, output streams, encodings, and the kubeconfig."""

import os
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from npuctl.cli import app
from npuctl.options import EXAMPLES

CLUSTER = str(Path(__file__).parents[2] / "deploy" / "examples" / "cluster.yaml")
OBJECTS = ("-f", CLUSTER, "--now", "2026-01-01T00:05:00Z")
COMMANDS = (
    ("topo", *OBJECTS),
    ("topo", "-o", "json", *OBJECTS),
    ("plan", "-o", "yaml", *OBJECTS),
    ("explain", "train-c", *OBJECTS),
    ("doctor", "--cluster", *OBJECTS),
    ("queue", *OBJECTS),
    ("whatif", "--drain", "node-a", *OBJECTS),
    ("defragment", *OBJECTS),
    ("--help",),
    ("completion", "bash"),
)


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.mark.parametrize("name", ["npuctl", "kubectl-npu", "ascend-allocator", "ascend-device-plugin"])
def test_every_program_shows_its_version(name: str) -> None:
    done = subprocess.run([program(name), "--version"], capture_output=True, text=True, check=True)
    shown = "npuctl" if name == "kubectl-npu" else name
    assert (done.stdout, done.stderr) == (f"{shown} {version('ascend-affinity')}\n", "")


@pytest.mark.parametrize("command", [*COMMANDS[:2], ("--help",)], ids=lambda command: " ".join(command[:2]))
def test_output_that_can_not_be_written_is_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [program("npuctl"), *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    sentence = "npuctl: standard output can't be written to: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence)


def test_completion_for_kubectl_that_can_not_be_written_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        words = [program("kubectl_complete-npu"), "plan", "-o", ""]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_a_closed_pipe_ends_the_program_silently() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run([program("npuctl"), "topo", *OBJECTS], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("encoding", ["gbk", "gb18030", "ascii", "latin-1"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_every_command_prints_on_a_terminal_with_any_encoding(command: tuple[str, ...], encoding: str) -> None:
    done = CliRunner(charset=encoding).invoke(app, command)
    assert done.exit_code in {0, 3}, done.exception
    out = done.stdout_bytes.decode("utf-8" if "-o" in command else encoding)
    assert "?" not in out


def test_gbk_shows_the_characters_it_has() -> None:
    done = CliRunner(charset="gbk").invoke(app, ["topo", *OBJECTS])
    out = done.stdout_bytes.decode("gbk")
    assert "[7 ·]" in out
    assert "[5 x]" in out
    assert "; x unhealthy\n" in out


@pytest.mark.parametrize(
    "command", [("plan",), ("explain", "train-c"), ("topo",), ("doctor", "--cluster")], ids=lambda command: command[0]
)
def test_reports_older_than_the_clock_are_a_hint_to_give_the_time(command: tuple[str, ...]) -> None:
    sentence = CliRunner().invoke(app, [*command, "-f", CLUSTER]).stderr
    assert sentence.startswith("npuctl: the newest device report in the files is of 2026-01-01T00:00:00Z, ")
    assert sentence.endswith(
        " days before now, so all are stale; give the time of the files by --now 2026-01-01T00:00:00Z\n"
    )
    assert CliRunner().invoke(app, [*command, *OBJECTS]).stderr == ""
    later = CliRunner().invoke(app, [*command, "-f", CLUSTER, "--now", "2026-01-01T01:00:00Z"]).stderr
    assert ", 3600 s before the time given, so all are stale; give the time of the files by --now" in later
    old = CliRunner().invoke(app, [*command, "-f", CLUSTER, "--set", "max-report-age-s=1e12"]).stderr
    assert old.endswith(" days before now; give the time of the files by --now 2026-01-01T00:00:00Z\n")


def printed(*command: str, **environment: str) -> str:
    plain = {key: text for key, text in os.environ.items() if key not in {"COLUMNS", "LC_ALL", "PYTHONIOENCODING"}}
    done = subprocess.run(
        [program("npuctl"), *command], capture_output=True, text=True, check=False, env=plain | environment
    )
    assert done.returncode in {0, 3}, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", [each for each in COMMANDS[:7] if "-o" not in each], ids=lambda each: each[0])
def test_a_line_in_a_pipe_is_neither_broken_nor_padded(command: tuple[str, ...]) -> None:
    lines = printed(*command).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []
    narrow = printed(*command, COLUMNS="60").splitlines()
    assert len(narrow) > len(lines)
    assert max(map(len, narrow)) <= 60


def test_a_reason_in_a_pipe_is_on_one_line() -> None:
    counts = "1 NodeCordoned, 1 NotEnoughChips, 1 RingTooSmall"
    assert counts in printed("explain", "train-c", *OBJECTS)


@pytest.mark.parametrize(("flag", "locale"), [(("--ascii",), {}), ((), {"LC_ALL": "C"}), ((), {"LC_ALL": "POSIX"})])
def test_tables_are_in_ascii_where_that_is_asked_for(flag: tuple[str, ...], locale: dict[str, str]) -> None:
    for command in (("topo", *OBJECTS), ("topo", "--view", "wall", *OBJECTS), ("doctor", *OBJECTS)):
        assert printed(*command, *flag, **locale).isascii()


def test_tables_have_lines_where_the_locale_has_them() -> None:
    assert not printed("topo", *OBJECTS, LC_ALL="C.UTF-8").isascii()


def test_every_verb_has_the_short_help_option() -> None:
    for verb in ((), ("topo",), ("plan",), ("explain",), ("doctor",), ("completion",)):
        short, long = (CliRunner().invoke(app, [*verb, option]).stdout for option in ("-h", "--help"))
        assert short == long != ""


def verbs(group: Any) -> dict[str, Any]:
    """The verbs by name, those of ``chip`` by their own."""
    found: dict[str, Any] = {}
    for name, each in group.commands.items():
        found |= verbs(each) if hasattr(each, "commands") else {name: each}
    return found


def test_every_verb_has_examples_in_its_help_with_options_that_it_has() -> None:
    found = verbs(get_command(app))
    assert found.keys() == EXAMPLES.keys()
    for name, verb in found.items():
        options = {option for each in verb.params for option in each.opts}
        for example in EXAMPLES[name]:
            words = shlex.split(example.partition(" npuctl ")[2] or example, comments=True)
            assert {word for word in words if word.startswith("-")} <= options, example


@pytest.mark.parametrize("verb", [("selftest",), ("chip", "cordon"), ("chip", "uncordon")])
def test_a_verb_that_reads_no_objects_has_no_options_for_them(verb: tuple[str, ...]) -> None:
    shown = printed(*verb, "-h")
    assert "--kubeconfig" in shown
    assert not [option for option in ("--filename", "--now", "--set", "--config ") if option in shown]


@pytest.mark.parametrize("words", [("doctor", "--node", "a"), ("doctor", "a"), ("doctor", ""), ("selftest", "a")])
def test_a_verb_about_the_node_on_which_it_runs_says_so_in_one_line(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "is about the node on which it runs" in done.stderr


def test_of_options_that_need_the_cluster_those_that_were_given_are_named() -> None:
    done = CliRunner().invoke(app, ["doctor", "--context", "a", "--set", "b=c"])
    assert done.stderr == "npuctl: not without --cluster: --context, --set\n"


def test_the_help_in_80_columns_is_not_cut_short() -> None:
    assert "..." not in printed("--help", COLUMNS="80").split("Commands:")[1]


def topo_error(kubeconfig: Path | None = None) -> str:
    flags = [] if kubeconfig is None else ["--kubeconfig", str(kubeconfig)]
    # In process, an error that is not the input's is an exception; main() prints it.
    done = CliRunner().invoke(app, ["topo", *flags])
    message = str(done.exception)
    assert message.startswith("no usable access to the API server")
    assert "\n" not in message
    return message.removeprefix("no usable access to the API server")


@pytest.mark.parametrize("variable", [None, ""])
def test_a_missing_default_kubeconfig_says_where_it_was_searched(
    variable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if variable is not None:
        monkeypatch.setenv("KUBECONFIG", variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert topo_error() == (
        ": no kubeconfig was found: neither --kubeconfig nor $KUBECONFIG is set, ~/.kube/config does not exist, and "
        "there is no service account in /var/run/secrets/kubernetes.io/serviceaccount"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("root:x:0:0:root:/root:/bin/bash\n", "{path} is not a kubeconfig"),
        ("- a\n", "{path} is not a kubeconfig"),
        ("", "{path} is not a kubeconfig: it is empty"),
        ("clusters: 7\n", "a field has the wrong type ("),
        ("{", "while parsing a flow node expected the node content"),
        ("clusters: []\n", "Invalid kube-config file. Expected key current-context in {path}"),
    ],
)
def test_a_file_that_is_no_kubeconfig_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert topo_error(path).startswith(f" from {path}: {sentence.format(path=path)}")


def test_a_kubeconfig_below_a_file_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert topo_error(tmp_path / "file" / "config") == f": there is no file {tmp_path / 'file' / 'config'}"
