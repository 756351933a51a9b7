"""How long a gang waits that fits on what is free, behind gangs that can't start, and how many chips these keep idle.

``python -m tests.bench.impossible [CHART]`` prints it for each kind of such gangs, and draws it beside what
was measured while gangs had two queues and no rest: two nodes with all chips free, the allocator's own classes, and
kube-scheduler's cycles on a virtual clock (``tests/allocator/binding/simulation.py``).
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ascend.observe.logs import configure_logs
from npuctl.simulate.chart import Panel, Points
from tests.allocator.binding.impossible import KINDS, Queue, good
from tests.allocator.binding.simulation import CHIPS
from tests.bench.__main__ import PLOTS
from tests.bench.outcome import save_chart

COUNTS: Final = (12, 100)
LIMIT_S: Final = 150
SHAPES: Final = ((2, 8), (1, 8), (4, 4))
"""The gangs that fit, one after the other: pods, and chips of each."""
PANELS: Final = {
    "scheduler": "a pod that no scheduler tries",
    "both": "pods that fit only on one node",
    "exclusive": "pods that exclude each other",
}
BEFORE: Final[dict[str, Points]] = {
    "scheduler": ((12, 32), (100, 32.5)),
    "both": ((12, 49.8), (100, LIMIT_S)),
    "exclusive": ((12, 88.8), (100, LIMIT_S)),
}
"""The first gang that fits, with two queues and without rest; measured for at most ``LIMIT_S``."""


async def waits(kind: str, count: int) -> list[float]:
    """How long each of the gangs that fit waits, in seconds, after the others have waited for 10 s."""
    queue = Queue([kind] * count, nodes=2)
    await queue.simulation.run(10)
    found = [
        await queue.seconds_until_start(good(number, *shape, queue.names), LIMIT_S)
        for number, shape in enumerate(SHAPES, start=1)
    ]
    await queue.simulation.close()
    return found


async def idle(kind: str, count: int, *, ends: bool = False) -> float:
    """The mean share of chips that nobody may use, from the end of the first minute to that of the sixth.

    Args:
        kind: the kind of the gangs.
        count: how many wait.
        ends: whether a pod without chips ends every other second; a gang may fit where it was.
    """
    queue, kept = Queue([kind] * count, nodes=2), list[int]()
    await queue.simulation.run(60)
    for second in range(300):
        if ends and second % 2:
            queue.end_pod()
        await queue.simulation.run(1)
        kept.append(queue.kept)
    await queue.simulation.close()
    return sum(kept) / len(kept) / (2 * CHIPS)


async def main(plot: Path) -> None:
    """Print the table, and write the chart to a file."""
    shapes = (f"{pods} x {chips} chips" for pods, chips in SHAPES)
    columns = ("gangs that can't start", *shapes, "idle chips", "idle while pods end")
    table, first = Table(*columns), dict[tuple[str, int], float]()
    for kind in KINDS:
        for count in COUNTS:
            waited = await waits(kind, count)
            first[kind, count] = min(waited[0], LIMIT_S)
            found = [f"{wait_s:.1f} s" if wait_s <= LIMIT_S else f"> {LIMIT_S} s" for wait_s in waited]
            found += [f"{await idle(kind, count, ends=ends):.1%}" for ends in (False, True)]
            table.add_row(f"{count} {kind}", *found)
    Console().print(table)
    panels = [
        Panel(
            title,
            "gangs that can't start",
            "s",
            {"now": [(number, first[kind, number]) for number in COUNTS], "before": BEFORE[kind]},
        )
        for kind, title in PANELS.items()
    ]
    save_chart(plot, "How long a gang waits that fits on what is free (150 s and more are drawn as 150 s)", panels)
    Console().print(f"The chart: {plot}")


if __name__ == "__main__":
    configure_logs("bench", level="WARNING", stream=sys.stderr)
    asyncio.run(main(Path(sys.argv[1]) if len(sys.argv) > 1 else PLOTS / "impossible-gangs.svg"))
