"""Which nodes have changed since when: each once, in the order of its last change, so that watchers can catch up."""

from typing import Final

_REMEMBERED: Final = 65_536
"""More nodes than a cluster has; beyond it the longest unchanged are forgotten."""


class Changes:
    """The order in which nodes have changed.

    Attributes:
        revision: grows with every change.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._last: dict[str, int] = {}
        self._forgotten = 0

    def note(self, node: str) -> None:
        """A node has changed, come or gone."""
        self.revision += 1
        self._last.pop(node, None)
        self._last[node] = self.revision
        if len(self._last) > _REMEMBERED:
            oldest = next(iter(self._last))
            self._forgotten = self._last.pop(oldest)

    def since(self, revision: int) -> list[str] | None:
        """The nodes that have changed after a revision, the last one first; None where that is not known any more."""
        if revision < self._forgotten:
            return None
        changed = []
        for node, last in reversed(self._last.items()):
            if last <= revision:
                break
            changed.append(node)
        return changed
