"""Marks the faulty pods of jobs whose pods another program deletes."""

from collections.abc import Callable, Iterable

import structlog

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.decision import Member
from ascend.errors import ApiError, Unreachable

log = structlog.get_logger()


class Marker:
    """Marks pods, each once with the same fault.

    Args:
        actions: the requests.
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._marked: dict[str, str] = {}

    async def mark(self, members: Iterable[Member]) -> None:
        """Annotate the faulty ones; what can't be annotated is logged, and tried again with the next call."""
        for member in members:
            if member.fault is None:
                continue
            status = f"Unhealthy-{member.fault.kind}"
            if self._marked.get(member.pod.uid) == status:
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
