"""Strangers treat a port of a program badly: jobs start all the while, and nothing ends.

The program has the file descriptors and the memory that it has in the chart.
"""

import asyncio
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
import yaml

from tests.e2e.world import World

ROOT = Path(__file__).parents[2]
VALUES = yaml.safe_load((ROOT / "deploy/charts/ascend-affinity/values.yaml").read_text())
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}
DESCRIPTORS = 1024
"""Of a container where containerd has no limit of its own."""

USED = 3 / 4
"""The part of the memory that may be used in small clusters; the rest is for large ones."""

RESET_PEAK = "5"
"""What is written to the clear_refs of a process so that its peak counts from now on."""

CGROUPS = Path("/sys/fs/cgroup/memory")

ATTACKED_S = 7.0
"""Longer than a connection may say nothing."""

PROBE_S = 5.0
"""The timeout of the chart's probes; after three that fail in a row a kubelet restarts a container."""


def limit_of(component: str) -> int:
    text = VALUES[component]["resources"]["limits"]["memory"]
    return int(text[:-2]) * UNITS[text[-2:]]


def find(program: str, address: str) -> int:
    """The process id of a program that serves an address."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if address.encode() in words and any(word.endswith(b"/" + program.encode()) for word in words[:2]):
            return int(folder.name)
    raise AssertionError(f"no {program} serves {address}")


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had since its peak was reset."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@contextmanager
def within_limits(pid: int, name: str, memory: int) -> Iterator[None]:
    """Limit a running process as its container does; where there are no cgroups, its peak is compared alone."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
    # What it has already counts elsewhere.
    left = memory - (int(Path(f"/proc/{pid}/statm").read_text().split()[1]) << 12)
    group = CGROUPS / f"overload-{name}-{pid}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(left))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        group = Path()
    try:
        yield
        assert Path(f"/proc/{pid}").exists(), f"{name} has ended"
        assert peak_bytes(pid) < memory * USED
    finally:
        if group != Path():
            home = Path("/proc/self/cgroup").read_text().split(":memory:")[1].splitlines()[0]
            with suppress(OSError):  # it has ended
                (CGROUPS / home.lstrip("/") / "cgroup.procs").write_text(str(pid))
            group.rmdir()


@asynccontextmanager
async def attacked(url: str, *names: str) -> AsyncIterator[None]:
    """Attack a port within the block."""
    command = [sys.executable, "-m", "tests.e2e.attacks", url, "600", *names]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    try:
        yield
        assert process.returncode is None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Kubelet:
    """Probes a program twice a second, each time on a new connection."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/livez"
        self.slowest_s = 0.0
        self.failed_in_a_row = self.most_in_a_row = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        while True:
            started_s = time.monotonic()
            try:
                connector = aiohttp.TCPConnector(force_close=True)
                async with (
                    asyncio.timeout(PROBE_S),
                    aiohttp.ClientSession(connector=connector) as http,
                    http.get(self._url, ssl=False) as answer,
                ):
                    answer.raise_for_status()
                self.failed_in_a_row = 0
            except (TimeoutError, aiohttp.ClientError):
                self.failed_in_a_row += 1
                self.most_in_a_row = max(self.most_in_a_row, self.failed_in_a_row)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
            await asyncio.sleep(0.5)


async def jobs_start(world: World, prefix: str, seconds: float) -> None:
    """Start pods one after the other for a time, and at least two."""
    started, deadline_s = 0, time.monotonic() + seconds
    while time.monotonic() < deadline_s or started < 2:
        name = f"{prefix}-{started}"
        await world.create(name, 1)
        await world.running(name)
        await world.delete(name)
        started += 1


async def jobs_start_while_attacked(world: World, program: str, component: str, url: str, names: Iterable[str]) -> None:
    """Attack a port for a time: jobs start, the probes succeed, and the program stays within its limits."""
    address = url.rpartition("/")[2]
    pid = find(program, address)
    probe = Kubelet(url)
    with within_limits(pid, component, limit_of(component)):
        async with attacked(url, *names), asyncio.TaskGroup() as tasks:
            probing = tasks.create_task(probe.run())
            await jobs_start(world, component.lower(), ATTACKED_S)
            probing.cancel()
        assert find(program, address) == pid
    assert probe.most_in_a_row < 3
