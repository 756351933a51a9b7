"""What a scrape of the chips' metrics costs the device plugin, with the fake driver's library."""

import os
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from prometheus_client import CollectorRegistry, generate_latest
from rich.text import Text

from ascend.daemon.observable import Observable
from device_plugin.driver import ChipState
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, ContainerPart
from device_plugin.metrics import Metrics
from device_plugin.telemetry.collector import ChipMetrics
from device_plugin.telemetry.meter import Meter
from tests.bench.outcome import Outcome, Run, p50, table
from tests.cluster import requirements
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910a, ascend_910b, ascend_a3

_SERVERS: Final = {"910A": ascend_910a(8), "910B": ascend_910b(8), "A3": ascend_a3(8)}
_FULL: Final = 500
_QUICK: Final = 5


@dataclass(frozen=True, slots=True)
class _Scrape:
    """The cost of one scrape.

    Attributes:
        read_s: until the values are there; other work of the plugin goes on meanwhile.
        write_s: to write the page, on the event loop.
        cpu_s: CPU time of all threads.
        calls: of the driver.
        size: of the page, in bytes.
    """

    read_s: float
    write_s: float
    cpu_s: float
    calls: int
    size: int


async def measure(run: Run) -> Outcome:
    if sentences := requirements.missing_compiler().values():
        lines = ("!" * 100, "TELEMETRY NOT MEASURED: the fake driver can't be built.", *sentences, "!" * 100)
        return Outcome([Text("\n".join(lines), style="bold red")])
    outcome = Outcome()
    shown = table(
        *("server", "chips", "driver calls", "values read\np50 ms", "\nmax ms", "page written\np50 ms", "\nmax ms"),
        *("CPU\np50 ms", "page\nKiB"),
    )
    for product, chips in _SERVERS.items():
        scrapes = await _scrapes(run, product, chips)
        row: dict[str, Any] = {
            "read_s": [each.read_s for each in scrapes],
            "write_s": [each.write_s for each in scrapes],
            "cpu_s": [each.cpu_s for each in scrapes],
            "calls": [each.calls for each in scrapes],
        }
        outcome.raw |= {f"{product}, {name}": values for name, values in row.items()}
        shown.add_row(
            *(product, str(len(chips)), f"{p50(row['calls']):.0f}"),
            *(f"{p50(row['read_s']) * 1e3:.2f}", f"{max(row['read_s']) * 1e3:.2f}"),
            *(f"{p50(row['write_s']) * 1e3:.2f}", f"{max(row['write_s']) * 1e3:.2f}"),
            *(f"{p50(row['cpu_s']) * 1e3:.2f}", f"{scrapes[-1].size / 1024:.0f}"),
        )
    outcome.show(
        "telemetry: a scrape of the metrics of all chips, in one process with the fake driver",
        shown,
        "The other metrics of the plugin are not included. A real driver takes longer to read the values.",
        "Nothing is read between scrapes, and nothing without the setting.",
    )
    return outcome


async def _scrapes(run: Run, product: str, chips: list[FakeChip]) -> list[_Scrape]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        fake = FakeDcmi(folder, [replace(chip, ip="10.20.0.1", bdf="0000:c1:00.0") for chip in chips])
        stack.enter_context(patch.dict(os.environ, fake.environment()))
        driver = DcmiDriver(fake.library)
        snapshots: Observable[Snapshot | None] = Observable(Snapshot(driver.discover(), ()))
        registry = CollectorRegistry()
        meter = Meter(driver, snapshots, Metrics(), interval_s=0.0)
        stack.callback(meter.close)
        pods = [_pod(chip.phy) for chip in chips]
        registry.register(ChipMetrics(meter, lambda _phy_id: ChipState(link_up=True), pods))
        await meter.refresh()  # the threads start, and the labels are read
        scrapes = []
        for _ in run.steps(product, _QUICK if run.quick else _FULL):
            calls, used_s, started_s = sum(fake.calls().values()), time.process_time(), time.perf_counter()
            await meter.refresh()
            read_s = time.perf_counter()
            page = generate_latest(registry)
            written_s, used_s = time.perf_counter(), time.process_time() - used_s
            calls = sum(fake.calls().values()) - calls
            scrapes.append(_Scrape(read_s - started_s, written_s - read_s, used_s, calls, len(page)))
        return scrapes


def _pod(chip: int) -> Allocation:
    part = ContainerPart("main", keeps=True, chips=(chip,), kubelet_ids=(chip,))
    return Allocation.of_parts(f"uid-{chip}", f"default/train-{chip}", (chip,), (part,))
