"""What has changed: the nodes since a revision; who is called after each change of a pod."""

from collections.abc import Callable
from typing import Final

from ascend.kube.objects import Pod

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


class PodFollowers:
    """Calls each follower, in the order in which they were added, when the state includes the change."""

    def __init__(self) -> None:
        self._applied: list[Callable[[Pod], None]] = []
        self._deleted: list[Callable[[Pod], None]] = []

    def add(self, applied: Callable[[Pod], None], deleted: Callable[[Pod], None]) -> None:
        """Add a follower: what is called after a pod was added or updated, and after it was removed."""
        self._applied.append(applied)
        self._deleted.append(deleted)

    def on_pod(self, pod: Pod) -> None:
        """A pod was added or updated."""
        for follower in self._applied:
            follower(pod)

    def on_deletion(self, pod: Pod) -> None:
        """A pod was removed."""
        for follower in self._deleted:
            follower(pod)
