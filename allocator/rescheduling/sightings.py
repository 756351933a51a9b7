"""For how long nodes have been seen not Ready without a gap, and whether the API server has answered all the time.

What a watch has shown last may be old without notice: its connection may be half-open, the API server frozen, or this
process suspended. So only reads count, each of which is made anew, and time between two of them counts only if they are
close to each other. A state is seen some time between request and answer: the first time counts from its answer, the
last one up to its request.
"""

import math
from collections.abc import Collection
from typing import Final

import msgspec

from ascend.kube.objects import Node

GAP_S: Final = 5.0
"""From a request to the answer of the next one at most: what lasts longer is a time without contact. Looks come once a
second; an API server that needs longer than about two for each answer is not trusted with deletions."""


class Contact:
    """Whether the API server has answered without a gap.

    Attributes:
        silent_s: how long it has not, in all.
    """

    def __init__(self) -> None:
        self._sent_s: float | None = None
        self.silent_s = 0.0

    def on_answer(self, sent_s: float, now_s: float) -> bool:
        """Note an answer that has come now; return whether no gap lies between it and the last answer.

        Args:
            sent_s: when the request was sent, on the clock of ``now_s``.
            now_s: the present.
        """
        before_s, self._sent_s = self._sent_s, sent_s
        gap_s = now_s - before_s if before_s is not None else 0.0
        if gap_s > GAP_S:
            self.silent_s += gap_s
        return before_s is not None and gap_s <= GAP_S

    def rest(self) -> None:
        """Note that nothing is asked for a while, because nothing lasts."""
        self._sent_s = None


class _Sight(msgspec.Struct, frozen=True):
    """What was seen of a node.

    Attributes:
        lost_s: since when it was not Ready each time; infinite if it is Ready.
        sent_s: when the last read was sent.
        exists: whether there was an object.
    """

    lost_s: float
    sent_s: float
    exists: bool


class Sightings:
    """What reads have shown of nodes that may be lost."""

    def __init__(self) -> None:
        self._seen: dict[str, _Sight] = {}

    def saw(self, name: str, node: Node | None, sent_s: float, now_s: float) -> None:
        """Note an answer that has come now.

        Args:
            name: the node's name.
            node: the object; None if there is none.
            sent_s: when the request was sent, on the clock of ``now_s``.
            now_s: the present.
        """
        before = self._seen.get(name)
        is_lost = node is None or not node.is_ready
        is_continued = before is not None and now_s - before.sent_s <= GAP_S
        since_s = min(before.lost_s, now_s) if before is not None and is_continued else now_s
        lost_s = since_s if is_lost else math.inf
        self._seen[name] = _Sight(lost_s, sent_s, node is not None)

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes."""
        for name in self._seen.keys() - set(names):
            del self._seen[name]

    def lost_for_s(self, name: str, now_s: float) -> float:
        """For how long a node has been seen not Ready; negative if it is Ready, or was not read lately."""
        seen = self._seen.get(name)
        if seen is None or now_s - seen.sent_s > GAP_S or math.isinf(seen.lost_s):
            return -1.0
        return max(seen.sent_s - seen.lost_s, 0.0)

    def is_ready(self, name: str, now_s: float) -> bool:
        """Whether a node was Ready when it was read lately."""
        seen = self._seen.get(name)
        return seen is not None and now_s - seen.sent_s <= GAP_S and math.isinf(seen.lost_s)

    def is_gone(self, name: str, now_s: float) -> bool:
        """Whether a node had no object when it was read lately."""
        return self.lost_for_s(name, now_s) >= 0 and not self._seen[name].exists

    def is_recent(self, name: str, now_s: float, within_s: float) -> bool:
        """Whether the last read of a node was sent so lately."""
        seen = self._seen.get(name)
        return seen is not None and now_s - seen.sent_s <= within_s
