"""A machine that cannot run the real cluster reports why; in CI that is an error."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from docs.generate import support
from tests.cluster import __main__ as command_line
from tests.cluster import binaries, requirements


@pytest.fixture
def not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("not_root")
def test_missing_root_is_reported() -> None:
    assert any("needs root" in sentence for sentence in requirements.missing())


def test_programs_not_built_are_reported_with_the_command_to_build_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda command, **_: f"/usr/bin/{command}")
    (sentence,) = (sentence for sentence in requirements.missing() if sentence.startswith("Not built yet"))
    assert "kube-apiserver" in sentence
    assert "python -m tests.cluster prepare" in sentence


def test_other_module_versions_use_another_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = binaries.folder()
    for module in (f"kubernetes-{binaries.KUBERNETES_VERSION}", "etcd"):
        (tmp_path / module).mkdir()
        (tmp_path / module / "go.sum").write_text("another version\n")
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    assert binaries.folder() != before
    assert binaries.folder().parent == before.parent


@pytest.mark.usefixtures("not_root")
@pytest.mark.parametrize(("ci", "exit_code"), [("", 0), ("false", 0), ("true", 1)])
def test_prepare_reports_unmet_requirements_and_fails_only_in_ci(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ci: str, exit_code: int
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr("sys.argv", ["tests.cluster", "prepare"])
    assert command_line.main() == exit_code
    output = capsys.readouterr().out
    assert "needs root" in output
    assert ("SKIPPED" in output) == (exit_code == 0)


def test_a_missing_c_compiler_is_reported_and_the_cluster_can_still_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "which", lambda command, **_: None if command == "cc" else f"/usr/bin/{command}")
    monkeypatch.setattr(requirements, "STDIO", tmp_path / "stdio.h")
    assert set(requirements.missing_compiler()) == {"gcc", "libc6-dev"}
    assert all("python -m tests.cluster prepare" in sentence for sentence in requirements.missing_compiler().values())
    assert not {"gcc", "libc6-dev"} & set(requirements.missing_packages())


def test_the_commands_to_type_can_be_copied_if_a_folder_has_a_blank(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    text = command_line.what_to_type(folder / "config", folder / "example.yaml", folder, folder / "bin", bare=False)
    words = [shlex.split(line, comments=True) for line in text.splitlines() if line.startswith("  ")]
    assert [f"{folder}/bin/npuctl", "topo"] in words
    assert ["kubectl", "apply", "-f", f"{folder}/example.yaml"] in words
    assert words[0][1] == f"KUBECONFIG={folder}/config"


def test_the_table_of_versions_shows_how_the_last_recorded_run_of_each_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs, junit = tmp_path / "runs.json", tmp_path / "junit.xml"
    runs.write_text('{"1.32.9": {"date": "2026-01-01", "passed": 9, "failed": 0, "skipped": 0}}')
    junit.write_text(
        '<testsuites><testsuite tests="12" failures="1" errors="1" skipped="3" timestamp="2026-02-03T04:05:06+00:00"/>'
        "</testsuites>"
    )
    monkeypatch.setattr(binaries, "RUNS", runs)
    monkeypatch.setattr(support, "RUNS", runs)
    monkeypatch.setattr(binaries, "KUBERNETES_VERSION", "1.36.3")
    monkeypatch.setattr("sys.argv", ["tests.cluster", "record", str(junit)])
    assert command_line.main() == 0
    last = {row.split(" | ")[0].strip("| "): row.split(" | ")[-1].strip(" |") for row in support.kubernetes_table()}
    assert last["1.36.3"] == "2026-02-03: 7 passed, 2 failed, 3 skipped"
    assert last["1.32.9"] == "2026-01-01: 9 passed"
    assert last["1.34.4"] == "none"
