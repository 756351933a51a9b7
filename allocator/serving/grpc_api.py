"""The front end for any scheduler: the calls of ``ascend.allocator.v1.Allocator``."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, TypeVar

from allocator.binding.binder import ANSWER_TIMEOUT_S, Binder
from allocator.binding.binding import Assignment, PodRef
from allocator.binding.known_pods import KnownPods, unknown
from allocator.binding.reserving import Reserver
from allocator.decision.engine import DecisionEngine
from allocator.decision.filtered import Filtered
from allocator.decision.preemption import Preemption
from allocator.gangs.policies import policy_of
from allocator.observe.journal import Journal
from allocator.rules.asked import Asked, JobDefaults
from allocator.rules.summary import example
from allocator.rules.unsupported import without_effect
from allocator.rules.validity import invalidity, job_shape
from allocator.rules.victims import VictimSet
from allocator.serving.grpc_server import Context, abort
from allocator.serving.node_states import NodeStates, refusal_message
from ascend.chips import chip_ids, chip_name
from ascend.errors import AscendError, InvalidValue, Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Metadata, Pod, PodSpec
from ascend.reasons import Reason
from ascend.turn import Steps, Turn
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1 import allocator_pb2_grpc as pb_grpc

_T = TypeVar("_T")

_ANSWERING_S: Final = 0.05
"""The part of a deadline that is reserved for the answer itself."""

_DEFAULT_LIMIT: Final = 10
"""The number of nodes that SelectVictims returns if the caller sets no limit."""

_EXAMPLES: Final = 5
"""The most nodes that Explain names for each reason."""

_STEP: Final = 512
"""After so many nodes there may be a pause."""


class AllocatorService(pb_grpc.AllocatorServicer):
    """Answers the calls; pods are named by namespace, name and uid.

    Args:
        pods: finds the pods that calls name.
        engine: chooses node and chips.
        binder: binds pods.
        reserver: reserves chips for callers that bind pods themselves.
        preemption: selects victims.
        journal: records decisions.
        closed: why calls are refused now; None if they are answered.
    """

    def __init__(
        self,
        *,
        pods: KnownPods,
        engine: DecisionEngine,
        binder: Binder,
        reserver: Reserver,
        preemption: Preemption,
        journal: Journal,
        closed: Callable[[], Refusal | None],
    ) -> None:
        self._pods = pods
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._binder = binder
        self._reserver = reserver
        self._preemption = preemption
        self._states = NodeStates(engine.cluster, engine.ledger)
        self._journal = journal
        self._closed = closed

    async def ValidateJob(self, request: pb.ValidateJobRequest, context: Context) -> pb.ValidateJobResponse:  # noqa: ARG002 - the servicer's signature
        """Whether the request of a job is valid at all."""
        templates = _templates_of(request)
        refusal = _job_refusal(request.job or "(without a name)", templates, self._engine.defaults)
        reschedules = self._cluster.jobs.reschedules
        ignored = chain.from_iterable(without_effect(pod, reschedules=reschedules) for pod, _ in templates)
        return pb.ValidateJobResponse(
            refusal=refusal_message(refusal) if refusal is not None else None,
            without_effect=dict.fromkeys(ignored),
        )

    async def Filter(self, request: pb.FilterRequest, context: Context) -> bytes:  # type: ignore[override] # serialized
        """The nodes on which the pod fits now."""
        pod = await self._pod(request.pod, context)
        candidates = list(request.nodes) or None
        with self._journal.measure("grpc", "filter"):
            seat = await self._engine.preview(pod, candidates)
            turn = Turn()
            try:
                filtered = await turn.share_between(self._engine.filtering(pod, candidates, seat))
            except Refusal as refusal:
                filtered = Filtered([], dict.fromkeys(candidates or self._cluster.nodes, refusal))
            fitting = (pb.FilterResponse(nodes=names) for names in _pieces(filtered.fitting))
            refused = map(_refused, _pieces(filtered.refused.items()))
            return await _serialized(chain(fitting, refused), turn)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> bytes:  # type: ignore[override] # serialized
        """The nodes on which the pod fits, best first."""
        pod = await self._pod(request.pod, context)
        candidates = list(request.nodes) or None
        with self._journal.measure("grpc", "score"):
            seat = await self._engine.preview(pod, candidates)
            turn = Turn()
            try:
                tiers = await turn.share_between(self._engine.ranking(pod, candidates, seat))
            except Refusal:
                tiers = []
            nodes = (
                pb.ScoredNode(node=name, rank=tier.rank, score=tier.score) for tier in tiers for name in tier.nodes
            )
            return await _serialized((pb.ScoreResponse(nodes=scored) for scored in _pieces(nodes)), turn)

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Choose node and chips, reserve them, and bind the pod if requested."""
        pod = await self._pod(request.pod, context)
        with self._journal.measure("grpc", "allocate"):
            candidates = list(request.nodes) or None
            await self._engine.prepare(pod, candidates)
            try:
                if not request.bind:
                    bound = self._reserver.reserve(pod, candidates)
                    self._journal.on_reservation(pod, bound)
                    return _allocated(bound, is_bound=self._is_bound(pod.uid))
                node = self._binder.choose(pod, candidates)
            except Refusal as refusal:
                self._journal.on_refusal(pod, refusal)
                await abort(context, refusal, pod=pod.key, pod_uid=pod.uid)
            try:
                timeout_s = _bind_timeout_s(pod, context)
                bound = await self._binder.bind(
                    PodRef.of(pod), node, timeout_s=timeout_s, hold_s=_hold_s(context.time_remaining())
                )
            except AscendError as error:
                await abort(context, error, pod=pod.key, pod_uid=pod.uid, node=node)
        return _allocated(bound, is_bound=True)

    async def Confirm(self, request: pb.ConfirmRequest, context: Context) -> pb.ConfirmResponse:
        """The caller has bound the pod."""
        await self._require_open(context)
        try:
            self._require_served(request.pod)
            return pb.ConfirmResponse(seen=self._reserver.confirm(request.pod.uid, request.node))
        except Refusal as refusal:
            await abort(context, refusal, pod=self._ref_of(request.pod).key, pod_uid=request.pod.uid)

    async def Release(self, request: pb.ReleaseRequest, context: Context) -> pb.ReleaseResponse:
        """Release the chips reserved for a pod that was not bound."""
        await self._require_open(context)
        try:
            pod = self._cluster.pods.get(request.pod_uid)
            if pod is not None:
                self._pods.require_served(pod)
        except Refusal as refusal:
            await abort(context, refusal, pod_uid=request.pod_uid)
        return pb.ReleaseResponse(released=self._engine.release(request.pod_uid))

    async def SelectVictims(self, request: pb.SelectVictimsRequest, context: Context) -> pb.SelectVictimsResponse:
        """The nodes on which preemption makes room for the pod, with the victims."""
        pod = await self._pod(request.pod, context)
        if request.limit < 0:
            await abort(context, InvalidValue(f"limit is {request.limit}; it can't be negative"))
        nodes = list(request.nodes) or list(self._cluster.nodes)
        with self._journal.measure("grpc", "preempt"):
            try:
                found = await self._preemption.victim_sets(pod, nodes, request.limit or _DEFAULT_LIMIT)
            except Refusal as refusal:
                self._journal.preempts(pod, refusal)
                return pb.SelectVictimsResponse()
        return pb.SelectVictimsResponse(nodes=map(_victim_set, found))

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:
        """Where the pod is or would be placed, or why it fits on no node."""
        pod = await self._pod(request.pod, context, of_any_scheduler=True)
        candidates = list(request.nodes) or None
        ignored = self._engine.without_effect(pod)
        with self._journal.measure("grpc", "explain"):
            seat = await self._engine.preview(pod, candidates)
            turn = Turn()
            try:
                filtered = await turn.share_between(self._engine.filtering(pod, candidates, seat))
            except Refusal as refusal:
                message = refusal_message(refusal)
                return pb.ExplainResponse(standing="refused", refusal=message, without_effect=ignored)
            explained = await turn.share_between(_explained(filtered))
            explained.without_effect.extend(ignored)
            held = self._ledger.get(pod.uid)
            if self._is_bound(pod.uid):
                explained.standing, explained.node = "bound", self._cluster.pods[pod.uid].spec.node_name
            elif held is not None:
                explained.standing, explained.node = "reserved", held.node
            elif filtered.fitting:
                explained.standing = "fits"
                # For a pod of a gang only one node fits; with that as the only candidate its peers might not fit.
                explained.node = filtered.fitting[0]
                if len(filtered.fitting) > 1 and (
                    tiers := await turn.share_between(self._engine.ranking(pod, candidates))
                ):
                    explained.node = tiers[0].nodes[0]
        return explained

    async def GetState(self, request: pb.GetStateRequest, context: Context) -> pb.GetStateResponse:
        """Nodes, chips and reservations as the allocator sees them, one page at a time."""
        await self._require_open(context)
        if request.page_size < 0:
            await abort(context, InvalidValue(f"page_size is {request.page_size}; it can't be negative"))
        return await self._states.page(request.nodes, request.page_size, request.page_token)

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[pb.WatchResponse]:
        """The state of every node, then of the nodes that change."""
        await self._require_open(context)
        async for response in self._states.watch(frozenset(request.nodes)):
            yield response

    def _is_bound(self, uid: str) -> bool:
        seen = self._cluster.pods.get(uid)
        return seen is not None and bool(seen.spec.node_name)

    async def _pod(self, ref: pb.PodRef, context: Context, *, of_any_scheduler: bool = False) -> Pod:
        await self._require_open(context)
        named = self._ref_of(ref)
        try:
            pod = await self._pods.find(named) if named.uid else None
            if pod is None:
                if named.uid not in self._cluster.plain:
                    raise unknown(named)
                # Every call refuses it for what it is: a pod that requests no chips.
                return Pod(metadata=Metadata(name=ref.name, namespace=ref.namespace, uid=ref.uid))
            if not of_any_scheduler:
                self._pods.require_served(pod)
                self._engine.gangs.obstacles.on_request(pod)
        except AscendError as error:
            await abort(context, error, pod=named.key, pod_uid=ref.uid)
        return pod

    def _ref_of(self, ref: pb.PodRef) -> PodRef:
        """The pod that a caller names; the uid alone is enough if the informer has seen the pod."""
        pod = self._cluster.pods.get(ref.uid)
        if pod is not None and not ref.namespace and not ref.name:
            return PodRef.of(pod)
        return PodRef(ref.namespace, ref.name, ref.uid)

    def _require_served(self, ref: pb.PodRef) -> None:
        """Accept a pod of a scheduler that is served, or a pod unknown to the informer.

        Raises:
            Refusal: it has another name, or names another scheduler.
        """
        named = self._ref_of(ref)
        pod, held = self._pods.find_seen(named), self._ledger.get(ref.uid)
        if pod is not None:
            self._pods.require_served(pod)
        elif held is not None and held.pod != named.key:
            raise unknown(named)

    async def _require_open(self, context: Context) -> None:
        closed = self._closed()
        if closed is not None:
            await abort(context, closed)


def _bind_timeout_s(pod: Pod, context: Context) -> float:
    """How long to wait for a Binding within the caller's deadline.

    Raises:
        Refusal: no time is left to post one.
    """
    remaining_s = context.time_remaining()
    if remaining_s is None:
        return ANSWER_TIMEOUT_S
    if remaining_s <= _ANSWERING_S:
        raise Refusal(
            Reason.DEADLINE_TOO_SHORT, f"pod {pod.key}: the deadline in {remaining_s:.3f} s is too short for a Binding"
        )
    return min(ANSWER_TIMEOUT_S, remaining_s - _ANSWERING_S)


def _hold_s(remaining_s: float | None) -> float | None:
    """How much of the caller's deadline a gang may take until it can start; None without a deadline."""
    return None if remaining_s is None else max(remaining_s - ANSWER_TIMEOUT_S, remaining_s / 2)


def _job_refusal(job: str, templates: Sequence[tuple[Pod, int]], defaults: JobDefaults) -> Refusal | None:
    """Why a job is invalid on every node; None if it is valid, or requests no chips.

    Args:
        job: the job, as in ``default/train``.
        templates: its pods, each with the number of equal ones.
        defaults: what an administrator has set for all jobs.
    """
    try:
        # For the number of chips two pods are equivalent to thousands, and for vNPUs one more than a job may have.
        most = max(defaults.vnpus_per_job + 1, 2)
        shape = job_shape(f"job {job}", [pod for pod, number in templates for _ in range(min(number, most))])
        if not shape.sizes and not shape.vnpus:
            return None
        if (
            refusal := invalidity(shape, [pod for pod, _ in templates], vnpus_per_job=defaults.vnpus_per_job)
        ) is not None:
            return refusal
        requesting = [(pod, number) for pod, number in templates if pod.requests_chips]
        if requesting and shape.sizes:
            number = sum(number for _, number in requesting)
            policy_of(Asked(job, requesting[0][0], max(shape.sizes), number, shape.products, defaults))
    except Refusal as refused:
        return refused
    return None


def _templates_of(job: pb.ValidateJobRequest) -> list[tuple[Pod, int]]:
    """The pods of a job that a caller describes before they exist, each with the number of equal ones."""
    namespace, _, name = job.job.rpartition("/")
    templates: list[tuple[Pod, int]] = []
    for request in job.pods:
        resources = {resource: str(count) for resource, count in request.resources.items()}
        metadata = Metadata(
            name=name, namespace=namespace, annotations=dict(request.annotations), labels=dict(request.labels)
        )
        containers = (Container("main", Resources(limits=resources)),)
        spec = PodSpec(node_selector=dict(request.node_selector), containers=containers)
        templates.append((Pod(metadata=metadata, spec=spec), max(request.replicas, 1)))
    return templates


def _pieces(items: Iterable[_T]) -> Iterator[list[_T]]:
    rest = iter(items)
    while some := list(islice(rest, _STEP)):
        yield some


async def _serialized(parts: Iterable[pb.FilterResponse | pb.ScoreResponse], turn: Turn) -> bytes:
    """An answer on the wire: the parts of a message, one after the other, are the message.

    An answer for 65,000 nodes would take 20 ms in one piece. Source: https://protobuf.dev/programming-guides/encoding,
    "Last One Wins".
    """
    wire = list[bytes]()
    for part in parts:
        wire.append(part.SerializeToString())
        await turn.share()
    return b"".join(wire)


def _refused(nodes: Iterable[tuple[str, Refusal]]) -> pb.FilterResponse:
    names: dict[Refusal, list[str]] = {}
    for name, refusal in nodes:
        names.setdefault(refusal, []).append(name)
    return pb.FilterResponse(
        refused=[pb.RefusedNodes(refusal=refusal_message(refusal), nodes=some) for refusal, some in names.items()]
    )


def _explained(filtered: Filtered) -> Steps[pb.ExplainResponse]:
    nodes, shown, seen = Counter[Reason](), dict[Reason, dict[str, str]](), set[Refusal]()
    for number, (name, refusal) in enumerate(filtered.refused.items(), start=1):
        nodes[refusal.reason] += 1
        sentences = shown.setdefault(refusal.reason, {})
        if len(sentences) < _EXAMPLES or refusal not in seen:  # nodes share refusals
            sentences[name] = refusal.message
            seen.add(refusal)
        if not number % _STEP:
            yield
    obstacles = []
    for reason, count in nodes.most_common():
        sentences = shown[reason]
        first = example(sentences)
        examples = [first, *(name for name in sentences if name != first)][:_EXAMPLES]
        message = sentences[first]
        obstacles.append(pb.Obstacle(reason=reason, nodes=count, message=message, examples=examples))
    return pb.ExplainResponse(standing="refused", fitting=len(filtered.fitting), obstacles=obstacles)


def _victim_set(chosen: VictimSet) -> pb.VictimSet:
    victims = [
        pb.Victim(
            uid=victim.uid,
            pod=victim.pod,
            priority=victim.priority,
            chips=map(chip_name, chip_ids(victim.chips)),
            ending=victim.terminating,
            vnpus=[vnpu.name for vnpu in victim.vnpus],
        )
        for victim in chosen.victims
    ]
    return pb.VictimSet(node=chosen.node, victims=victims)


def _allocated(bound: Assignment, *, is_bound: bool) -> pb.AllocateResponse:
    return pb.AllocateResponse(
        node=bound.node,
        chips=map(chip_name, bound.grant.chips),
        annotations=bound.annotations or bound.grant.annotations(),
        bound=is_bound,
        vnpus=bound.grant.take.vnpus,
    )
