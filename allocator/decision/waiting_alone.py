"""The pods that are placed alone and wait for chips, the oldest of the highest priority first. No I/O.

Such a pod waits from its first refusal on: before it, its scheduler may be about to place it, and nothing has to be
kept. A pod that can't use chips now (its scheduler refuses it for other reasons, it would not fit on an empty node,
what was kept for it was of no use) is passed over, and looked at again when it changes, or after some time; so a
decision does not take longer the more of them there are.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final

from allocator.decision.setbacks import Setbacks
from allocator.decision.waiting_gangs import Need
from allocator.gangs.gangs import Gangs
from allocator.rules.request import ChipRequest
from allocator.rules.scheduled import verdict_on
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_MOST: Final = 32
"""The most pods that are looked at again at one time."""

_Order = tuple[int, str, str]


class WaitingAlone:
    """Reads what waiting pods need.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gangs: what is placed together; says what pods lack besides chips.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        setbacks: for which jobs nothing is kept for some time.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        request_of: Callable[[Pod], ChipRequest],
        setbacks: Setbacks,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._obstacles = gangs.obstacles
        self._request_of = request_of
        self._setbacks = setbacks
        self._ordered: list[_Order] = []
        self._known: dict[str, _Order] = {}
        self._passed_over: dict[str, None] = {}
        self._last: Need | None = None
        self.revision = 0
        """Changes with the pods that wait."""

    def __len__(self) -> int:
        return len(self._known)

    def follow(self) -> None:
        """Note every pod that its scheduler has refused, and forget those that wait no longer."""
        for pod in self._cluster.waiting:
            self._applied(pod)
        self._cluster.followers.add(self._applied, self._forget)

    def note(self, pod: Pod) -> None:
        """Note a pod that was refused because it does not fit."""
        if pod.uid not in self._known and pod.uid in self._cluster.pods and not self._is_of_gang(pod):
            order = self._known[pod.uid] = -pod.priority, pod.metadata.creation_timestamp or "", pod.uid
            insort(self._ordered, order)
            self.revision += 1

    def pass_over(self, uid: str) -> None:
        """Look at other pods first: this one can't use any chips now."""
        order = self._known[uid]
        del self._ordered[bisect_left(self._ordered, order)]
        self._passed_over[uid] = None

    def look_again(self) -> None:
        """Look again at some pods that were passed over, those first that were so for longest. Call it periodically."""
        for uid in list(self._passed_over)[:_MOST]:
            self._return(uid)

    def needs(self) -> Iterator[Need]:
        """What the waiting pods need, in the order in which they come first."""
        position = 0
        while position < len(self._ordered):
            order = self._ordered[position]
            uid = order[2]
            if self._ledger.get(uid) is None:
                need = self._read(self._cluster.pods[uid], order)
                if need is None:
                    self.pass_over(uid)
                else:
                    yield need
            if self._ordered[position : position + 1] == [order]:
                position += 1

    def _read(self, pod: Pod, order: _Order) -> Need | None:
        job = self._cluster.jobs.job_of(pod)
        if self._setbacks.is_aside(job.key) or self._obstacles.of_pod(pod) is not None:
            return None
        version, last = (job.version, self._cluster.labels.version), self._last
        if last is not None and last.pod is pod and last.version == version:
            return last
        try:
            request = self._request_of(pod)
        except Refusal:
            return None
        if not request.is_for_chips or self._is_of_gang(pod):
            return None
        selector = pod.spec.node_selector
        candidates = self._cluster.labels.selected(selector) if selector else None
        what = f"pod {pod.key}"
        self._last = Need(order, pod.uid, job.key, what, pod, version, pod.priority, request, 1, candidates)
        return self._last

    def _is_of_gang(self, pod: Pod) -> bool:
        return self._cluster.jobs.gang(self._cluster.jobs.job_of(pod)) is not None

    def _applied(self, pod: Pod) -> None:
        if not pod.waits_for_chips or pod.is_terminating:
            self._forget(pod)
        elif pod.uid in self._known:
            self._return(pod.uid)
        elif (verdict := verdict_on(pod)) is not None and verdict.status == "False":
            self.note(pod)

    def _return(self, uid: str) -> None:
        if uid in self._passed_over:
            del self._passed_over[uid]
            insort(self._ordered, self._known[uid])
            self.revision += 1

    def _forget(self, pod: Pod) -> None:
        order = self._known.pop(pod.uid, None)
        if order is None:
            return
        self.revision += 1
        if pod.uid in self._passed_over:
            del self._passed_over[pod.uid]
        else:
            del self._ordered[bisect_left(self._ordered, order)]
