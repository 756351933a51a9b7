"""The front end for kube-scheduler: an extender with filter, prioritize and bind (spec/kubernetes.md §3).

kube-scheduler reads errors from the body only, so every answer is HTTP 200. Where it asks for scores after filtering
only if several nodes fit, the winner's chips are reserved by whichever call knows the winner.
"""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from allocator.commit import Committer, PodRef
from allocator.decide import DecisionEngine, Filtered, Tier
from allocator.journal import Journal
from allocator.reconsider import Reconsideration
from allocator.rules.vacancy import OCCUPIED
from ascend.errors import UNREADABLE, AscendError, InvalidValue, Refusal
from ascend.kube.objects import Pod

MAX_PRIORITY: Final = 10
"""kube-scheduler's MaxExtenderPriority."""

MAX_BODY_BYTES: Final = 16 << 20

_NODE_CACHE: Final = "the extender keeps its own view of nodes: set nodeCacheCapable: true in its configuration"


class _Args(msgspec.Struct, rename="pascal"):
    pod: Pod
    node_names: list[str] | None = None


class _FilterResult(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class _BindingArgs(msgspec.Struct):
    pod_name: str = msgspec.field(name="PodName")
    pod_namespace: str = msgspec.field(name="PodNamespace")
    pod_uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class _BindingResult(msgspec.Struct, rename="pascal"):
    error: str = ""


_T = TypeVar("_T")


class Extender:
    """Answers kube-scheduler.

    Args:
        engine: decides.
        committer: binds.
        journal: writes down.
        reconsideration: told whom we refuse.
        missing: what the view still waits for.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        committer: Committer,
        journal: Journal,
        reconsideration: Reconsideration,
        missing: Callable[[], str | None],
    ) -> None:
        self._engine = engine
        self._committer = committer
        self._journal = journal
        self._reconsideration = reconsideration
        self._missing = missing

    def add_routes(self, app: web.Application) -> None:
        """Add the three verbs under ``/scheduler``."""
        app.router.add_post("/scheduler/filter", self._filter)
        app.router.add_post("/scheduler/prioritize", self._prioritize)
        app.router.add_post("/scheduler/bind", self._bind)

    async def _filter(self, request: web.Request) -> web.Response:
        try:
            pod, names = self._pod_and_names(await request.read())
        except (AscendError, web.HTTPRequestEntityTooLarge) as error:
            return _answer(_FilterResult(error=_text(error)))
        if not pod.asks_for_chips:
            # managedResources is not configured: pods that ask for none are not our business.
            return _answer(_FilterResult(node_names=names))
        with self._journal.timed("filter"):
            # A new round for this pod: what an earlier one kept is void.
            self._engine.release(pod.uid)
            try:
                filtered = self._engine.filter(pod, names)
                if len(filtered.fitting) == 1:
                    self._keep(pod, filtered.fitting[0])
            except Refusal as refusal:
                self._journal.refused(pod, refusal)
                return _answer(
                    _FilterResult(node_names=[], failed_and_unresolvable_nodes=dict.fromkeys(names, _text(refusal)))
                )
        self._journal.filtered(pod, filtered)
        if filtered.fitting:
            self._reconsideration.accepted(pod.uid)
        else:
            self._reconsideration.refused(pod)
        return _answer(_filter_result(filtered))

    async def _prioritize(self, request: web.Request) -> web.Response:
        try:
            pod, names = self._pod_and_names(await request.read())
        except (AscendError, web.HTTPRequestEntityTooLarge):
            # The answer has no place for an error; without scores every node is as good as any other.
            return _answer([])
        with self._journal.timed("score"):
            try:
                tiers = self._engine.rank(pod, names)
                if tiers:
                    self._keep(pod, tiers[0].nodes[0])
            except Refusal:
                return _answer([_HostPriority(name, 0) for name in names])
        return _answer(_priorities(tiers, names))

    async def _bind(self, request: web.Request) -> web.Response:
        with self._journal.timed("bind"):
            try:
                args = _decode(await request.read(), _BindingArgs)
                self._require_view()
                ref = PodRef(args.pod_namespace, args.pod_name, args.pod_uid)
                await self._committer.bind(ref, args.node)
            except (AscendError, web.HTTPRequestEntityTooLarge) as error:
                return _answer(_BindingResult(error=_text(error)))
        return _answer(_BindingResult())

    def _keep(self, pod: Pod, node: str) -> None:
        if self._engine.settled_node(pod) is None:
            self._engine.place(pod, [node])

    def _pod_and_names(self, body: bytes) -> tuple[Pod, list[str]]:
        args = _decode(body, _Args)
        if args.node_names is None:
            raise InvalidValue(_NODE_CACHE)
        self._require_view()
        if not args.pod.uid:
            raise InvalidValue(f"pod {args.pod.key} has no uid; chips are kept by uid")
        return args.pod, args.node_names

    def _require_view(self) -> None:
        missing = self._missing()
        if missing is not None:
            raise Refusal("ViewIncomplete", missing)


def _decode(body: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise InvalidValue(f"the request is not understood: {error}") from error


def _answer(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _text(error: Exception) -> str:
    return f"{error.reason}: {error}" if isinstance(error, AscendError) else str(error)


def _filter_result(filtered: Filtered) -> _FilterResult:
    result = _FilterResult(node_names=filtered.fitting, failed_nodes={}, failed_and_unresolvable_nodes={})
    for node, refusal in filtered.refused.items():
        failed = result.failed_nodes if refusal.reason in OCCUPIED else result.failed_and_unresolvable_nodes
        failed[node] = _text(refusal)
    return result


def _priorities(tiers: list[Tier], names: list[str]) -> list[_HostPriority]:
    # Exactly one node gets the most points: kube-scheduler would pick at random among several.
    scores = {name: max(MAX_PRIORITY - tier.rank, 0) for tier in tiers for name in tier.nodes}
    if tiers:
        scores[tiers[0].nodes[0]] = MAX_PRIORITY
    return [_HostPriority(name, scores.get(name, 0)) for name in names]
