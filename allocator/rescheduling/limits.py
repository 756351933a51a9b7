"""Whether pods of a job may be deleted now."""

from collections import Counter
from collections.abc import Iterable

from allocator.rescheduling.budget import Budget, Spent
from allocator.rescheduling.decision import PodChoice, may_restart
from allocator.rescheduling.faults import is_counted
from allocator.rescheduling.memory import Recovery
from allocator.rescheduling.owners import owner_uid, why_nobody
from allocator.rules.rescheduling_labels import FaultLabels
from allocator.state.cluster import Cluster


def is_again(choice: PodChoice, recovery: Recovery) -> bool:
    """Return whether these pods were to be deleted before, and could not be: that counts only once."""
    return {member.pod.uid for member in choice.pods} <= set(recovery.chosen)


class DeletionLimits:
    """Knows who creates pods anew, and how many may go.

    Args:
        cluster: the pods and their controllers.
        budget: limits of pods and times.
    """

    def __init__(self, cluster: Cluster, budget: Budget) -> None:
        self._cluster = cluster
        self._budget = budget

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
        was_allowed = is_again(choice, recovery)
        if choice.reason is not None and not (was_allowed or may_restart(choice.reason, switches, recovery.retries)):
            return f"a pod has failed, and fault-retry-times is {switches.retries}: it has been replaced so often"
        if (why_not := self._why_nobody(choice, recovery) or stopped) is not None:
            return f"nothing is deleted: {why_not}"
        earlier = [] if was_allowed else recovery.times_s
        return self._budget.why_not(len(choice.pods), recent, earlier, now_s)

    def _why_nobody(self, choice: PodChoice, recovery: Recovery) -> str | None:
        by_owner = Counter(owner_uid(member.pod) for member in choice.pods if not is_counted(member.pod))
        # Those deleted before may not have been counted by their controller yet.
        by_owner.update(owner_uid(pod) for uid in recovery.deleted if (pod := self._cluster.pods.get(uid)) is not None)
        for member in choice.pods:
            owned = self._cluster.jobs.owned_by(member.pod)
            if (nobody := why_nobody(member.pod, owned, by_owner[owner_uid(member.pod)])) is not None:
                return nobody
        return None
