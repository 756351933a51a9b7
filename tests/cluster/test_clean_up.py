"""However a cluster ends, it leaves nothing behind: no process, no mount, no cgroup, no folder."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import namespace, reaper
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import require_cluster
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.real

# A process that owns a cluster with a running container, prints where it is, and waits for its end.
_OWNER = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
with Cluster(1) as cluster:
    cluster.api.create(pod("p", node="n1"))
    cluster.wait_for_pod("p")
    print(cluster.folder, cluster.namespace.pid, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Owned:
    owner: subprocess.Popen[str]
    folder: Path
    pid_namespace: str
    containers: frozenset[str]

    @property
    def reaper_pid(self) -> int:
        (process,) = (
            pid for pid in _pids() if reaper.__file__ in _arguments(pid) and str(self.folder) in _arguments(pid)
        )
        return process

    def processes(self) -> list[str]:
        return [
            " ".join(_arguments(pid))
            for pid in _pids()
            if _pid_namespace(pid) == self.pid_namespace or _container(pid) in self.containers
        ]

    def remains(self) -> list[str]:
        launchers = [" ".join(_arguments(pid)) for pid in _pids() if str(self.folder) in " ".join(_arguments(pid))]
        mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]
        folders = [str(self.folder)] if self.folder.exists() else []
        return [*self.processes(), *launchers, *mounts, *folders]


@pytest.fixture
def owned() -> Iterator[Owned]:
    require_cluster()
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder, pid = owner.stdout.readline().split()
        containers = frozenset(group.name for group in _container_cgroups(Path(folder)))
        yield Owned(owner, Path(folder), _pid_namespace(int(pid)), containers)
        owner.kill()
    namespace.sweep()


def test_nothing_is_left_after_a_normal_end(owned: Owned) -> None:
    groups = _container_cgroups(owned.folder)
    running = "\n".join(owned.processes())
    for part in ("etcd", "kube-apiserver", "kube-scheduler", "containerd-shim", "kubelet", "sleep 2147483647"):
        assert part in running, "the checks of this module must find a running cluster"
    assert groups
    owned.owner.communicate("")
    assert owned.owner.returncode == 0
    assert owned.remains() == []
    assert [group for group in groups if group.exists()] == []


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_nothing_is_left_after_the_owner_is_killed(owned: Owned, number: signal.Signals) -> None:
    groups = _container_cgroups(owned.folder)
    owned.owner.send_signal(number)
    wait_until(lambda: not owned.remains(), timeout_s=60, what="nothing is left")
    wait_until(lambda: not any(group.exists() for group in groups), timeout_s=5, what="no cgroup is left")


@pytest.mark.long
def test_a_sweep_cleans_up_after_owner_and_reaper_are_killed(owned: Owned) -> None:
    groups = _container_cgroups(owned.folder)
    reaper_pid = owned.reaper_pid
    owned.owner.kill()
    os.kill(reaper_pid, signal.SIGKILL)
    wait_until(lambda: not owned.processes(), timeout_s=20, what="the processes died with the reaper")
    namespace.sweep()  # so does another worker that starts a cluster now; they can sweep at the same time
    wait_until(lambda: not owned.remains(), timeout_s=5, what="nothing is left")
    wait_until(lambda: not any(group.exists() for group in groups), timeout_s=5, what="no cgroup is left")


def test_only_logs_are_kept_if_the_block_fails_with_a_paused_program(capsys: pytest.CaptureFixture[str]) -> None:
    require_cluster()
    failing = Cluster(1)
    with pytest.raises(RuntimeError, match="a test failed"), failing:
        _fail_in(failing)
    folder = Path(capsys.readouterr().err.rpartition(" ")[2].strip()).parent
    assert [path.name for path in folder.iterdir()] == ["log"]
    assert (folder / "log" / "kube-apiserver.log").stat().st_size
    reaper.remove_folder(folder)


@pytest.mark.long
def test_an_unexpected_end_of_a_program_is_reported_with_its_log(cluster: Cluster) -> None:
    program = cluster.process("broken", ["sh", "-c", "echo out of memory; exit 3"])
    program.start()
    with pytest.raises(ClusterError, match=r"broken ended unexpectedly \(exit code 3\).*(?s:.)*out of memory"):
        program.wait_until(lambda: False, timeout_s=10)


def test_a_program_that_does_not_exist_is_reported(cluster: Cluster) -> None:
    program = cluster.process("absent", ["/nowhere/program"])
    program.start()
    assert program.wait(timeout_s=10) == 127
    assert "cannot run /nowhere/program" in program.log_tail()


def _fail_in(cluster: Cluster) -> None:
    cluster.nodes[0].kubelet.pause()
    raise RuntimeError("a test failed")


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _arguments(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def _pid_namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _container(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text().splitlines()[0].rpartition("/")[2]
    except (OSError, IndexError):
        return ""


def _container_cgroups(folder: Path) -> list[Path]:
    ids = {path.name for path in folder.glob("*/containerd/state/io.containerd.runtime.v2.task/k8s.io/*")}
    # Not "**": other clusters of this machine remove their own while it would descend into them.
    groups = [*reaper.CGROUPS.glob("k8s.io/*"), *reaper.CGROUPS.glob("*/k8s.io/*")]
    return [group for group in groups if group.name in ids]
