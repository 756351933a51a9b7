"""The nodes that have changed since a revision."""

from typing import Final

_LIMIT: Final = 65_536
"""The most nodes kept, more than a cluster has; beyond it the nodes unchanged for longest are dropped."""


class Changes:
    """The nodes in the order of their last change, each once.

    Attributes:
        revision: incremented on every change.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._last: dict[str, int] = {}
        self._forgotten = 0

    def note(self, node: str) -> None:
        """Record that a node was added, changed or removed."""
        self.revision += 1
        self._last.pop(node, None)
        self._last[node] = self.revision
        if len(self._last) > _LIMIT:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, revision: int) -> list[str] | None:
        """The nodes that have changed after a revision, the last one first; None if the revision is too old to know."""
        if revision < self._forgotten:
            return None
        changed = []
        for node, last in reversed(self._last.items()):
            if last <= revision:
                break
            changed.append(node)
        return changed
