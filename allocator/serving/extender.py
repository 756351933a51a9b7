"""The front end for kube-scheduler: an extender with filter, bind and preempt (spec/kubernetes.md §3).

kube-scheduler reads errors from the body only, so every answer to what it may send is HTTP 200. Filter answers with one
node, whose chips are kept from that moment on: nothing is left to be scored, and the next pod is asked about before
this one is bound. What kube-scheduler itself demands of a node (selectors, affinity, taints, spreading) it has applied
before; what it merely prefers has no say.
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from allocator.bound import PodRef
from allocator.commit import Committer
from allocator.decide import DecisionEngine, Filtered, Tier
from allocator.journal import Journal
from allocator.preempt import Preemption, Suggestion
from allocator.reconsider import Reconsideration
from allocator.serving.bodies import read_body
from allocator.serving.extender_wire import (
    NODE_CACHE,
    BindingArgs,
    BindingResult,
    FilterResult,
    HostPriority,
    NodeNames,
    PreemptionArgs,
    PreemptionResult,
    decode,
    preemption_result,
    read_args,
    refused_result,
    text,
)
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.kube.objects import Pod

MAX_PRIORITY: Final = 10
"""kube-scheduler's MaxExtenderPriority."""

MAX_BODY_BYTES: Final = 16 << 20


class Extender:
    """Answers kube-scheduler.

    Args:
        engine: decides.
        committer: binds.
        preemption: chooses victims.
        journal: writes down.
        reconsideration: told whom we refuse.
        closed: why no question is answered now; None when they are.
    """

    def __init__(
        self,
        *,
        engine: DecisionEngine,
        committer: Committer,
        preemption: Preemption,
        journal: Journal,
        reconsideration: Reconsideration,
        closed: Callable[[], Refusal | None],
    ) -> None:
        self._engine = engine
        self._committer = committer
        self._preemption = preemption
        self._journal = journal
        self._reconsideration = reconsideration
        self._closed = closed

    def add_routes(self, app: web.Application) -> None:
        """Add the verbs under ``/scheduler``."""
        app.router.add_post("/scheduler/filter", self._filter)
        app.router.add_post("/scheduler/prioritize", self._prioritize)
        app.router.add_post("/scheduler/preempt", self._preempt)
        app.router.add_post("/scheduler/bind", self._bind)

    async def _filter(self, request: web.Request) -> web.Response:
        try:
            return _answer(self.filter(await _read(request)))
        except InvalidValue as error:
            return _answer(FilterResult(error=text(error)))

    def filter(self, body: bytes) -> FilterResult:
        """Answer the question of filter; one that is not understood as well."""
        try:
            pod, names = self._question(body)
            if not self._engine.concerns(pod):
                # It names the resource with 0, or managedResources is not configured: not our business.
                return FilterResult(node_names=list(names))
            with self._journal.timed("filter"):
                return self._filtered(pod, names)
        except AscendError as error:
            return FilterResult(error=text(error))

    def _filtered(self, pod: Pod, names: NodeNames) -> FilterResult:
        """Choose among the nodes.

        Raises:
            InvalidValue: the names can't be read.
        """
        node = self._winner(pod, names)
        if node is None:
            return self._refused(pod, names)
        self._journal.filtered(pod, Filtered([node], {}))
        self._reconsideration.accepted(pod.uid)
        return FilterResult(node_names=[node])

    def _refused(self, pod: Pod, names: NodeNames) -> FilterResult:
        # Where a pod can't be placed, filtering says so of every node; it has the sentence of each.
        try:
            filtered = self._engine.filter(pod, names)
        except Refusal as senseless:
            self._journal.refused(pod, senseless)
            return refused_result(Filtered([], dict.fromkeys(names, senseless)), ())
        self._journal.filtered(pod, filtered)
        self._reconsideration.refused(pod)
        return refused_result(filtered, self._preemption.waiting(pod, filtered.refused))

    def _winner(self, pod: Pod, names: NodeNames) -> str | None:
        settled = self._engine.settled_node(pod)
        if settled is not None and settled in names:
            return settled
        try:
            reservation = self._engine.place_if_it_fits(pod, names)
        except Refusal:
            return None
        return reservation.node if reservation is not None else None

    async def _prioritize(self, request: web.Request) -> web.Response:
        try:
            pod, names = self._question(await _read(request))
            with self._journal.timed("score"):
                tiers = self._engine.rank(pod, names) if pod.asks_for_chips else []
            return _answer(_priorities(tiers, names))
        except AscendError:
            # The answer has no place for an error; without scores every node is as good as any other.
            return _answer([])

    async def _preempt(self, request: web.Request) -> web.Response:
        try:
            args = decode(await _read(request), PreemptionArgs)
            self._require_open()
            if args.victims is None:
                raise InvalidValue(NODE_CACHE)
            if not args.pod.asks_for_chips:
                return _answer(PreemptionResult(args.victims))
            with self._journal.timed("preempt"):
                suggested = {
                    node: Suggestion(tuple(each.uid for each in victims.pods), victims.pdb_violations)
                    for node, victims in args.victims.items()
                }
                chosen = await self._preemption.improve(args.pod, suggested)
        except AscendError as error:
            # The answer has no place for an error; with this status nobody is displaced.
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text(error))
        self._journal.preempts(args.pod, chosen)
        return _answer(preemption_result(chosen))

    async def _bind(self, request: web.Request) -> web.Response:
        with self._journal.timed("bind"):
            try:
                args = decode(await _read(request), BindingArgs)
                self._require_open()
                ref = PodRef(args.pod_namespace, args.pod_name, args.pod_uid)
                await self._committer.bind(ref, args.node)
            except AscendError as error:
                return _answer(BindingResult(error=text(error)))
        return _answer(BindingResult())

    def _question(self, body: bytes) -> tuple[Pod, NodeNames]:
        pod, names = read_args(body)
        self._require_open()
        if not pod.uid:
            raise InvalidValue(f"pod {pod.key} has no uid; chips are kept by uid")
        return pod, names

    def _require_open(self) -> None:
        closed = self._closed()
        if closed is not None:
            raise closed


async def _read(request: web.Request) -> bytes:
    """A question as it was sent.

    Raises:
        InvalidValue: it is too large.
        web.HTTPBadRequest: it is packed.
    """
    try:
        return await read_body(request)
    except web.HTTPRequestEntityTooLarge as error:
        raise InvalidValue(f"the request has more than {MAX_BODY_BYTES:,} bytes; {NODE_CACHE}") from error


def _answer(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _priorities(tiers: list[Tier], names: NodeNames) -> list[HostPriority]:
    # Exactly one node gets the most points: kube-scheduler would pick at random among several.
    scores = {name: max(MAX_PRIORITY - tier.rank, 0) for tier in tiers for name in tier.nodes}
    if tiers:
        scores[tiers[0].nodes[0]] = MAX_PRIORITY
    return [HostPriority(name, scores.get(name, 0)) for name in names]
