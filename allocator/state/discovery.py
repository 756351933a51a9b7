"""The watched kinds of groups and objects, and the jobs of a kind that may be served since the last look.

Pod groups and many jobs are custom resources, which can be installed at any time, and pods that name one can come
right after that. Such a job waits until the kind has been looked for once more: if it is served, its objects say how
many pods start together; if not, they start one by one.
"""

from collections.abc import Callable, Collection

from allocator.rules.job import JobKey


class Discovery:
    """The jobs that wait for a look.

    Attributes:
        watched: the names of the informers that watch a kind, by kind; without the kinds that none watches.
    """

    def __init__(self) -> None:
        self.watched: dict[str, set[str]] = {}
        self._looks: dict[str, dict[str, Callable[[], None]]] = {}
        self._waiting: dict[JobKey, set[str]] = {}

    def register(self, kind: str, informer: str, look: Callable[[], None]) -> None:
        """Register the informer of a kind that may not be served.

        Args:
            kind: the kind of the group or object, as in ``JobKey.kind``; it can have several informers.
            informer: the informer's name.
            look: makes it look soon whether the kind is served.
        """
        self._looks.setdefault(kind, {})[informer] = look

    def job_seen(self, key: JobKey, kind: str) -> None:
        """Let a new job wait until each informer of a kind that is not watched has looked again."""
        looks = self._looks.get(kind, {}) if kind not in self.watched else {}
        if looks:
            self._waiting[key] = set(looks)
        for look in looks.values():
            look()

    def is_waiting(self, key: JobKey) -> bool:
        """Whether a job waits."""
        return key in self._waiting

    def waiting_for(self, informer: str) -> list[JobKey]:
        """The jobs that wait for an informer."""
        return [key for key, informers in self._waiting.items() if informer in informers]

    def not_served(self, informer: str, keys: Collection[JobKey]) -> list[JobKey]:
        """Record an informer's look after these jobs began to wait; return the jobs whose wait is over."""
        for key in keys:
            self._waiting.get(key, set()).discard(informer)
        done = [key for key in keys if not self._waiting.get(key, {""})]
        for key in done:
            del self._waiting[key]
        return done

    def on_watched(self, kind: str, informer: str) -> None:
        """Record that an informer watches a kind."""
        self.watched.setdefault(kind, set()).add(informer)

    def on_unserved(self, kind: str, informer: str) -> bool:
        """Record that the kind of an informer is no longer served; return whether no informer is left."""
        self.watched[kind].discard(informer)
        if is_last := not self.watched[kind]:
            del self.watched[kind]
        return is_last

    def forget(self, key: JobKey) -> None:
        """Let a job wait no longer: it is gone, or its kind is watched."""
        self._waiting.pop(key, None)
