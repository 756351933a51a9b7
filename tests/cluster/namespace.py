"""The folder and the Linux namespaces of a cluster, and the removal of those that crashed runs left behind."""

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from tests.cluster import reaper
from tests.cluster.errors import ClusterError
from tests.cluster.processes import Process, wait_until

# The paths are short, because the path of a unix socket may have 107 bytes.
_PARENT: Final = Path("/tmp")
_DETACHED: Final = _PARENT / f"{reaper.PREFIX}up"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A folder for all files of a cluster, and a PID and a mount namespace for all its processes.

    Attributes:
        folder: the folder. `close` can keep `log/` and removes everything else.
        pid: the first process of the PID namespace, whose namespaces the programs of the cluster enter.
    """

    folder: Path
    pid: int
    _reaper_pid: int
    _reaper: subprocess.Popen[bytes] | None
    _processes: list[Process] = field(default_factory=list)

    @classmethod
    def create(cls, *, detached: bool = False, host_names: tuple[str, ...] = ()) -> Self:
        """Create the folder, and start the reaper that owns the namespaces.

        Args:
            detached: outlive this process; there is at most one such cluster, in `/tmp/aa-up`.
            host_names: names that resolve to 127.0.0.1 inside.

        Raises:
            ClusterError: a detached cluster exists, or the kernel refused.
        """
        sweep()
        folder = _make_folder(detached=detached)
        (folder / "log").mkdir()
        hosts = Path("/etc/hosts").read_text() if Path("/etc/hosts").exists() else "127.0.0.1 localhost"
        (folder / "hosts").write_text(f"{hosts}\n127.0.0.1 {' '.join(('localhost', *host_names))}\n")
        owner = 0 if detached else os.getpid()
        with (folder / "log" / "reaper.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-I", reaper.__file__, str(folder), str(owner)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 10
        while (record := _read_record(folder)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                output = (folder / "log" / "reaper.log").read_text().strip()
                reaper.remove_folder(folder)
                raise ClusterError(f"the cluster's namespaces could not be created: {output}")
            time.sleep(0.005)
        return cls(folder, record["namespace"], process.pid, process)

    def process(
        self,
        name: str,
        command: Sequence[str],
        *,
        inside: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Return a program in the namespaces, not started yet; it ends with them at the latest.

        Args:
            name: its name, also of its log.
            command: program and arguments.
            inside: PID of the process whose mount namespace it shares; by default the first process.
            environment: variables added to the small inherited environment.
        """
        target = self.pid if inside is None else inside
        process = Process(name, command, inside=target, log_folder=self.folder / "log", environment=environment)
        self._processes.append(process)
        return process

    def close(self, *, keep_logs: bool = False) -> None:
        """Kill all processes and remove the folder, except `log` with `keep_logs`; return when that is done."""
        _end_reaper(self._reaper_pid, keep_logs=keep_logs)
        if self._reaper is not None:
            self._reaper.wait()
        # The reaper has done this, unless it was killed. Then the namespace ends with it, a little later.
        wait_until(lambda: not reaper.start_time(self.pid), timeout_s=20, what="the cluster's namespaces are gone")
        for process in self._processes:
            process.kill()  # it is dead; this reaps it
        if self.folder.exists():
            reaper.remove_cgroups(self.folder)
            reaper.remove_folder(self.folder, keep_logs=keep_logs)

    def let_go(self) -> None:
        """Stop managing the processes of a detached cluster."""
        if self._reaper is not None:
            self._reaper.returncode = 0  # otherwise Popen warns about a running process
        for process in self._processes:
            process.let_go()


def detached() -> Namespace | None:
    """Return the running cluster that `up` started, or None."""
    record = _read_record(_DETACHED)
    if record is None or reaper.start_time(record["reaper"]) != record["started"]:
        return None
    return Namespace(_DETACHED, record["namespace"], record["reaper"], None)


def sweep() -> list[Path]:
    """Remove what clusters left behind whose reaper was killed; return their folders."""
    swept = []
    for folder in sorted(_PARENT.glob(f"{reaper.PREFIX}*")):
        record = _read_record(folder)
        if record is not None and reaper.start_time(record["reaper"]) != record["started"]:
            # Its namespace ended with the reaper, so no process is left.
            reaper.remove_cgroups(folder)
            reaper.remove_folder(folder)
            swept.append(folder)
    return swept


def _make_folder(*, detached: bool) -> Path:
    if not detached:
        return Path(tempfile.mkdtemp(prefix=reaper.PREFIX, dir=_PARENT))
    if _is_ours(_DETACHED) and not (_DETACHED / reaper.RECORD).exists():
        reaper.remove_folder(_DETACHED)  # the logs of a cluster that failed to start
    try:
        _DETACHED.mkdir(mode=0o700)
    except FileExistsError:
        raise ClusterError(
            f"a cluster is already running in {_DETACHED}; stop it with `python -m tests.cluster down`"
        ) from None
    return _DETACHED


def _is_ours(folder: Path) -> bool:
    """Whether a folder exists in which only we can have written.

    All users can write to /tmp. A folder of another user must not make root signal a process of that user's choice.
    """
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _read_record(folder: Path) -> dict[str, int] | None:
    """Read the reaper's record about itself; None if the folder does not exist or is not ours."""
    record = folder / reaper.RECORD
    if not (_is_ours(folder) and record.exists()):
        return None
    read: dict[str, int] = json.loads(record.read_bytes())
    return read


def _end_reaper(pid: int, *, keep_logs: bool) -> None:
    started = reaper.start_time(pid)
    if not started:
        return
    os.kill(pid, signal.SIGUSR1 if keep_logs else signal.SIGTERM)
    wait_until(lambda: reaper.start_time(pid) != started, timeout_s=20, what=f"the reaper (process {pid}) has ended")
