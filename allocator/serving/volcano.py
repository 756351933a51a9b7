"""The front end for Volcano: the calls of its extender plugin while a session places pods.

docs/spec/kube-api.md#volcano-extender. Volcano chooses the nodes; each pod is judged on each of them, beside the pods
that the session has placed there: node by node (``predicate``), or on all of them in the call for their scores. The
chips are assigned when Volcano posts the Bindings, by the webhook (``webhook.py``), in the same step. From the moment a
pod is placed, its chips are reserved, so that no other session or scheduler takes them; a placement that Volcano undoes
gives them back.

Volcano accepts a node if a call fails while the plugin's ``ignorable`` is set; so it must not be. Of a pod in a call
only its name and uid are believed. One that the informer has not seen is refused, and not read from the API server:
a port without TLS may serve Volcano, which asks again in its next session, a second later.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from allocator.binding.known_pods import KnownPods
from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.decision.preemption import Preemption
from allocator.decision.request import ResolvedRequest
from allocator.decision.tentative import Tentative
from allocator.observe.journal import Journal
from allocator.rules.verdicts import Fit
from allocator.serving.extender_wire import text
from allocator.serving.volcano_wire import (
    PLACED,
    Body,
    ErrorAnswer,
    EvictArgs,
    JobArgs,
    NodeInfo,
    Nothing,
    OverusedAnswer,
    PredicateAnswer,
    PredicateArgs,
    PrioritizeAnswer,
    PrioritizeArgs,
    ReadyAnswer,
    StatusAnswer,
    StatusCode,
    Task,
    TaskArgs,
    TaskStatus,
    VictimsAnswer,
    decode,
)
from allocator.state.reservation import Stage
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason
from ascend.rules.placement import OrderKey
from ascend.serving.bodies import BodyRefused
from ascend.serving.http import read_body

log = structlog.get_logger()

PREFIX: Final = "/volcano/"
"""Of the paths of all verbs."""

MOST_BYTES: Final = 16 << 20
"""A call may have all pods of a job, each as a whole."""

_BEST: Final = 100.0
_NEVER: Final = -1e6
"""Less than other plugins add."""

_NOT_POSTED: Final = frozenset({Stage.RESERVED, Stage.PLANNED})
"""The stages of a reservation before its Binding is asked for."""

_CODES: Final[Mapping[Category, StatusCode]] = {
    Category.OCCUPIED: StatusCode.UNSCHEDULABLE,
    Category.PLACEMENT: StatusCode.UNSCHEDULABLE,
    Category.ALLOCATOR: StatusCode.ERROR,
}
"""The codes of refusals by what they are about; of others preemption is never tried."""


class VolcanoExtender:
    """Answers Volcano's extender plugin.

    Args:
        pods: finds the pods that calls name.
        engine: chooses chips.
        tentative: judges pods beside those that a session has placed.
        preemption: knows for which pods others end.
        journal: records refusals.
        closed: why calls are refused now; None if they are answered.
    """

    def __init__(
        self,
        *,
        pods: KnownPods,
        engine: DecisionEngine,
        tentative: Tentative,
        preemption: Preemption,
        journal: Journal,
        closed: Callable[[], Refusal | None],
    ) -> None:
        self._pods = pods
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._tentative = tentative
        self._preemption = preemption
        self._journal = journal
        self._closed = closed
        self._placed: dict[str, bool] = {}  # the pods that Volcano has placed, by uid, and whether they may be bound

    def add_routes(self, app: web.Application) -> None:
        """Add a path for each verb."""
        verbs: Mapping[str, Callable[[Body], Any]] = {
            "predicate": self.predicate,
            "prioritize": self.prioritize,
            "preemptable": self.evictable,
            "reclaimable": self.evictable,
            "jobEnqueueable": self.job_enqueueable,
            "jobReady": self.job_ready,
            "allocateFunc": self.on_allocate,
            "deallocateFunc": self.on_deallocate,
            "queueOverused": lambda _body: OverusedAnswer(),
            "jobEnqueued": lambda _body: Nothing(),
            "onSessionOpen": lambda _body: Nothing(),
            "onSessionClose": self.session_closed,
        }
        for verb, answer in verbs.items():
            app.router.add_post(f"{PREFIX}{verb}", self._handler(verb, answer))

    def _handler(self, verb: str, answer: Callable[[Body], Any]) -> Callable[[web.Request], Any]:
        async def handle(request: web.Request) -> web.Response:
            with self._journal.measure("volcano", verb):
                found = answer(await _read(request))
            return web.Response(body=msgspec.json.encode(found), content_type="application/json")

        return handle

    def predicate(self, body: Body) -> PredicateAnswer:
        """Whether a pod fits on a node."""
        try:
            args = decode(body, PredicateArgs)
            pod = self._pod_of(args.task)
            if pod is not None:
                self._require_open()
                self._give_back(pod.uid)  # what is asked about is not placed
                self._fit(pod, self._engine.resolve(pod), args.task, args.node)
        except Refusal as refusal:
            sentence = text(refusal, args.task.ref.namespace)
            code = _CODES.get(refusal.reason.category, StatusCode.UNRESOLVABLE)
            if code is StatusCode.UNSCHEDULABLE and refusal.reason is not Reason.NOT_ENOUGH_CHIPS:
                # Where enough chips are free by number, Volcano would let the pod wait, and evict nobody elsewhere.
                code = code if args.node.lacks(args.task.requested) else StatusCode.UNRESOLVABLE
            return PredicateAnswer(sentence, code)
        except AscendError as error:
            return PredicateAnswer(text(error), StatusCode.ERROR)
        return PredicateAnswer()

    def _fit(self, pod: Pod, resolved: ResolvedRequest, task: Task, node: NodeInfo) -> Fit:
        """How a pod fits on a node; or, where Volcano lets the pod wait for pods that terminate, without these.

        A pod that waits nowhere needs others to end, as Volcano sees it: in each of its sessions, on one node more.

        Raises:
            Refusal: it does neither.
        """
        beside = self._pods_of(other for other in (node.tasks or {}).values() if other.status in PLACED)
        try:
            return self._tentative.fit(pod, resolved, node.name, beside)
        except Refusal as refusal:
            if refusal.reason.category is not Category.OCCUPIED or not node.lacks(task.requested):
                raise
            return self._tentative.fit(pod, resolved, node.name, beside, once_ended=True)

    def prioritize(self, body: Body) -> PrioritizeAnswer:
        """The scores of nodes: equal where a pod fits equally well, the best ones have the highest.

        Without ``predicate`` a pod must not be placed on a node that refuses it, whatever other plugins add to its
        score; and on none, if all of them have enough chips and refuse it. Of those that have too few, Volcano asks for
        whom it may evict pods.
        """
        if isinstance(body, InvalidValue):
            # With an error Volcano would place the pod on none of the nodes, although all of them were accepted.
            log.warning("the nodes of a call of Volcano get no scores", error=body.message)
            return PrioritizeAnswer()
        try:
            args = decode(body, PrioritizeArgs)
            pod, nodes = self._pod_of(args.task), {node.name: node for node in args.nodes or []}
            if pod is None:
                return PrioritizeAnswer(dict.fromkeys(nodes, 0.0))
            self._require_open()
            self._give_back(pod.uid)
            keys, refused = self._judge(pod, args.task, nodes)
            lacking = {name for name in refused if nodes[name].lacks(args.task.requested)}
            if refused and not keys and not lacking:
                self._journal.on_filter(pod, Filtered([], refused))
                return PrioritizeAnswer(error_message=f"pod {pod.key} fits on none of {len(refused)} nodes")
        except AscendError as error:
            return PrioritizeAnswer(error_message=text(error))
        tiers = {key: number for number, key in enumerate(sorted(set(keys.values())))}
        scores = {name: _BEST * (len(tiers) - tiers[key]) / len(tiers) for name, key in keys.items()}
        return PrioritizeAnswer(scores | {name: 0.0 if name in lacking else _NEVER for name in refused})

    def _judge(
        self, pod: Pod, task: Task, nodes: Mapping[str, NodeInfo]
    ) -> tuple[dict[str, OrderKey], dict[str, Refusal]]:
        """How well a pod fits on each node, and why not on the others."""
        try:
            resolved = self._engine.resolve(pod)
        except Refusal as refusal:
            return {}, dict.fromkeys(nodes, refusal)
        keys, refused = {}, {}
        for name, node in nodes.items():
            try:
                keys[name] = self._fit(pod, resolved, task, node).key
            except Refusal as refusal:
                refused[name] = refusal
        return keys, refused

    def evictable(self, body: Body) -> VictimsAnswer:
        """The candidates of a call that may be evicted: as few as possible whose chips make a pod fit on their node.

        None for a pod whose victims have ended, or are ending, while their chips are not free here yet: Volcano sees
        them free as soon as the pods are gone.
        """
        try:
            args = decode(body, EvictArgs)
            pod = self._pod_of(args.evictor)
            if pod is None:
                return VictimsAnswer()
            self._require_open()
            if self._preemption.awaits(pod):
                return VictimsAnswer(1)
            candidates = [(raw, decode(raw, Task)) for raw in args.evictees or []]
            chosen = set()
            for node in {task.node_name for _, task in candidates}:
                own = self._pods_of(task for _, task in candidates if task.node_name == node)
                chosen |= set(self._tentative.victims(pod, node, own))
        except AscendError as error:
            log.warning("a call of Volcano about pods to evict is answered with none", error=error.message)
            return VictimsAnswer(1)
        return VictimsAnswer(1, [raw for raw, task in candidates if task.uid in chosen])

    def job_enqueueable(self, body: Body) -> StatusAnswer:
        """Whether a job may be scheduled at all: no, if the request of a pod is invalid on every node."""
        try:
            for pod in self._pods_of((decode(body, JobArgs).job.tasks or {}).values()):
                try:
                    self._engine.validate(pod)
                except Refusal as refusal:
                    self._journal.on_refusal(pod, refusal)
                    return StatusAnswer(-1)
        except AscendError as error:
            log.warning("a call of Volcano about a job is answered without an opinion", error=error.message)
        return StatusAnswer()

    def job_ready(self, body: Body) -> ReadyAnswer:
        """Whether a job may start: not if the chips of a pod that is placed can't be reserved.

        Volcano before 1.13 says only here which pods it has placed. A job that may not start keeps nothing: Volcano
        does not always undo its placements.
        """
        tasks = list[Task]()
        try:
            everything = (decode(body, JobArgs).job.tasks or {}).values()
            tasks = [task for task in everything if task.status == TaskStatus.ALLOCATED]
            for task in tasks:
                self._reserve(task)
        except AscendError as error:
            log.info("a job of Volcano can't start as it is placed", error=error.message)
            for task in tasks:
                self._give_back(task.uid)
            return ReadyAnswer(status=False)
        ready = {task.uid for task in tasks}
        self._placed = {
            uid: is_ready or uid in ready for uid, is_ready in self._placed.items() if self._ledger.get(uid) is not None
        }
        return ReadyAnswer()

    def session_closed(self, _body: Body) -> Nothing:
        """A session ends: a pod placed in it is bound now if the job may start, else never."""
        for uid in [uid for uid, is_ready in self._placed.items() if not is_ready]:
            self._give_back(uid)
        return Nothing()

    def on_allocate(self, body: Body) -> ErrorAnswer:
        """A pod was placed; a pod that waits for others to end (pipelined) gets its chips when placed again."""
        try:
            task = decode(body, TaskArgs).task
            if task.status == TaskStatus.ALLOCATED:
                self._reserve(task)
        except Refusal as refusal:
            for pod in self._pods_of([task]):  # Volcano asks for no scores if there is one node
                self._journal.on_refusal(pod, refusal)
            return ErrorAnswer(text(refusal))
        except AscendError as error:
            return ErrorAnswer(text(error))
        return ErrorAnswer()

    def on_deallocate(self, body: Body) -> ErrorAnswer:
        """A placement was undone, or a pod is evicted."""
        try:
            self._give_back(decode(body, TaskArgs).task.uid)
        except AscendError as error:
            return ErrorAnswer(text(error))
        return ErrorAnswer()

    def _require_open(self) -> None:
        closed = self._closed()
        if closed is not None:
            raise Refusal(closed.reason, closed.message)

    def _pod_of(self, task: Task) -> Pod | None:
        """The pod of a task; None if the allocator does not judge it.

        Raises:
            Refusal: the informer has not seen it, or it has another name.
        """
        pod = self._pods.find_seen(task.ref)
        if pod is None and task.uid not in self._cluster.plain:
            self._require_open()
            raise Refusal(Reason.POD_UNKNOWN, f"the informers have not seen pod {task.ref.key} with uid {task.uid!r}")
        return pod if pod is not None and self._engine.handles(pod) else None

    def _pods_of(self, tasks: Iterable[Task]) -> list[Pod]:
        """The pods of tasks that the informer has seen; others have nothing yet."""
        found = (self._cluster.pods.get(task.uid) for task in tasks)
        return [pod for pod in found if pod is not None]

    def _reserve(self, task: Task) -> None:
        """Reserve the chips of a pod that is placed.

        Raises:
            Refusal: it does not fit there, the informer has not seen it, or no call is answered now.
        """
        pod, node = self._pod_of(task), task.node_name
        if pod is None:
            return
        self._require_open()
        self._engine.gangs.obstacles.on_request(pod)
        held = self._ledger.get(pod.uid)
        if held is not None and held.node == node:
            if held.stage not in _NOT_POSTED:
                return
        else:
            self._give_back(pod.uid)
        self._engine.place_on(pod, node)  # also what is reserved there already: it may no longer be usable
        self._placed[pod.uid] = False

    def _give_back(self, uid: str) -> None:
        """Release the chips of a pod that is no longer placed, unless its Binding has been posted."""
        held = self._ledger.get(uid)
        was_placed = self._placed.pop(uid, None) is not None
        if was_placed and held is not None and held.stage in _NOT_POSTED:
            self._ledger.release(uid)  # also the seat of a gang: Volcano places each of its pods anew


async def _read(request: web.Request) -> Body:
    """The body of a call, or why it is not read: with an error instead, Volcano would take a job as ready."""
    try:
        # Volcano waits for the answer before it asks again; what it sends is decoded in a millisecond a megabyte.
        return await read_body(request, MOST_BYTES, at_once=MOST_BYTES)
    except BodyRefused as error:
        return error
