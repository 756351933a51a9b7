"""How long a gang waits that fits on what is free, behind gangs that can't start, and how many chips these keep idle.

``python -m tests.bench.impossible`` prints it for each kind of such gangs: two nodes with all chips free, the
allocator's own classes, and kube-scheduler's cycles on a virtual clock (``tests/allocator/binding/simulation.py``).
"""

import asyncio
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.allocator.binding.impossible import KINDS, Queue, good
from tests.allocator.binding.simulation import CHIPS

COUNTS: Final = (12, 100)
LIMIT_S: Final = 300
SHAPES: Final = ((2, 8), (1, 8), (4, 4))
"""The gangs that fit, one after the other: pods, and chips of each."""


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


async def idle(kind: str, count: int) -> float:
    """The mean share of chips that nobody may use, from the end of the first minute to that of the sixth."""
    queue, kept = Queue([kind] * count, nodes=2), list[int]()
    await queue.simulation.run(60)
    for _ in range(300):
        await queue.simulation.run(1)
        kept.append(queue.kept)
    await queue.simulation.close()
    return sum(kept) / len(kept) / (2 * CHIPS)


async def main() -> None:
    """Print the table."""
    columns = ("gangs that can't start", *(f"{pods} x {chips} chips" for pods, chips in SHAPES), "idle chips")
    table = Table(*columns)
    for kind in KINDS:
        for count in COUNTS:
            found = [
                f"{wait_s:.0f} s" if wait_s <= LIMIT_S else f"> {LIMIT_S} s" for wait_s in await waits(kind, count)
            ]
            table.add_row(f"{count} {kind}", *found, f"{await idle(kind, count):.0%}")
    Console().print(table)


if __name__ == "__main__":
    asyncio.run(main())
