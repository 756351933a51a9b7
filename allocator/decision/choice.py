"""Where a pod placed alone may be, besides having room: not beside its peers, and on its previous node."""

from collections.abc import Collection

from allocator.decision.filtered import Filtered
from allocator.decision.request import ResolvedRequest
from allocator.rules.summary import sum_up
from allocator.rules.verdicts import Fit, peer_on_node
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.view import Without
from ascend.errors import Refusal
from ascend.kube.objects import Pod


class Choice:
    """Chooses among the nodes with room.

    Args:
        cluster: nodes, pods and jobs.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def without_peers(
        self, pod: Pod, resolved: ResolvedRequest, candidates: Collection[str] | None
    ) -> Collection[str] | None:
        """The candidates on which no pod of the pod's job is, if that is spread."""
        job = resolved.job
        if not resolved.chips.is_spread or not job.placed_beside(pod.uid):
            return candidates
        names = self._cluster.index.entries if candidates is None else candidates
        return [name for name in names if not job.shares(name, pod.uid)]

    def partition(self, pod: Pod, resolved: ResolvedRequest, candidates: Collection[str] | None) -> Filtered:
        """The nodes on which a pod placed alone fits, and the refusals of the others."""
        fitting, refused = self._cluster.view(Without.of(pod)).partition(resolved.chips, candidates)
        allowed = self.without_peers(pod, resolved, fitting)
        if allowed is None or len(allowed) == len(fitting):
            return Filtered(fitting, refused)
        peer = peer_on_node()
        return Filtered(list(allowed), refused | {name: peer for name in fitting if resolved.job.shares(name, pod.uid)})

    def refusal(self, pod: Pod, resolved: ResolvedRequest, candidates: Collection[str] | None) -> Refusal:
        """Why a pod placed alone fits on no candidate; with one candidate, the reason of that node."""
        request, index, reasons = resolved.chips, self._cluster.view(Without.of(pod)), None
        if request.is_spread or (candidates is not None and len(candidates) == 1):
            refused = self.partition(pod, resolved, candidates)
            if len(refused.refused) == 1:
                (refusal,) = refused.refusals
                return Refusal(refusal.reason, refusal.message)
            reasons = refused.reasons
        return sum_up(pod.key, request.what, index.reasons(request, candidates) if reasons is None else reasons)

    def best(
        self, pod: Pod, resolved: ResolvedRequest, candidates: Collection[str] | None, index: NodeIndex
    ) -> tuple[str, Fit] | None:
        """Where a pod is placed that is placed alone; None if it fits nowhere.

        It should return to its node, which has its images and files: its own previous node, unless pods of its job have
        failed there; else the best node on which no pod of its job was or has failed, else its own, else the best of
        all (docs/spec/scheduling.md#previous-node).
        """
        request, job = resolved.chips, resolved.job
        best, faulty = index.best(request, candidates), self._cluster.faulty_nodes.of(job.key)
        previous = self._cluster.previous.of(job.key) if self._cluster.previous is not None else {}
        if best is None or not (previous or faulty):
            return best
        own = previous.get(job.rank_of(pod)) if previous else None
        own_fit = index.best(request, (own,)) if own is not None and (candidates is None or own in candidates) else None
        if own_fit is not None and own not in faulty:
            return own_fit
        used = {*previous.values(), *faulty}
        if best[0] not in used:
            return best
        unused = [name for name in (index.entries if candidates is None else candidates) if name not in used]
        return index.best(request, unused) or own_fit or best
