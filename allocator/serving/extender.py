"""The front end for kube-scheduler: an extender with filter, preempt and bind.

See docs/spec/kube-api.md#scheduler-extender.

kube-scheduler reads errors from the body only, so every answer to a call it may make is HTTP 200. Filter answers with
one node, whose chips are reserved from that moment: there is nothing to score, and kube-scheduler filters the next pod
before it binds this one. It has applied its own requirements for nodes (selectors, affinity, taints, spreading) before;
its preferences have no effect. Of the pod in a call only its name and uid are believed
(``allocator/binding/known_pods.py``).
"""

from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from allocator.binding.barrier import Barrier
from allocator.binding.binder import Binder
from allocator.binding.binding import PodRef
from allocator.binding.known_pods import KnownPods
from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.decision.gang_victims import RetryError
from allocator.decision.preemption import Preemption
from allocator.nomination.nominator import Nominator
from allocator.observe.journal import Journal
from allocator.rules.victims import Suggestion, VictimSet
from allocator.serving.extender_wire import (
    NODE_CACHE,
    BindingArgs,
    BindingResult,
    FilterResult,
    MetaVictims,
    NodeNames,
    PreemptionArgs,
    PreemptionResult,
    decode,
    preemption_result,
    read_args,
    refused_result,
    text,
)
from allocator.serving.requeue import Requeuer
from allocator.state.reservation import Reservation
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category
from ascend.serving.bodies import BodyRefused
from ascend.serving.counts import Cause
from ascend.serving.http import read_body
from ascend.turn import Turn

_POD_BYTES: Final = 2 << 20
"""A pod in a call: etcd stores up to 1.5 MiB of it, in a denser form."""

_NAME_BYTES: Final = 256
"""A node name in a call to filter: 253 characters, its quotes and a comma."""

_VICTIMS_BYTES: Final = 8 << 10
"""The uids of all pods of a node in a call to preempt."""

_MOST_BYTES: Final = 16 << 20
"""A call of any size of cluster."""

BINDING_BYTES: Final = 16 << 10
"""A call to bind: four names."""


class Extender:
    """Answers kube-scheduler.

    Args:
        pods: finds the pods that calls name.
        engine: chooses node and chips.
        binder: binds pods.
        barrier: holds the Bindings of gangs.
        preemption: selects victims.
        journal: records decisions.
        requeuer: requeues refused pods.
        nominator: nominates pods ahead of the scheduler.
        closed: why calls are refused now; None if they are answered.
        known_nodes: how many nodes there are; calls that name more of them than that are too large.
    """

    def __init__(
        self,
        *,
        pods: KnownPods,
        engine: DecisionEngine,
        binder: Binder,
        barrier: Barrier,
        preemption: Preemption,
        journal: Journal,
        requeuer: Requeuer,
        nominator: Nominator,
        closed: Callable[[], Refusal | None],
        known_nodes: Callable[[], int],
    ) -> None:
        self._known_nodes = known_nodes
        self._pods = pods
        self._engine = engine
        self._binder = binder
        self._barrier = barrier
        self._preemption = preemption
        self._journal = journal
        self._requeuer = requeuer
        self._nominator = nominator
        self._closed = closed

    def add_routes(self, app: web.Application) -> None:
        """Add the verbs under ``/scheduler``."""
        app.router.add_post("/scheduler/filter", self._filter)
        app.router.add_post("/scheduler/preempt", self._preempt)
        app.router.add_post("/scheduler/bind", self._bind)

    async def _filter(self, request: web.Request) -> web.Response:
        try:
            self._require_open()
            result = await self.filter(await self._read(request, _NAME_BYTES))
        except AscendError as error:
            result = FilterResult(error=text(error))
        await self._nominator.stay_ahead()
        return _answer(result)

    async def filter(self, body: bytes) -> FilterResult:
        """Answer a filter call, also one that can't be decoded."""
        try:
            turn = Turn()
            named, names = read_args(body)
            await turn.share()  # thousands of names take milliseconds, here and for a plan
            self._require_open()
            with self._journal.measure("extender", "filter"):
                pod = await self._pods.find(named.ref, version=named.version)
                if pod is None or not self._engine.handles(pod):
                    # It requests the resource with 0, or managedResources is not configured.
                    return FilterResult(node_names=list(names))
                prepared = await self._engine.prepare(pod, names)
                self._require_open()
                return await self._choose(pod, names, prepared)
        except AscendError as error:
            return FilterResult(error=text(error))

    async def _choose(self, pod: Pod, names: NodeNames, prepared: Collection[str] | None) -> FilterResult:
        """Choose one of the nodes.

        Raises:
            InvalidValue: the names can't be decoded.
        """
        try:
            self._pods.require_served(pod)
            self._barrier.require_room(pod)
            # kube-scheduler filters a pod again only after it has given up its Binding.
            self._barrier.on_filter(pod.uid, names)
            self._engine.gangs.obstacles.on_request(pod)
            try:
                turn = Turn()
                found = await turn.share_between(self._engine.place_or_explain(pod, names, prepared))
                if isinstance(found, Filtered) and not found.fitting and self._nominator.make_room(pod, names):
                    found = await turn.share_between(self._engine.place_or_explain(pod, names, prepared))
            finally:
                self._nominator.on_filter(pod, names)  # no longer one that waits for a nomination of its new seat
        except Refusal as refusal:
            self._journal.on_refusal(pod, refusal)
            return refused_result(Filtered([], dict.fromkeys(names, refusal)), (), pod.metadata.namespace)
        fitting = [found.node] if isinstance(found, Reservation) else found.fitting
        if fitting:
            self._journal.on_filter(pod, Filtered(fitting, {}))
            self._requeuer.on_acceptance(pod.uid)
            self._barrier.on_acceptance(pod)
            return FilterResult(node_names=fitting)
        assert isinstance(found, Filtered)  # noqa: S101 - a reservation has a node
        self._requeuer.on_refusal(pod)
        self._preemption.on_filter(pod, names)
        await turn.share()  # before the refusals of thousands of nodes are counted
        self._journal.on_filter(pod, found)
        await turn.share()  # and before the answer is put together
        return refused_result(found, self._preemption.waiting(pod, found.refused), pod.metadata.namespace)

    async def _preempt(self, request: web.Request) -> web.Response:
        try:
            self._require_open()
            body = await self._read(request, _VICTIMS_BYTES)
            turn = Turn()
            args = decode(body, PreemptionArgs)
            self._require_open()
            if args.victims is None:
                raise InvalidValue(NODE_CACHE)
            pod = await self._pods.find(args.pod.ref, version=args.pod.version)
            if pod is None or not pod.requests_chips or pod.spec.node_name:  # one that is resized has its chips
                return _answer(PreemptionResult(args.victims))
            self._pods.require_served(pod)
            with self._journal.measure("extender", "preempt"):
                suggested: dict[str, Suggestion] = {}
                for node, raw in args.victims.items():
                    await turn.share()  # thousands of victims may take milliseconds to decode
                    victims = decode(raw, MetaVictims)
                    uids = tuple(pod.uid for pod in victims.pods)
                    suggested[node] = Suggestion(uids, victims.pdb_violations)
                await turn.share()
                chosen = await self._improve(pod, suggested)
        except AscendError as error:
            # The answer has no field for an error; with this status kube-scheduler preempts nothing.
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=text(error))
        return _answer(preemption_result(chosen))

    async def _improve(self, pod: Pod, suggested: dict[str, Suggestion]) -> VictimSet | None:
        try:
            chosen = await self._preemption.improve(pod, suggested)
        except Refusal as refusal:
            self._journal.preempts(pod, refusal)
            if refusal.reason.category is Category.INCOMPLETE or isinstance(refusal, RetryError):
                self._requeuer.waits_for_peers(pod)
            else:
                self._requeuer.on_judgement(pod.uid)
            return None
        self._requeuer.on_judgement(pod.uid)
        turn = Turn()
        for peer in self._preemption.unanswered_peers(pod):  # thousands of a large gang
            self._requeuer.retry(peer)
            await turn.share()
        self._journal.preempts(pod, chosen)
        return chosen

    async def _bind(self, request: web.Request) -> web.Response:
        namespace = None
        with self._journal.measure("extender", "bind"):
            try:
                self._require_open()
                args = decode(await read_body(request, BINDING_BYTES), BindingArgs)
                self._require_open()
                namespace = args.pod_namespace
                ref = PodRef(namespace, args.pod_name, args.pod_uid)
                await self._binder.bind(ref, args.node, is_repeated=True)
            except AscendError as error:
                return _answer(BindingResult(error=text(error, namespace)))
        return _answer(BindingResult())

    async def _read(self, request: web.Request, node_bytes: int) -> bytes:
        """The body of a call with a pod, and so many bytes for each node.

        Raises:
            InvalidValue: it is not read; a standby asks before it reads one.
            web.HTTPBadRequest: it is compressed.
        """
        most = min(_MOST_BYTES, _POD_BYTES + node_bytes * self._known_nodes())
        try:
            return await read_body(request, most, at_once=most)
        except BodyRefused as error:
            if error.cause is Cause.BODY_SIZE:
                raise InvalidValue(f"{error}; {NODE_CACHE}") from error
            raise

    def _require_open(self) -> None:
        closed = self._closed()
        if closed is not None:
            raise closed


def _answer(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")
