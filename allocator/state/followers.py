"""Who is called after each change of a pod."""

from collections.abc import Callable

from ascend.kube.objects import Pod


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
