"""The decision: which nodes suit a pod, which is best, and keeping its chips for it. No I/O, no await.

kube-scheduler breaks ties between nodes at random, and while a pod's Binding is under way it already asks about the
next one. So the answers name one winner, and its chips are reserved at the moment the winner is named: what the next
pod is told no longer counts them. A pod's own reservation never stands in its own way.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from allocator.asking import Asking
from allocator.gangs.gangs import NEVER, Gangs
from allocator.rules.placement import OrderKey
from allocator.rules.request import Ask
from allocator.rules.summary import count_reasons, sum_up
from allocator.rules.vacancy import OCCUPIED, Fit
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod

SETTLED = "AlreadyPlaced"
"""The reason of every other node once the pod is bound to one, or its Binding is on its way."""

WITH_GANG = "PlacedWithGang"
"""The reason of every other node when the pod's place was chosen with those of its gang."""


@dataclass(frozen=True)
class Filtered:
    """Where a pod fits.

    Attributes:
        fitting: nodes, each once, in the order of the candidates.
        refused: why not on the others.
    """

    fitting: list[str]
    refused: dict[str, Refusal]

    @cached_property
    def refusals(self) -> Counter[Refusal]:
        """How many nodes each refusal is of; many share one."""
        return Counter(self.refused.values())

    @cached_property
    def reasons(self) -> Counter[str]:
        """How many nodes refuse for which reason."""
        return count_reasons(self.refusals)


@dataclass(frozen=True, slots=True)
class Tier:
    """Nodes a pod fits on equally well.

    Attributes:
        rank: 1 is the best.
        score: the reference scheduler's number for the placement; 0 for the node of a pod that is settled already.
        nodes: by name, so that the first of the first tier is the winner.
    """

    rank: int
    score: int
    nodes: list[str]


class DecisionEngine:
    """Decides on the cluster and the ledger.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        gang_ttl_s: how long a gang's places are kept after one of its pods was bound last.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, *, gang_ttl_s: float = 120.0) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._asking = Asking(cluster, ledger)
        self.gangs = Gangs(cluster, ledger, ttl_s=gang_ttl_s, ask_of=self.ask)

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod is ours to judge: it asks for chips, or for more parts of chips than it may have."""
        return self._asking.concerns(pod)

    def validate(self, pod: Pod) -> None:
        """Let a pod pass that some node could take, or that is not ours to judge.

        Raises:
            Refusal: what it asks for makes no sense on any node.
        """
        if self.concerns(pod):
            self.ask(pod)

    def ask(self, pod: Pod) -> Ask:
        """What the rules have to know of a pod.

        Raises:
            Refusal: its request makes no sense on any node; or it is gone, which its scheduler may learn after us: what
                was kept for it now, nobody would give back before its time.
        """
        return self._asking.read(pod).ask

    def ask_of_one_node(self, pod: Pod) -> Ask:
        """What a pod asks of a node that is judged for it alone, and not for its whole gang.

        Raises:
            Refusal: its request makes no sense on any node, or it is gone.
        """
        asked = self._asking.read(pod)
        beside = self._asking.beside_peers(pod, asked.ask, asked.gang) if asked.gang is not None else None
        return beside or asked.ask

    def filter(self, pod: Pod, candidates: Collection[str] | None = None) -> Filtered:
        """Where a pod fits now; reserves nothing.

        Args:
            pod: the pod.
            candidates: names of nodes; None for every node.

        Raises:
            Refusal: the pod's request makes no sense on any node.
        """
        self._tidy()
        asked = self._asking.read(pod, candidates)
        settled = self.settled_node(pod)
        if settled is not None:
            return self._filter_settled(pod, settled, candidates)
        if asked.gang is not None:
            return self._filter_gang(pod, asked.ask, asked.gang, candidates)
        with self._ledger.suspended(pod.uid):
            return Filtered(*self._cluster.index.sift(asked.ask, candidates))

    def rank(self, pod: Pod, candidates: Collection[str] | None = None) -> list[Tier]:
        """The nodes a pod fits on, best first; reserves nothing.

        Raises:
            Refusal: the pod's request makes no sense on any node.
        """
        self._tidy()
        asked = self._asking.read(pod, candidates)
        settled = self.settled_node(pod)
        if settled is not None:
            return [Tier(1, 0, [settled])] if candidates is None or settled in set(candidates) else []
        if asked.gang is not None:
            fitting = self._filter_gang(pod, asked.ask, asked.gang, candidates).fitting
            return [Tier(1, 0, fitting)] if fitting else []
        tiers: dict[tuple[OrderKey, int], list[str]] = {}
        with self._ledger.suspended(pod.uid):
            for name, verdict in self._cluster.index.verdicts(asked.ask, candidates).items():
                if not isinstance(verdict, Refusal):
                    tiers.setdefault((verdict.key, verdict.score), []).append(name)
        ranked = enumerate(sorted(tiers.items()), start=1)
        return [Tier(rank, score, sorted(names)) for rank, ((_, score), names) in ranked]

    def fits(self, pod: Pod) -> list[tuple[str, Fit]]:
        """Every node a pod fits on, and how: best first, by name among equals; reserves nothing.

        For a pod of a gang that are nodes of the product its gang goes to.

        Raises:
            Refusal: the pod's request makes no sense on any node, or its gang can't be placed.
        """
        self._tidy()
        asked = self._asking.read(pod)
        ask = asked.ask
        if asked.gang is not None:
            record = self._cluster.nodes.get(self.gangs.preview(pod, ask, asked.gang, None))
            if record is not None and record.product is not None:
                ask = replace(ask, peers=frozenset({record.product.name}))
        with self._ledger.suspended(pod.uid):
            verdicts = self._cluster.index.verdicts(ask)
        return sorted(((name, fit) for name, fit in verdicts.items() if not isinstance(fit, Refusal)), key=_order)

    def place(self, pod: Pod, candidates: Collection[str] | None = None) -> Reservation:
        """Choose node and chips for a pod and reserve them.

        A reservation the pod has is kept if it is on a candidate and still good, its time starting anew, so the
        answer is the same when asked again; otherwise it is given up for the new one in the same step.

        Raises:
            Refusal: it fits nowhere; says why (the reason of the node where there is only one candidate).
        """
        reservation = self.place_if_it_fits(pod, candidates)
        if reservation is None:
            raise self._nowhere(pod, self._asking.read(pod, candidates).ask, candidates)
        return reservation

    def place_if_it_fits(self, pod: Pod, candidates: Collection[str] | None = None) -> Reservation | None:
        """The same for those who ask ``filter`` why not: a pod that fits on no node, or no longer, gets None.

        Raises:
            Refusal: it is not a matter of one pod and its nodes: the request, its gang, or where it is already.
        """
        self._tidy()
        asked = self._asking.read(pod, candidates)
        ask = asked.ask
        held = self._ledger.get(pod.uid)
        settled = self.settled_node(pod)
        if settled is not None and (held is None or (candidates is not None and settled not in candidates)):
            raise Refusal(SETTLED, f"pod {pod.key} is bound to node {settled}, or about to be")
        if held is not None and settled is not None:
            return held
        if asked.gang is not None:
            return self.gangs.place(pod, ask, asked.gang, candidates)
        if held is not None:
            if held.stage is Stage.PLANNED:
                # Its group is gone: it is placed alone now.
                self._ledger.release(pod.uid)
            elif (candidates is None or held.node in candidates) and self._cluster.suits(held, ask):
                return self._ledger.advance(pod.uid, Stage.TENTATIVE) or held
        with self._ledger.suspended(pod.uid):
            best = self._cluster.index.best(ask, candidates)
            if best is not None:
                best = self._before(pod, asked.job, ask, candidates, best)
        if best is None:
            self._ledger.release(pod.uid)
            return None
        node, fit = best
        return self._ledger.reserve(uid=pod.uid, pod=pod.key, node=node, chips=fit.chips)

    def release(self, uid: str) -> bool:
        """Give up what is kept for a pod alone, unless its Binding is on its way or done; whether anything was.

        The seat of a pod of a gang is kept: its plan has a time of its own.
        """
        held = self._ledger.get(uid)
        if held is None or held.stage is not Stage.TENTATIVE:
            return False
        self._ledger.withdraw(uid)
        return True

    def held(self, uid: str) -> Reservation | None:
        """What is kept for a pod."""
        return self._ledger.get(uid)

    def settled_node(self, pod: Pod) -> str | None:
        """The node a pod is bound to as far as we know, or that its Binding on its way names."""
        held = self._ledger.get(pod.uid)
        if held is not None and held.stage not in (Stage.TENTATIVE, Stage.PLANNED):
            return held.node
        seen = self._cluster.pods.get(pod.uid)
        return seen.spec.node_name or None if seen is not None else None

    def may_fit(self, pod: Pod) -> bool:
        """Whether a pod that was refused could be placed now, on whatever node."""
        self._tidy()
        gang = self._gang_of(pod)
        if gang is not None:
            return self.gangs.may_fit(pod, gang)
        try:
            return self._cluster.index.best(self.ask(pod)) is not None
        except Refusal:
            return False

    def is_of_gang(self, pod: Pod) -> bool:
        """Whether the pod is placed together with others, or not at all."""
        return self._gang_of(pod) is not None

    def _tidy(self) -> None:
        """Give up what nobody will use any more."""
        self._ledger.expire()
        self.gangs.tidy()

    def _gang_of(self, pod: Pod) -> Job | None:
        return self._cluster.jobs.gang(self._cluster.jobs.job_of(pod))

    def _filter_gang(self, pod: Pod, ask: Ask, gang: Job, candidates: Iterable[str] | None) -> Filtered:
        names = list(self._cluster.index.standing if candidates is None else candidates)
        fitting = []
        try:
            node = self.gangs.preview(pod, ask, gang, None if candidates is None else names)
        except Refusal as refusal:
            elsewhere = refusal.with_traceback(None)
            if refusal.reason in NEVER:
                return Filtered([], dict.fromkeys(names, elsewhere))
        else:
            fitting = [node]
            elsewhere = Refusal(WITH_GANG, f"pod {pod.key} has its place with its gang, on node {node}")
        # Not even an occupied node invites to preempt: room for one pod is no room for its gang.
        refused = {
            name: verdict if isinstance(verdict, Refusal) and verdict.reason not in OCCUPIED else elsewhere
            for name, verdict in self._cluster.index.verdicts(ask, names).items()
            if name not in fitting
        }
        return Filtered(fitting, refused)

    def _filter_settled(self, pod: Pod, settled: str, candidates: Iterable[str] | None) -> Filtered:
        names = list(self._cluster.index.standing if candidates is None else candidates)
        refusal = Refusal(SETTLED, f"pod {pod.key} is bound to node {settled}, or about to be")
        return Filtered(
            [name for name in names if name == settled], {name: refusal for name in names if name != settled}
        )

    def _before(
        self, pod: Pod, job: Job, ask: Ask, candidates: Collection[str] | None, best: tuple[str, Fit]
    ) -> tuple[str, Fit]:
        """Where a pod goes if it should come back to its node, that has its images and files, or leave others to peers.

        That is its own previous node, else the best node that no pod of its job was on, else the best of all
        (spec/scheduling.md §1.4, step 3). ``best`` is that best of all, and the answer where nobody wants more.
        """
        index = self._cluster.index
        previous = self._cluster.previous.of(job.key) if self._cluster.previous is not None else {}
        own = previous.get(job.rank_of(pod)) if previous else None
        if own is not None and (candidates is None or own in candidates):
            fit = index.best(ask, (own,))
            if fit is not None:
                return fit
        used = set(previous.values())
        if best[0] not in used:
            return best
        unused = [name for name in (index.standing if candidates is None else candidates) if name not in used]
        return index.best(ask, unused) or best

    def _nowhere(self, pod: Pod, ask: Ask, candidates: Collection[str] | None) -> Refusal:
        if candidates is not None and len(candidates) == 1:
            (verdict,) = self._cluster.index.verdicts(ask, candidates).values()
            if isinstance(verdict, Refusal):
                return Refusal(verdict.reason, verdict.message)
        return sum_up(pod.key, ask.chips, self._cluster.index.reasons(ask, candidates))


def _order(node: tuple[str, Fit]) -> tuple[OrderKey, str]:
    return node[1].key, node[0]
