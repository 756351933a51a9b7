"""Marks the faulty pods of jobs whose pods another program deletes."""

from collections.abc import Callable, Iterable

import structlog

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.decision import JobPod
from allocator.rescheduling.faults import PodFault
from allocator.state.job import Job
from ascend.errors import ApiError, Unreachable

log = structlog.get_logger()


class Marker:
    """Marks pods, each once with the same fault.

    Args:
        actions: the requests.
        announcer: says what would be done.
        dry_run: whether it is only said which pods would be marked.
    """

    def __init__(self, actions: Actions, announcer: Announcer, *, dry_run: bool) -> None:
        self._actions = actions
        self._announcer = announcer
        self._dry_run = dry_run
        self._marked: dict[str, str] = {}

    def unmarked(self, members: Iterable[JobPod]) -> list[JobPod]:
        """Return the faulty ones that are not marked with their fault."""
        return [peer for peer in members if peer.fault and self._marked.get(peer.pod.uid) != _status(peer.fault)]

    async def mark(self, job: Job, members: Iterable[JobPod]) -> None:
        """Annotate faulty pods; what can't be annotated is logged, and tried again with the next call."""
        for member in members:
            if member.fault is None:
                continue
            status = _status(member.fault)
            if self._dry_run:
                self._announcer.plan_mark(job, member.pod, status, member.fault.sentence)
                continue
            try:
                await self._actions.annotate(member.pod, status)
            except (ApiError, Unreachable) as error:
                log.warning("can't mark a faulty pod yet", pod=member.pod.key, error=str(error))
                continue
            self._marked[member.pod.uid] = status
            log.warning("marked a faulty pod", pod=member.pod.key, pod_uid=member.pod.uid, status=status)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Forget pods that are gone, given by their uids."""
        for uid in list(filter(is_gone, self._marked)):
            del self._marked[uid]


def _status(fault: PodFault) -> str:
    return f"Unhealthy-{fault.kind}"
