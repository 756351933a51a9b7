"""Completion by kubectl and by npuctl itself."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from npuctl.cli import app
from npuctl.completion import complete_for_kubectl
from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import as_list, node, pod

VERBS = [
    "capacity",
    "chip",
    "completion",
    "defragment",
    "doctor",
    "explain",
    "history",
    "kueue",
    "plan",
    "queue",
    "selftest",
    "simulate",
    "topo",
    "usage",
    "web",
    "whatif",
    ":4",
]


def complete(words: list[str]) -> list[str]:
    lines: list[str] = complete_for_kubectl(get_command(app), words)
    return lines


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], VERBS),
        (["e"], ["explain", ":4"]),
        (["plan", "--c"], ["--candidates", "--cluster", "--config", "--context", ":4"]),
        (["plan", "-o", ""], ["json", "table", "yaml", ":4"]),
        (["plan", "-f", ""], [":0"]),
        (["completion", "z"], ["zsh", ":4"]),
        (["explain", ""], [":4"]),
        ([], VERBS),
    ],
)
def test_kubectl_gets_the_candidates_for_the_last_word(words: list[str], offered: list[str]) -> None:
    assert complete(words) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_completion_script(shell: str) -> None:
    done = CliRunner().invoke(app, ["completion", shell])
    assert done.exit_code == 0
    assert "_NPUCTL_COMPLETE=complete_" + shell in done.stdout


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        for name, namespace in (("train-0", "default"), ("train-1", "default"), ("tune", "kube-public")):
            await running.create(pod(name, "2", namespace=namespace))
        await running.create(pod("web", None))
        yield running


@pytest.fixture
def kubeconfig(server: ApiServer, tmp_path: Path) -> Path:
    document = server.kubeconfig()
    context = document["contexts"][0]
    document["contexts"].append({"name": "public", "context": {**context["context"], "namespace": "kube-public"}})
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("typed", "begun", "offered"),
    [
        ("", "", ["train-0", "train-1"]),
        ("-o json", "train-1", ["train-1"]),
        ("", "x", []),
        ("-n kube-public", "", ["tune"]),
        ("--namespace=kube-public", "t", ["tune"]),
        ("--context public", "", ["tune"]),
        ("", "kube-public/t", ["kube-public/tune"]),
        ("-n default", "kube-public/", ["kube-public/tune"]),
        ("-n", "kube-p", ["kube-public"]),
        ("train-0", "", []),
        ("--context gone", "", []),
        ("--kubeconfig none", "", []),
        ("-f none.yaml", "", []),
        ("-f -", "", []),
    ],
)
async def test_pods_are_offered_by_name(typed: str, begun: str, offered: list[str], kubeconfig: Path) -> None:
    words = ["explain", "--kubeconfig", str(kubeconfig), *typed.split(), begun]
    assert await asyncio.to_thread(complete, words) == [*offered, ":4"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_every_shell_offers_the_same_pods(shell: str, kubeconfig: Path) -> None:
    line = f"npuctl explain --kubeconfig {kubeconfig} -n kube-public t"
    typed = {
        "COMP_WORDS": line,
        "COMP_CWORD": "6",
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_NPUCTL_COMPLETE": f"complete_{shell}",
    }
    done = await asyncio.to_thread(CliRunner().invoke, app, [], prog_name="npuctl", env=typed)
    assert (done.exit_code, done.stderr) == (0, "")
    assert "tune" in done.stdout
    assert "train" not in done.stdout


def test_names_of_nodes_jobs_namespaces_and_contexts_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    member = pod("train-x", 1, namespace="team", ownerReferences=[owner])
    path.write_text(json.dumps(as_list(node("n1"), node("n2"), member, pod("web", None, namespace="other"))))
    file = ["-f", str(path)]
    assert complete(["topo", *file, "n"]) == ["n1", "n2", ":4"]
    assert complete(["topo", *file, "--job", ""]) == ["team/train", ":4"]
    assert complete(["topo", *file, "-n", "team", "--job", ""]) == ["train", ":4"]
    assert complete(["topo", *file, "-n", "t"]) == ["team", ":4"]
    assert complete(["explain", *file, "-n", "team", "job/"]) == ["job/train", ":4"]
    assert complete(["explain", *file, "team/"]) == ["team/train-x", ":4"]


def test_contexts_are_those_of_the_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(json.dumps({"contexts": [{"name": "prod"}, {"name": "test"}]}))
    assert complete(["topo", "--kubeconfig", str(path), "--context", "p"]) == ["prod", ":4"]


def test_the_pods_in_files_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(pod("train", 1), pod("web", None))))
    assert complete(["explain", "-f", str(path), ""]) == ["train", ":4"]
    path.write_text("{")
    assert complete(["explain", "-f", str(path), ""]) == [":4"]


@pytest.mark.parametrize("text", ["", "{", "[]", "contexts: 7", "current-context: a", "contexts: [{name: a}]"])
def test_an_invalid_kubeconfig_offers_nothing_and_prints_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    assert complete(["explain", "--kubeconfig", str(path), ""]) == [":4"]


@pytest.mark.parametrize(("program", "expected"), [("kubectl_complete-npu", ":4\n"), ("npuctl", "")])
async def test_completion_does_not_wait_for_a_server_without_an_answer(
    program: str, expected: str, server: ApiServer, kubeconfig: Path
) -> None:
    server.delay("/pods", 300)
    words = ["explain", "--kubeconfig", str(kubeconfig), ""] if program != "npuctl" else []
    line = f"npuctl explain --kubeconfig {kubeconfig} "
    typed = {} if words else {"COMP_WORDS": line, "COMP_CWORD": "4", "_NPUCTL_COMPLETE": "complete_bash"}
    # The client itself would wait 15 s and then report an error.
    async with asyncio.timeout(12):
        assert await run(program, *words, **typed) == (0, expected, "")
    server.delay("/pods", 0)


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_an_error_of_the_server_offers_nothing_and_prints_nothing(
    status: int, server: ApiServer, kubeconfig: Path
) -> None:
    server.fail_next("GET", "/pods", status, times=100)
    words = ["explain", "--kubeconfig", str(kubeconfig), ""]
    assert await run("kubectl_complete-npu", *words) == (0, ":4\n", "")


async def run(program: str, *arguments: str, **environment: str) -> tuple[int | None, str, str]:
    """Exit status, standard output and error of a program."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name(program)), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "closed"])
def test_a_completion_whose_time_is_over_ends_although_it_can_not_be_printed(*, is_full: bool) -> None:
    code = (
        "import threading, npuctl.completion as completion\n"
        "completion.LIMIT_S = 0.01\n"
        "completion.end_in_time(completion.NO_CANDIDATES)\n"
        "threading.Event().wait()"
    )
    command = [sys.executable, "-c", code]
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("w") as full, os.fdopen(write, "w") as closed:
        out = full if is_full else closed
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    sentence = "npuctl: standard output can't be written to: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, sentence if is_full else "")
