"""A supervised program of the cluster: it runs in the cluster's namespaces, has a log, and reports its end."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.cluster import enter
from tests.cluster.errors import ClusterError

_LOG_TAIL_BYTES: Final = 4000
_POLL_S: Final = 0.03
_LATE: Final = 0.1
# The inherited variables. Those of debuggers and coverage tools must not reach other programs.
_PASSED_ON: Final = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "GOMAXPROCS")


class Process:
    """A program that can be started, stopped, killed, paused and started again.

    Args:
        name: its name, also of its log, to which later starts append.
        command: program (absolute path, or looked up on PATH) and arguments.
        inside: PID of the process in whose namespaces it runs.
        log_folder: the folder of `<name>.log`.
        environment: variables added to the small inherited environment.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        inside: int,
        log_folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log_folder / f"{name}.log"
        self._inside = inside
        self._environment = dict(environment or {})
        self._launcher: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """The program's PID in our PID namespace.

        Raises:
            ClusterError: it is not running.
        """
        if not self.alive:
            raise ClusterError(f"{self.name} is not running{self.log_tail()}")
        return self._pid

    @property
    def alive(self) -> bool:
        """Whether it runs; a paused program runs too."""
        with self._lock:
            return self._launcher is not None and self._launcher.poll() is None

    def start(self, command: Sequence[str] | None = None) -> None:
        """Start the program, with another command if one is given.

        Raises:
            ClusterError: it is running, or its namespaces have ended.
        """
        with self._lock:
            if self.alive:
                raise ClusterError(f"{self.name} is already running")
            self.command = list(command or self.command)
            read_end, write_end = os.pipe()
            try:
                with self.log.open("ab") as log:
                    self._launcher = subprocess.Popen(
                        [sys.executable, "-I", enter.__file__, str(self._inside), str(write_end), *self.command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | self._environment,
                        pass_fds=[write_end],
                        start_new_session=True,
                    )
            finally:
                os.close(write_end)
            with os.fdopen(read_end) as report:
                pid = report.read()
            if not pid:
                self._launcher.wait()
                raise ClusterError(f"{self.name} could not be started{self.log_tail()}")
            self._pid = int(pid)

    def stop(self, *, timeout_s: float = 10) -> None:
        """Stop it with SIGTERM, or SIGKILL after the timeout; no effect if it has ended."""
        with self._lock:
            if self._launcher is None:
                return
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            try:
                self._launcher.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()

    def terminate(self) -> None:
        """Send it SIGTERM, and return at once."""
        with self._lock:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL, like a crash; no effect if it has ended."""
        with self._lock:
            if self._launcher is not None:
                self._signal(signal.SIGKILL)
                self._launcher.wait()

    def restart(self, command: Sequence[str] | None = None) -> None:
        """`stop` and `start`."""
        with self._lock:
            self.stop()
            self.start(command)

    def let_go(self) -> None:
        """Stop managing it, so that it outlives this process."""
        with self._lock:
            if self._launcher is not None:
                self._launcher.returncode = 0  # otherwise Popen warns about a running process
                self._launcher = None

    def pause(self) -> None:
        """Pause it with SIGSTOP; return when it is stopped. It keeps its connections and answers nothing."""
        pid = self.pid
        self._signal(signal.SIGSTOP)
        wait_until(lambda: _is_stopped(pid), timeout_s=10, what=f"{self.name} is stopped", unless=self._check)

    def resume(self) -> None:
        """Resume it with SIGCONT."""
        self._signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pause it for the duration of a block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def wait(self, *, timeout_s: float) -> int:
        """Wait for its end; return its exit code, negative for a signal.

        Raises:
            ClusterError: it was not started, or did not end in time.
        """
        if self._launcher is None:
            raise ClusterError(f"{self.name} was not started")
        try:
            return self._launcher.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ClusterError(f"{self.name} did not end within {timeout_s:g} s{self.log_tail()}") from None

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float, what: str = "ready") -> None:
        """Wait until `ready()`.

        Raises:
            ClusterError: the program ended, or time is up; the text shows the end of its log.
        """
        wait_until(ready, timeout_s=timeout_s, what=f"{self.name} is {what}", unless=self._check, tail=self.log_tail)

    def log_tail(self) -> str:
        """Return the end of the log, with an introduction, to append to an error message."""
        text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if self.log.exists() else ""
        return f"; the end of {self.log}:\n{text.strip() or '(empty)'}"

    def _check(self) -> None:
        if not self.alive:
            code = None if self._launcher is None else self._launcher.returncode
            raise ClusterError(f"{self.name} ended unexpectedly (exit code {code}){self.log_tail()}")

    def _signal(self, number: signal.Signals) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError):
            # The launcher reaps the program right before it exits, so while it runs the PID belongs to the program.
            if self.alive:
                os.kill(self._pid, number)


def wait_until(
    condition: Callable[[], bool],
    *,
    timeout_s: float,
    what: str,
    unless: Callable[[], None] = lambda: None,
    tail: Callable[[], str] = lambda: "",
) -> None:
    """Poll a condition until it is true.

    Args:
        condition: the condition.
        timeout_s: how long to wait, in seconds.
        what: a description of the condition for the error message.
        unless: called between polls; raises if the condition cannot become true any more.
        tail: returns what to append to the error message.

    Raises:
        ClusterError: it did not become true in time.
    """
    begin_s = time.monotonic()
    while not condition():
        unless()
        if time.monotonic() > begin_s + timeout_s:
            raise ClusterError(f"timed out after {timeout_s:g} s waiting until {what}{tail()}")
        time.sleep(pause_s(begin_s))


def pause_s(begin_s: float) -> float:
    """Seconds until the next poll of a wait: a long one is polled less often, as polls take CPU from what it awaits."""
    return max(_POLL_S, _LATE * (time.monotonic() - begin_s))


def _is_stopped(pid: int) -> bool:
    """Whether all threads of a process are stopped; they do not stop at the same time."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
