"""npuctl alone is a small installation: no library of the programs, and nothing that only Linux has."""

import json
import subprocess
import sys

import pytest

from ascend.daemon.exits import LIBRARIES, PAGE
from tests.npuctl.test_cli import OBJECTS

WITHOUT = """
import json, os, runpy, select, signal, socket, sys
missing, words = json.loads(sys.argv[1]), sys.argv[2:]

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
# What Python has on Linux and not on macOS.
for module, names in {
    os: "eventfd memfd_create pidfd_open sched_getaffinity sched_setaffinity splice posix_fadvise O_TMPFILE O_PATH",
    select: "epoll EPOLLIN EPOLLOUT", signal: "sigtimedwait sigwaitinfo SIGRTMIN",
    socket: "SO_PEERCRED AF_NETLINK AF_VSOCK AF_PACKET",
}.items():
    for name in names.split():
        vars(module).pop(name, None)
sys.argv = ["npuctl", *words]
runpy.run_module("npuctl.cli", run_name="__main__")
"""
"""Runs npuctl as on macOS, where only its own dependencies are installed."""


def run(*words: str, without: frozenset[str] = LIBRARIES) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, json.dumps(sorted(without)), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "verb",
    [
        ("topo",),
        ("plan",),
        ("explain", "train-c"),
        ("doctor", "--cluster"),
        ("capacity",),
        ("usage",),
        ("queue",),
        ("kueue",),
        ("whatif", "--drain", "node-a"),
        ("defragment",),
    ],
    ids=lambda verb: verb[0],
)
def test_every_verb_runs_without_the_libraries_of_the_programs(verb: tuple[str, ...]) -> None:
    # doctor reads the table of the device plugin's rights, which needs none of them.
    programs = {"protos"} if verb[0] == "doctor" else {"device_plugin", "protos"}
    done = run(*verb, *OBJECTS, without=LIBRARIES | programs)
    assert (done.returncode in {0, 3}, done.stderr) == (True, "")
    assert done.stdout


def test_a_node_is_not_checked_without_them() -> None:
    done = run("doctor")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("npuctl doctor without --cluster needs ")
    assert done.stderr.endswith(", which is not installed: install ascend-affinity[programs]\n")


def test_the_page_is_not_served_without_its_library() -> None:
    done = run("web", without=PAGE)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "npuctl web needs uvicorn, which is not installed: install ascend-affinity[web]\n"


@pytest.mark.parametrize(
    ("module", "program"), [("allocator", "ascend-allocator"), ("device_plugin", "ascend-device-plugin")]
)
def test_a_program_says_what_it_lacks(module: str, program: str) -> None:
    script = WITHOUT.replace("npuctl.cli", f"{module}.cli")
    command = [sys.executable, "-c", script, json.dumps(sorted(LIBRARIES))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"{program} needs ")
    assert done.stderr.endswith(", which is not installed: install ascend-affinity[programs]\n")
