"""The chips that a report says are in use, and of which no pod is known to have anything.

Where chips are cut while pods run, such a chip has a vNPU that could not be given back, as far as its device plugin
knows: a pod that is sent there fails. But one of both views may be older than the other:

* A pod has ended here, and the plugin still gives back what it had, or has not written its report again.
* A pod was bound, which the plugin has seen and the informers have not.

Both last a second or two. So for a while such a chip is used last, and after that for nothing until the report says
that it is free. A pod that was sent to such a chip meanwhile does not begin that time anew, unless it is known to have
got what was chosen for it: one that fails there tells nothing.
"""

from collections.abc import Callable, Iterator
from typing import Final

from allocator.state.node import NodeRecord
from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.errors import Refusal

WAIT_S: Final = 10.0
"""For how long a chip is used last: several times as long as the plugin takes to give a vNPU back and to report it."""


class UnexplainedChips:
    """Keeps ``unexplained`` and ``closed`` of the nodes' records.

    Args:
        clock: the clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: dict[str, dict[int, float]] = {}

    def note(self, record: NodeRecord) -> None:
        """A node, its report or the pods on it have changed."""
        server, report = record.server, record.report
        if isinstance(server, Refusal) or isinstance(report, Refusal):
            return  # it can't be used
        since = self._since.get(record.name, {})
        taken = 0 if server.kind is None or report.updated_s is None else server.reported & ~report.free
        if taken or since:
            held, got = _held(record)
            new = taken & ~(held | report.unhealthy | report.pre_separate)
            since = {chip: at_s for chip, at_s in since.items() if (taken & ~got) >> chip & 1}
            since = dict.fromkeys(chip_ids(new), self._clock()) | since
            self._keep(record, since)
            self._judge(record, since)

    def forget(self, name: str) -> None:
        """A node is gone."""
        self._since.pop(name, None)

    def due(self) -> Iterator[str]:
        """Yield the nodes with chips that are to be closed now; the caller notes each of them."""
        limit_s = self._clock() - WAIT_S
        for name, since in list(self._since.items()):
            if any(at_s <= limit_s for at_s in since.values()):
                yield name

    def _keep(self, record: NodeRecord, since: dict[int, float]) -> None:
        if since:
            self._since[record.name] = since
        else:
            self._since.pop(record.name, None)

    def _judge(self, record: NodeRecord, since: dict[int, float]) -> None:
        limit_s = self._clock() - WAIT_S
        record.unexplained = chip_set(since)
        record.closed = chip_set(chip for chip, at_s in since.items() if at_s <= limit_s)


def _held(record: NodeRecord) -> tuple[ChipSet, ChipSet]:
    """The chips that pods hold, wholly or in part, and the chips of claimed holdings."""
    held = got = 0
    for holding in record.holdings.values():
        held |= holding.occupied
        got |= holding.occupied if holding.is_claimed else 0
    return held, got
