"""Whether pods of a job may be deleted now, and how many: a wrong report must not empty a cluster."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from allocator.rescheduling.decision import PodChoice, may_restart
from allocator.rescheduling.faults import is_counted
from allocator.rescheduling.memory import Recovery
from allocator.rescheduling.owners import owner_uid, why_nobody
from allocator.rules.rescheduling_labels import FaultLabels
from allocator.state.cluster import Cluster
from ascend.grammar import count

WINDOW_S: Final = 60.0
HOUR_S: Final = 3600.0
Spent: TypeAlias = tuple[float, int]
"""When pods were deleted, Unix seconds, and how many."""
UNKNOWN: Final = 1 << 40
"""So many pods were deleted, if the number can't be read."""


def spend(pods: int, recent: Iterable[Spent], now_s: float) -> list[Spent]:
    """Return what was deleted within the last minute after pods are deleted now."""
    return [*(entry for entry in recent if entry[0] > now_s - WINDOW_S), (now_s, pods)]


class DeletionLimits:
    """Knows who creates pods anew, and how many may go.

    Args:
        cluster: the pods and their controllers.
        per_minute: how many pods may be deleted in a minute. One job may always be: it is restarted as a whole.
        per_hour: how often pods of one job may be deleted in an hour.
    """

    def __init__(self, cluster: Cluster, per_minute: int, per_hour: int) -> None:
        self._cluster = cluster
        self._per_minute = per_minute
        self._per_hour = per_hour

    def why_not(
        self,
        choice: PodChoice,
        recovery: Recovery,
        switches: FaultLabels,
        *,
        stopped: str | None,
        recent: Iterable[Spent],
        now_s: float,
    ) -> str | None:
        """Return why pods must not be deleted now, a sentence; None if they may.

        Args:
            choice: the pods.
            recovery: what was done about their job.
            switches: what the job says.
            stopped: why nothing is deleted at all, a sentence; None if that is not so.
            recent: what was deleted before, of all jobs.
            now_s: the present, Unix seconds.
        """
        was_allowed = recovery.is_again(choice)
        if choice.reason is not None and not (was_allowed or may_restart(choice.reason, switches, recovery.retries)):
            return f"a pod has failed, and fault-retry-times is {switches.retries}: it has been replaced so often"
        if (why_not := self._why_nobody(choice, recovery) or stopped) is not None:
            return f"nothing is deleted: {why_not}"
        return self.why_too_many(len(choice.pods), recent, [] if was_allowed else recovery.times_s, now_s)

    def _why_nobody(self, choice: PodChoice, recovery: Recovery) -> str | None:
        by_owner = Counter(owner_uid(member.pod) for member in choice.pods if not is_counted(member.pod))
        # Those deleted before may not have been counted by their controller yet.
        by_owner.update(owner_uid(pod) for uid in recovery.deleted if (pod := self._cluster.pods.get(uid)) is not None)
        for member in choice.pods:
            owned = self._cluster.jobs.owners.of(member.pod)
            if (nobody := why_nobody(member.pod, owned, by_owner[owner_uid(member.pod)])) is not None:
                return nobody
        return None

    def why_too_many(self, pods: int, recent: Iterable[Spent], earlier: Iterable[float], now_s: float) -> str | None:
        """Return which limit so many pods of a job would exceed, a sentence; None if they would not.

        Args:
            pods: how many.
            recent: what was deleted before, of all jobs.
            earlier: when pods of the job were deleted before, Unix seconds.
            now_s: the present, Unix seconds.
        """
        times = sum(time_s > now_s - HOUR_S for time_s in earlier)
        if times >= self._per_hour:
            return (
                f"its pods were deleted {count(times, 'time')} within the last hour, and the limit is {self._per_hour}"
            )
        used = sum(number for at_s, number in recent if at_s > now_s - WINDOW_S)
        if used >= UNKNOWN:
            return "how many pods were deleted within the last minute can't be read"
        if used and used + pods > self._per_minute:
            return f"{used} pods were deleted within the last minute, and the limit is {self._per_minute}"
        return None
