"""Marks the faulty pods of jobs whose pods another program deletes, once what they lack is proved."""

from collections.abc import Callable, Iterable

import structlog

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.decision import JobPod
from allocator.rescheduling.faults import PodFault
from allocator.rescheduling.lookout import Lookout
from allocator.rules.rescheduling_labels import FaultLabels
from allocator.state.job import Job
from ascend.errors import ApiError, Unreachable

log = structlog.get_logger()


class Marker:
    """Marks pods, each once with the same fault.

    Args:
        actions: the requests.
        lookout: knows whether faults reach too far, and what is proved.
        announcer: says what would be done.
        leads: whether this allocator leads still: it may have been suspended.
        dry_run: whether it is only said which pods would be marked.
    """

    def __init__(
        self, actions: Actions, lookout: Lookout, announcer: Announcer, leads: Callable[[], bool], *, dry_run: bool
    ) -> None:
        self._actions = actions
        self._lookout = lookout
        self._leads = leads
        self._announcer = announcer
        self._dry_run = dry_run
        self._marked: dict[str, str] = {}

    async def mark(self, job: Job, members: Iterable[JobPod], switches: FaultLabels) -> None:
        """Annotate the faulty pods that are not marked with their fault.

        What can't be annotated is logged, and tried again with the next call.

        Raises:
            ApiError: the API server refuses to prove a fault.
            Unreachable: it does not answer.
        """
        faulty = [peer for peer in members if peer.fault and self._marked.get(peer.pod.uid) != _status(peer.fault)]
        stopped, evidence = self._lookout.extent.stopped, self._lookout.evidence
        if not faulty or (stopped is None and not evidence.is_due(faulty)):
            return
        why_not = stopped or await evidence.why_not(job, faulty, switches)
        if why_not is not None:
            self._announcer.hold(job, faulty[0].pod, f"nothing is marked: {why_not}")
        elif self._leads():
            await self._annotate(job, faulty)

    async def _annotate(self, job: Job, faulty: Iterable[JobPod]) -> None:
        for member in faulty:
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
