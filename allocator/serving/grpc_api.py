"""The front end for any scheduler: ``ascend.allocator.v1.Allocator`` over gRPC, with health and reflection."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from allocator.commit import Bound, Committer, PodRef
from allocator.decide import DecisionEngine
from allocator.journal import Journal
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server, unknown_node
from ascend.chips import chip_ids, chip_name
from ascend.errors import AscendError, InvalidValue, NotFound, Refusal, Unreachable
from ascend.kube.objects import Pod
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1 import allocator_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"].full_name
STOP_S = 2.0
"""Calls under way get so long when the server stops."""

_Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
_STATUS: dict[type[AscendError], grpc.StatusCode] = {
    Refusal: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    InvalidValue: grpc.StatusCode.INVALID_ARGUMENT,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
}


class AllocatorService(pb_grpc.AllocatorServicer):
    """Answers the calls; pods are named by uid and must be in the view.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        engine: decides.
        committer: binds.
        journal: writes down.
        missing: what the view still waits for.
    """

    def __init__(
        self,
        *,
        cluster: Cluster,
        ledger: Ledger,
        engine: DecisionEngine,
        committer: Committer,
        journal: Journal,
        missing: Callable[[], str | None],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._committer = committer
        self._journal = journal
        self._missing = missing

    async def Filter(self, request: pb.FilterRequest, context: _Context) -> pb.FilterResponse:
        """Where the pod fits now."""
        pod = await self._pod(request.pod, context)
        candidates = list(request.nodes) or None
        with self._journal.timed("filter"):
            try:
                filtered = self._engine.filter(pod, candidates)
            except Refusal as refusal:
                names = candidates if candidates is not None else self._cluster.nodes
                return pb.FilterResponse(refused={name: _refusal(refusal) for name in names})
        refused = {name: _refusal(refusal) for name, refusal in filtered.refused.items()}
        return pb.FilterResponse(nodes=filtered.fitting, refused=refused)

    async def Score(self, request: pb.ScoreRequest, context: _Context) -> pb.ScoreResponse:
        """The nodes the pod fits on, best first."""
        pod = await self._pod(request.pod, context)
        with self._journal.timed("score"):
            try:
                tiers = self._engine.rank(pod, list(request.nodes) or None)
            except Refusal:
                return pb.ScoreResponse()
        return pb.ScoreResponse(
            nodes=[pb.ScoredNode(node=name, rank=tier.rank, score=tier.score) for tier in tiers for name in tier.nodes]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: _Context) -> pb.AllocateResponse:
        """Choose node and chips, keep them, and bind if asked to."""
        pod = await self._pod(request.pod, context)
        with self._journal.timed("allocate"):
            try:
                bound = self._committer.keep(pod, list(request.nodes) or None)
            except Refusal as refusal:
                self._journal.refused(pod, refusal)
                await _abort(context, refusal)
            if not request.bind:
                self._journal.kept(pod, bound)
                return _allocated(bound, is_bound=self._is_bound(pod.uid))
            try:
                ref = PodRef(pod.metadata.namespace, pod.name, pod.uid)
                bound = await self._committer.bind(ref, bound.node)
            except AscendError as error:
                await _abort(context, error)
        return _allocated(bound, is_bound=True)

    async def Release(self, request: pb.ReleaseRequest, context: _Context) -> pb.ReleaseResponse:
        """Give back chips kept for a pod that was not bound."""
        await self._require_view(context)
        return pb.ReleaseResponse(released=self._engine.release(request.pod_uid))

    async def GetState(self, request: pb.GetStateRequest, context: _Context) -> pb.GetStateResponse:
        """Nodes, chips and reservations as seen from here."""
        await self._require_view(context)
        names = list(request.nodes) or sorted(self._cluster.nodes)
        return pb.GetStateResponse(nodes=[self._state(name) for name in names])

    def _state(self, name: str) -> pb.NodeState:
        record = self._cluster.nodes.get(name)
        if record is None:
            return pb.NodeState(node=name, refusal=_refusal(unknown_node(name)))
        state = pb.NodeState(node=name)
        if isinstance(record.offer, Refusal):
            state.refusal.CopyFrom(_refusal(record.offer))
        if isinstance(record.server, Server):
            state.product = record.server.product.name
            state.chips.extend(self._chip_states(record, record.server))
        return state

    def _chip_states(self, record: NodeRecord, server: Server) -> Iterator[pb.ChipState]:
        healthy = server.reported & ~record.unhealthy if isinstance(record.unhealthy, int) else 0
        kept = {uid: chips for uid, chips in self._ledger.on(record.name).items() if uid not in record.holdings}
        for chip in chip_ids(server.reported):
            holders = [
                pb.Holder(uid=uid, pod=holding.pod)
                for uid, holding in record.holdings.items()
                if holding.chips >> chip & 1
            ]
            for uid, chips in kept.items():
                reservation = self._ledger.get(uid)
                if chips >> chip & 1 and reservation is not None:
                    holders.append(pb.Holder(uid=uid, pod=reservation.pod, reserved=True))
            yield pb.ChipState(name=chip_name(chip), healthy=bool(healthy >> chip & 1), holders=holders)

    def _is_bound(self, uid: str) -> bool:
        seen = self._cluster.pods.get(uid)
        return seen is not None and bool(seen.spec.node_name)

    async def _pod(self, ref: pb.PodRef, context: _Context) -> Pod:
        await self._require_view(context)
        pod = self._cluster.pods.get(ref.uid)
        if pod is None:
            text = f"PodUnknown: no pod with uid {ref.uid!r} ({ref.namespace}/{ref.name}) is known"
            await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return pod

    async def _require_view(self, context: _Context) -> None:
        missing = self._missing()
        if missing is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"ViewIncomplete: {missing}")


async def _abort(context: _Context, error: AscendError) -> NoReturn:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), grpc.StatusCode.ABORTED)
    await context.abort(status, f"{error.reason}: {error.message}")
    raise AssertionError  # abort() has raised


def _refusal(refusal: Refusal) -> pb.Refusal:
    return pb.Refusal(reason=refusal.reason, message=refusal.message)


def _allocated(bound: Bound, *, is_bound: bool) -> pb.AllocateResponse:
    return pb.AllocateResponse(
        node=bound.node,
        chips=map(chip_name, bound.grant.chips),
        annotations=bound.grant.annotations(),
        bound=is_bound,
    )


@asynccontextmanager
async def serve_grpc(service: AllocatorService, address: str) -> AsyncIterator["GrpcServer"]:
    """Serve within a ``with`` block.

    Args:
        service: answers the calls.
        address: ``host:port`` (port 0 takes a free one) or ``unix:<path>``.

    Raises:
        InvalidValue: the address can't be listened on.
    """
    # Without this a second process could listen on the same port, and calls would be split between two ledgers.
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    pb_grpc.add_AllocatorServicer_to_server(service, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise InvalidValue(f"cannot listen on {address}: {error}") from error
    bound = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    running = GrpcServer(bound, checks)
    await running.show(serving=False)
    await server.start()
    try:
        yield running
    finally:
        await running.show(serving=False)
        await server.stop(STOP_S)


class GrpcServer:
    """A server that runs.

    Args:
        address: where it really listens.
        checks: its health service.
    """

    def __init__(self, address: str, checks: health.aio.HealthServicer) -> None:
        self.address = address
        self._checks = checks

    async def show(self, *, serving: bool) -> None:
        """Answer health checks from now on with SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._checks.set(name, status)
