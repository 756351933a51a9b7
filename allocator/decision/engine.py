"""Decides on single pods: judges and ranks the nodes, and reserves chips. No I/O.

kube-scheduler breaks ties between nodes at random, and it filters the next pod while the Binding of the last one is in
flight. So an answer names one node, and the chips are reserved in the same step: for the next pod they are no longer
free. A pod's own reservation never counts against the pod.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from heapq import merge
from typing import Final

from msgspec.structs import replace

from allocator.decision.choice import Choice
from allocator.decision.earmarks import LOANS, Earmarks
from allocator.decision.filtered import Filtered, Tier, gang_refused, on_settled, settled_refusal
from allocator.decision.request import RequestReader, ResolvedRequest
from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import GradualPlans, resume_gangs
from allocator.rules.asked import NO_DEFAULTS, JobDefaults
from allocator.rules.own_devices import named_devices, named_node
from allocator.rules.request import ChipRequest
from allocator.rules.validity import JobShape, invalidity
from allocator.rules.verdicts import Fit
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from allocator.state.view import Without
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import chip_model
from ascend.rules.placement import OrderKey
from ascend.turn import Steps, at_once

_STEP: Final = 4096
"""After so many nodes that refuse a pod there may be a pause."""


class DecisionEngine:
    """Decides on single pods.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gang_ttl_s: how long the unused seats of a gang stay reserved after one of its pods was bound.
        defaults: what an administrator has set for all jobs.
        earmark_share: the largest share of the cluster's chips that are kept for a job that waits; 0 for none.
        loans: how many times such a job lends chips to another pod, for each of its own pods that must be placed.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        *,
        gang_ttl_s: float = 120.0,
        defaults: JobDefaults = NO_DEFAULTS,
        earmark_share: float = 0.0,
        loans: int = LOANS,
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.cluster = cluster
        self.ledger = ledger
        self._choice = Choice(cluster)
        self.defaults = defaults
        cluster.switches.limits = defaults.switches
        self._reader = RequestReader(cluster, ledger, defaults)
        self.gangs = Gangs(
            cluster, ledger, ttl_s=gang_ttl_s, request_of=self.request_of, policy_of=self._reader.policy, now_s=now_s
        )
        self.plans = GradualPlans(cluster, ledger, self.gangs)
        self.earmarks = Earmarks(
            cluster, ledger, self.gangs, self.request_of, share=earmark_share, loans=loans, now_s=now_s
        )

    async def prepare(self, pod: Pod, candidates: Collection[str] | None = None) -> Collection[str] | None:
        """Plan the gang of a pod piece by piece if that takes long; a decision right after it finds the pod's seat.

        Returns:
            The candidates for this decision, in no order if they were made a set.
        """
        gang = self.gang_of(pod)
        return await self.plans.make(pod, gang, candidates) if gang is not None else candidates

    async def resume(self) -> list[Job]:
        """Plan the rest of gangs that have started; returns the gangs whose rest does not fit."""
        return await resume_gangs(self.cluster, self.ledger, self.gangs, self.plans)

    def handles(self, pod: Pod) -> bool:
        """Whether the allocator judges a pod: it requests chips, or more vNPUs than are allowed."""
        return self._reader.handles(pod)

    def validate(self, pod: Pod) -> None:
        """Accept a pod that some node could take, or that is not the allocator's to judge.

        Raises:
            Refusal: its request is invalid on every node.
        """
        if self.handles(pod):
            self.request_of(pod)

    def validate_here(self, pod: Pod) -> None:
        """Accept a pod that a server of this cluster could take, usable or not, or that the allocator does not judge.

        Raises:
            Refusal: its request is invalid on every node, or on those of all products of which there are nodes.
        """
        if not self.handles(pod):
            return
        request = self.request_of(pod)
        there = self.cluster.labels.products()
        suited = there if request.products is None else there & request.products
        if suited and request.is_for_chips:
            shape = JobShape(f"pod {pod.key}", frozenset({request.chips}), 1 + request.distributed, suited)
            if (refusal := invalidity(shape)) is not None:
                raise Refusal(refusal.reason, f"{refusal.message}; the cluster has no other servers for it")

    def without_effect(self, pod: Pod) -> tuple[str, ...]:
        """The requests of a pod or its job without effect, one sentence for each."""
        return self.cluster.jobs.without_effect(pod)

    def advice(self, pod: Pod) -> tuple[str, ...]:
        """What the makers of the hardware advise against in the job of a pod, one sentence for each."""
        try:
            return self._reader.policy(pod).advice(self.cluster)
        except Refusal:
            return ()

    def warnings(self, pod: Pod) -> tuple[str, ...]:
        """What the author of a pod is told when it is created.

        What has no effect, what is advised against, with what it takes devices without the allocator, whether it waits
        for nodes of its product, and whether its job can't be scaled up.
        """
        by_hand = (*named_devices(pod), *filter(None, [named_node(pod)]))
        judged = (
            (*self.advice(pod), *self._absent_product(pod), *self.against_scaling(pod)) if self.handles(pod) else ()
        )
        return (*self.without_effect(pod), *judged, *by_hand)

    def against_scaling(self, pod: Pod) -> tuple[str, ...]:
        """Why the job of a pod can't be scaled up, a sentence; none if it can, or if it has several pods already."""
        return self._reader.against_scaling(pod)

    def _absent_product(self, pod: Pod) -> tuple[str, ...]:
        try:
            wanted = self.request_of(pod).products
        except Refusal:
            return ()
        there = self.cluster.labels.products()
        if wanted is None or not there or there & wanted:
            return ()
        names = " or ".join(sorted(wanted))
        return (f"pod {pod.key} is for {names} servers, of which this cluster has none: it waits until one comes",)

    def request_of(self, pod: Pod) -> ChipRequest:
        """The properties of a pod's request that rules depend on.

        Raises:
            Refusal: the request is invalid on every node; or the pod was deleted, which its scheduler may notice later
                than the informers: nothing would release what was reserved for it now.
        """
        return self._reader.read(pod).chips

    def resolve(self, pod: Pod) -> ResolvedRequest:
        """A pod's whole request, with its gang and the placement policy of its job.

        Raises:
            Refusal: its request is invalid on every node.
        """
        return self._reader.read(pod)

    async def preview(self, pod: Pod, candidates: Collection[str] | None = None) -> str | None:
        """The node of a pod in a plan of its large gang that is made piece by piece, to pass to ``filter`` or ``rank``.

        None if there is none yet, or no need for one: then these make a plan, find the pod's seat, or say why not.
        """
        gang = self.gang_of(pod)
        return await self.plans.preview(pod, gang, candidates) if gang is not None else None

    def filter(self, pod: Pod, candidates: Collection[str] | None = None, seat: str | None = None) -> Filtered:
        """Where a pod fits now; reserves nothing. Arguments and exceptions are those of ``filtering``."""
        return at_once(self.filtering(pod, candidates, seat))

    def filtering(
        self, pod: Pod, candidates: Collection[str] | None = None, seat: str | None = None
    ) -> Steps[Filtered]:
        """Where a pod fits now; reserves nothing. It pauses only between nodes, if there are thousands.

        Args:
            pod: the pod.
            candidates: names of nodes; None for every node.
            seat: the result of ``preview``.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        self._prune()
        resolved = self._reader.read(pod, candidates)
        names = list(self.cluster.index.entries if candidates is None else candidates)
        settled = self.settled_node(pod)
        if settled is not None:
            return on_settled(pod, settled, names)
        if resolved.gang is None:
            return (yield from self._explain(pod, resolved, names, None))
        try:
            node = seat or self.gangs.preview(pod, resolved.chips, resolved.gang, candidates)
        except Refusal as refusal:
            return (yield from self._explain(pod, resolved, names, refusal.without_frames()))
        elsewhere = Refusal(Reason.PLACED_WITH_GANG, f"pod {pod.key} is placed with its gang, on node {node}")
        others = yield from self._explain(pod, resolved, names, elsewhere)
        others.refused.pop(node, None)
        return Filtered([node], others.refused)

    def rank(self, pod: Pod, candidates: Collection[str] | None = None, seat: str | None = None) -> list[Tier]:
        """The nodes on which a pod fits, best first. Arguments and exceptions are those of ``ranking``."""
        return at_once(self.ranking(pod, candidates, seat))

    def ranking(
        self, pod: Pod, candidates: Collection[str] | None = None, seat: str | None = None
    ) -> Steps[list[Tier]]:
        """The nodes on which a pod fits, best first; reserves nothing; pauses and arguments are those of ``filtering``.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        self._prune()
        resolved = self._reader.read(pod, candidates)
        settled = self.settled_node(pod)
        if settled is not None:
            return [Tier(1, 0, [settled])] if candidates is None or settled in set(candidates) else []
        if resolved.gang is not None:
            with suppress(Refusal):
                return [Tier(1, 0, [seat or self.gangs.preview(pod, resolved.chips, resolved.gang, candidates)])]
            return []
        tiers: dict[tuple[OrderKey, int], list[list[str]]] = {}  # of each step
        names = list(self.cluster.index.entries if candidates is None else dict.fromkeys(candidates))
        for first in range(0, len(names), _STEP):
            index, found = self.cluster.view(Without.of(pod)), dict[tuple[OrderKey, int], list[str]]()
            some = self._choice.without_peers(pod, resolved, names[first : first + _STEP])
            for name, verdict in index.verdicts(resolved.chips, some).items():
                if not isinstance(verdict, Refusal):
                    found.setdefault((verdict.key, verdict.score), []).append(name)
            for key, fitting in found.items():
                tiers.setdefault(key, []).append(sorted(fitting))
            if len(names) > _STEP:
                yield
        return (yield from _ranked(tiers))

    def fits(self, pod: Pod) -> list[tuple[str, Fit]]:
        """Every node on which a pod fits, and how: best first, by name among equals; reserves nothing.

        For a pod of a gang these are nodes of the product on which the gang is placed; for one of a block, those of the
        SuperPod in which its block is placed; for one of a job with switch affinity, those below its switch.

        Raises:
            Refusal: the pod's request is invalid on every node, or its gang can't be placed.
        """
        self._prune()
        resolved = self._reader.read(pod)
        request, own = resolved.chips, [resolved.gang.key.plan] if resolved.gang is not None else []
        location, place = self.cluster.index.topology.location, None
        if resolved.gang is not None:
            record = self.cluster.nodes.get(node := self.gangs.preview(pod, request, resolved.gang, None))
            if record is not None and record.product is not None:
                model = chip_model(record.node.metadata.labels) if record.node is not None else ""
                request = replace(request, products=frozenset({record.product.name}))
                request = request if request.model is None else replace(request, model=model)
            if (level := resolved.policy.level) is not None:
                place = level, location(node).place(level)
        index, allowed = self.cluster.view(Without.of(pod, (), own)), self._choice.without_peers(pod, resolved, None)
        found = [
            (name, fit)
            for name, fit in index.verdicts(request, allowed).items()
            if not isinstance(fit, Refusal) and (place is None or location(name).place(place[0]) == place[1])
        ]
        return sorted(found, key=lambda fitting: (fitting[1].key, fitting[0]))

    def place(self, pod: Pod, candidates: Collection[str] | None = None) -> Reservation:
        """Choose node and chips for a pod and reserve them.

        A reservation of the pod is kept, and its time to live starts again, if it is on a candidate and still valid, so
        a repeated call gets the same answer; otherwise it is replaced in the same step.

        Raises:
            Refusal: the pod fits nowhere; with one candidate, the reason of that node.
        """
        resolved, placed = self._place(pod, candidates)
        if isinstance(placed, Reservation):
            return placed
        if placed is not None:
            raise placed
        raise self._choice.refusal(pod, resolved, candidates)

    def place_on(self, pod: Pod, node: str) -> Reservation:
        """Reserve chips for a pod on the node of its Binding.

        Its scheduler has decided about this pod alone: unlike ``place``, no node is chosen for the peers of a gang.

        Raises:
            Refusal: the pod does not fit there.
        """
        gang = self.gang_of(pod)
        if gang is None or self.settled_node(pod) is not None:
            return self.place(pod, [node])
        self._prune()
        resolved = self._reader.read(pod, [node])
        if not pod.is_live:
            raise _finished(pod)
        return self.gangs.place_on(pod, resolved.chips, gang, node)

    def place_or_explain(
        self, pod: Pod, candidates: Collection[str], prepared: Collection[str] | None = None
    ) -> Steps[Reservation | Filtered]:
        """Choose node and chips for a pod and reserve them; or, if it fits nowhere, why not, node by node.

        It pauses only after the pod was found to fit nowhere, and places the pod if it fits when all nodes were judged.

        Args:
            pod: the pod.
            candidates: names of nodes.
            prepared: the same as ``prepare`` has returned them, if it was called.

        Returns:
            The reservation. Without one: where the pod is bound already, or the refusal of every node.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        while True:
            resolved, placed = self._place(pod, candidates if prepared is None else prepared)
            if isinstance(placed, Reservation):
                return placed
            if placed is not None and (settled := self.settled_node(pod)) is not None:
                return on_settled(pod, settled, candidates)
            revision = self.cluster.changes.revision
            filtered = yield from self._explain(pod, resolved, list(candidates), placed)
            if not filtered.fitting or self.cluster.changes.revision == revision:
                return filtered

    def _explain(
        self, pod: Pod, resolved: ResolvedRequest, names: list[str], refusal: Refusal | None
    ) -> Steps[Filtered]:
        """Why a pod fits on none of these nodes; ``refusal`` if that is not a matter of single nodes."""
        found = Filtered([], {})
        for first in range(0, len(names), _STEP):
            if len(names) > _STEP:
                yield
            some = names[first : first + _STEP]
            if refusal is None:
                part = self._choice.partition(pod, resolved, some)
            else:
                part = gang_refused(self.cluster.index, resolved.chips, some, refusal)
            found.fitting.extend(part.fitting)
            found.refused.update(part.refused)
        if len(names) > _STEP:
            yield
        return found

    def fitting_without(self, pod: Pod, candidates: Collection[str] | None, others: Collection[str]) -> Collection[str]:
        """Nodes on which a refused pod would fit without the reservations for others; for a gang one node.

        Raises:
            Refusal: the pod's request is invalid on every node, or its gang would not fit.
        """
        resolved = self._reader.read(pod, candidates)
        if resolved.gang is None:
            fitting, _ = self.cluster.view(Without.of(pod, others)).partition(resolved.chips, candidates)
            return self._choice.without_peers(pod, resolved, fitting) or ()
        return (self.gangs.preview(pod, resolved.chips, resolved.gang, candidates, Without(others)),)

    def release(self, uid: str) -> bool:
        """Release what is reserved for a pod alone, unless its Binding is in flight or posted; whether anything was.

        The seat of a pod of a gang stays reserved: its plan has its own time to live.
        """
        held = self.ledger.get(uid)
        if held is None or held.stage is not Stage.RESERVED:
            return False
        self.ledger.withdraw(uid)
        return True

    def settled_node(self, pod: Pod) -> str | None:
        """The node of a pod by the informers, or by its Binding in flight."""
        return self._settled_node(pod, self.ledger.get(pod.uid))

    def _settled_node(self, pod: Pod, held: Reservation | None) -> str | None:
        if held is not None and held.stage not in (Stage.RESERVED, Stage.PLANNED):
            return held.node
        return self.cluster.pods.get(pod.uid, pod).spec.node_name or None

    def may_fit(self, pod: Pod) -> bool:
        """Whether a pod that was refused could be placed now, on any node."""
        self._prune()
        gang = self.gang_of(pod)
        if gang is not None:
            return self.gangs.may_fit(pod, gang)
        try:
            resolved = self._reader.read(pod)
            allowed = self._choice.without_peers(pod, resolved, None)
            best = self.cluster.view(Without.of(pod)).best(resolved.chips, allowed)
            return best is not None or self.earmarks.lent(pod, resolved.chips, allowed) is not None
        except Refusal:
            return False

    @property
    def keeps_chips(self) -> bool:
        """Whether any chips are promised, so that pods with equal requests may use different ones."""
        return bool(self.ledger.promises)

    def is_of_gang(self, pod: Pod) -> bool:
        """Whether the pod is placed together with others, or not at all."""
        return self.gang_of(pod) is not None

    def _place(
        self, pod: Pod, candidates: Collection[str] | None
    ) -> tuple[ResolvedRequest, Reservation | Refusal | None]:
        """Reserve, if it fits: None if no candidate fits, a refusal for what is not a matter of single nodes."""
        self._prune()
        resolved = self._reader.read(pod, candidates)
        if pod.is_gated:
            raise Refusal(Reason.POD_GATED, f"pod {pod.key} has scheduling gates, so it can't be bound")
        if not pod.is_live:
            raise _finished(pod)
        held = self.ledger.get(pod.uid)
        settled = self._settled_node(pod, held)
        if settled is not None:
            if held is None or (candidates is not None and settled not in candidates):
                return resolved, settled_refusal(pod, settled)
            return resolved, held
        if resolved.gang is not None:
            try:
                return resolved, self.gangs.place(pod, resolved.chips, resolved.gang, candidates)
            except Refusal as refusal:
                if refusal.reason is Reason.GANG_DOES_NOT_FIT and resolved.chips.is_for_chips:
                    self.earmarks.note(pod)
                return resolved, refusal.without_frames()
        return resolved, self._place_alone(pod, resolved, held, candidates)

    def _place_alone(
        self, pod: Pod, resolved: ResolvedRequest, held: Reservation | None, candidates: Collection[str] | None
    ) -> Reservation | None:
        request = resolved.chips
        candidates = self._choice.without_peers(pod, resolved, candidates)
        if held is not None:
            # The seat of a pod whose group was deleted is PLANNED: it is placed alone now.
            is_possible = held.stage is not Stage.PLANNED and (candidates is None or held.node in candidates)
            if is_possible and self.cluster.suits(held, request):
                return self.ledger.advance(pod.uid, Stage.RESERVED) or held
            self.ledger.release(pod.uid)
        elif self.ledger.plans:
            self.gangs.free_seat(pod, request, resolved.job, candidates)
        index, promises = self.cluster.index, self.ledger.promises
        if promises.get(pod.uid) is not None:
            index = self.cluster.view(Without(owners=(pod.uid,)))
        best = self._choice.best(pod, resolved, candidates, index)
        if best is None and promises:
            without = Without.of(pod, (), self.earmarks.open_to(pod))
            best = self.cluster.view(without).best(request, candidates)
            best = best or self.earmarks.borrow(pod, request, candidates)
        if best is None:
            if self.gangs.make_room(pod, request, self.cluster.jobs.job_of(pod), candidates):
                return self._place_alone(pod, resolved, None, candidates)
            self.earmarks.note(pod)
            return None
        node, fit = best
        return self.ledger.reserve(uid=pod.uid, pod=pod.key, node=node, take=fit.take)

    def _prune(self) -> None:
        """Release what will not be used any more."""
        self.ledger.expire_reserved()  # plans of gangs expire between decisions: they may have thousands of seats
        self.gangs.prune()
        self.earmarks.update()

    def require_first_try(self, pod: Pod) -> None:
        """Accept a pod unless its gang has stepped back: then only on nodes that the scheduler offers.

        Raises:
            Refusal: ``GangSteppedBack``.
        """
        gang = self.gang_of(pod)
        if gang is not None and self.gangs.queue.get(gang) is not None:
            raise Refusal(Reason.GANG_STEPPED_BACK, f"pod {pod.key}: its scheduler offers the nodes for its gang now")

    def gang_of(self, pod: Pod) -> Job | None:
        """The job of a pod, if its pods are placed together or not at all; else None."""
        return self.cluster.jobs.gang(self.cluster.jobs.job_of(pod))


def _ranked(tiers: dict[tuple[OrderKey, int], list[list[str]]]) -> Steps[list[Tier]]:
    """The nodes of each key; sorting those of all steps at once could take tens of milliseconds."""
    ranked = list[Tier]()
    for (_, score), parts in sorted(tiers.items()):
        ranked.append(Tier(len(ranked) + 1, score, []))
        for number, name in enumerate(merge(*parts), start=1):
            ranked[-1].nodes.append(name)
            if not number % (_STEP // 8):  # merging takes several times as long as judging
                yield
    return ranked


def _finished(pod: Pod) -> Refusal:
    return Refusal(Reason.POD_FINISHED, f"pod {pod.key} is {pod.status.phase}")
