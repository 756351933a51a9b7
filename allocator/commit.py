"""The commit: a decision becomes the pod's in one Binding that carries its chips (design, decision 1).

The work for a pod is one task, whoever asks for it and however often: a caller that gives up (a scheduler's timeout, a
cancelled RPC) doesn't take the Binding with it, and a second caller gets the first one's result. A Binding whose answer
is lost may have been made all the same, so the pod is read and decides; where it can't be read either, the chips stay
reserved for a while.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Protocol

from allocator.bound import Bound, PodRef, elsewhere, read_bound
from allocator.decide import DecisionEngine
from allocator.inscription import inscribe
from allocator.leader import Permit, unlimited
from allocator.stamp import Stamps
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import Grant
from ascend.errors import ApiError, AscendError, Conflict, NotFound, Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod

POST_TIMEOUT_S = 2.5
"""For the Binding itself; leaves time to look what became of it within ANSWER_TIMEOUT_S."""

ANSWER_TIMEOUT_S = 4.0
"""A caller is answered within this time; kube-scheduler's own patience with an extender is 5 s by default."""

AT_ONCE = 16
"""Bindings under way at the same time; the next ones wait for their turn. Each is a connection of its own, with a TLS
handshake on both sides if it is new: more at once would mean more of those for the same Bindings."""


class Outcome(Protocol):
    """Told of every attempt to bind."""

    def __call__(self, ref: PodRef, node: str, result: Bound | AscendError, duration_s: float) -> None:
        """One attempt has ended."""


class Committer:
    """Binds pods.

    Args:
        client: the API server.
        cluster: what is seen.
        ledger: what is decided.
        engine: decides on chips where nothing is reserved.
        stamps: decision times.
        monotonic: the clock for durations.
        outcome: told of every attempt.
        permit: asked for leave right before every Binding; refuses where another allocator leads or may soon.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        engine: DecisionEngine,
        stamps: Stamps,
        monotonic: Callable[[], float],
        outcome: Outcome,
        permit: Callable[[float], Permit] = unlimited,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._stamps = stamps
        self._monotonic = monotonic
        self._outcome = outcome
        self._permit = permit
        self._running: dict[str, asyncio.Task[Bound]] = {}
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def bind(self, ref: PodRef, node: str, *, patience_s: float = ANSWER_TIMEOUT_S) -> Bound:
        """Bind a pod to a node with chips written on it; the same answer however often it is asked.

        Args:
            ref: the pod.
            node: the node.
            patience_s: how long the caller waits; the Binding goes on without it.

        Raises:
            Refusal: it doesn't fit there (any more), or is bound to another node.
            ApiError: the API server refuses.
            Unreachable: the API server didn't answer in time; the pod may be bound all the same.
        """
        if not ref.uid:
            raise Refusal("InvalidRequest", f"pod {ref.key}: the uid is missing; the name alone may mean another pod")
        task = self._running.get(ref.uid)
        if task is None:
            task = asyncio.create_task(self._attempt(ref, node), name=f"bind {ref.key}")
            self._running[ref.uid] = task
            task.add_done_callback(lambda done: self._finished(ref.uid, done))
        done, _ = await asyncio.wait({task}, timeout=patience_s)
        if not done:
            raise Unreachable(
                f"pod {ref.key}: the API server has not answered within {patience_s:.3g} s; the binding goes on"
            )
        bound = task.result()
        if bound.node != node:
            raise elsewhere(ref.key, bound.node)
        return bound

    async def drain(self) -> None:
        """Wait for the Bindings on their way."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    def keep(self, pod: Pod, candidates: list[str] | None) -> Bound:
        """Place a pod for a caller that binds it by itself, with the annotations of the answer in its Binding.

        Raises:
            Refusal: it fits nowhere.
        """
        bound = read_bound(pod)
        if bound is not None:
            return replace(bound, repeated=True)
        reservation = self._engine.place(pod, candidates)
        # A seat whose chips somebody was told is no peer's to take any more.
        stage = Stage.TENTATIVE if reservation.stage is Stage.PLANNED else reservation.stage
        if stage is not reservation.stage or reservation.predicate_time is None:
            stamp = self._stamps.next() if reservation.predicate_time is None else None
            reservation = self._ledger.advance(pod.uid, stage, predicate_time=stamp) or reservation
        return Bound(reservation.node, reservation.grant, annotations=self.annotations(pod, reservation))

    def annotations(self, pod: Pod, reservation: Reservation) -> dict[str, str]:
        """What is written on a pod in the Binding that makes a reservation true."""
        record = self._cluster.nodes.get(reservation.node)
        return inscribe(pod, reservation.grant, self._cluster.jobs, record.node if record is not None else None)

    def confirm(self, uid: str, node: str) -> bool:
        """A caller that binds by itself has done so: keep the chips until the pod is seen bound.

        Args:
            uid: the pod's.
            node: where it was bound; empty for where its chips are kept.

        Returns:
            Whether the pod is seen bound already.

        Raises:
            Refusal: nothing is kept for the pod there; another pod may have its chips by now.
        """
        seen = self._cluster.pods.get(uid)
        if seen is not None and seen.spec.node_name and node in {"", seen.spec.node_name}:
            return True
        held = self._ledger.get(uid)
        if held is None or node not in {"", held.node}:
            where = f" on node {node}" if node else ""
            raise Refusal("NotReserved", f"nothing is kept for the pod with uid {uid!r}{where}")
        if held.stage in {Stage.TENTATIVE, Stage.PLANNED, Stage.DOUBTFUL}:
            self._ledger.advance(uid, Stage.BOUND)
        return False

    async def verify(self) -> None:
        """Read the pods whose Binding was made, or may have been, but has not been seen for long.

        The watch may never show a pod that came and went while it was being resumed; its chips must not stay kept. And
        where no Binding has come about for as long as the API server may take, none will.
        """
        for reservation in self._ledger.unproven():
            namespace, _, name = reservation.pod.partition("/")
            try:
                bound = await self._settle(PodRef(namespace, name, reservation.uid), reservation.node)
            except AscendError:
                # Released where the pod is gone, kept where it can't be read: either way nothing is left to do now.
                continue
            if bound is not None or self._ledger.get(reservation.uid) is not reservation:
                continue
            if reservation.stage is Stage.DOUBTFUL:
                self._ledger.withdraw(reservation.uid)
            else:
                # Its caller said too early that it had bound it, or wrongly: perhaps that is still to come.
                self._ledger.advance(reservation.uid, Stage.DOUBTFUL)

    def _finished(self, uid: str, task: "asyncio.Task[Bound]") -> None:
        del self._running[uid]
        if not task.cancelled():
            task.exception()  # every caller may have gone; the outcome was logged by _attempt

    async def _attempt(self, ref: PodRef, node: str) -> Bound:
        started_s = self._monotonic()
        result: Bound | AscendError | None = None
        try:
            result = await self._bind(ref, node)
        except AscendError as error:
            result = error
            raise
        finally:
            if result is not None:
                self._outcome(ref, node, result, self._monotonic() - started_s)
        return result

    async def _bind(self, ref: PodRef, node: str) -> Bound:
        held = self._ledger.get(ref.uid)
        if held is not None and held.stage is Stage.BOUND:
            return Bound(held.node, held.grant, repeated=True)
        pod = self._cluster.pods.get(ref.uid)
        if pod is None:
            # The scheduler's watch may be ahead of ours.
            pod = await self._read(ref)
        ref = PodRef(pod.metadata.namespace, pod.name, pod.uid)
        if not pod.asks_for_chips:
            return await self._bind_plain(ref, pod, node)
        bound = read_bound(pod)
        if bound is not None:
            return replace(bound, repeated=True)
        reservation = self._engine.place(pod, [node])
        stamp = self._stamps.next()
        reservation = self._ledger.advance(ref.uid, Stage.BINDING, predicate_time=stamp) or reservation
        try:
            return await self._post(ref, reservation, self.annotations(pod, reservation))
        finally:
            held = self._ledger.get(ref.uid)
            if held is not None and held.stage is Stage.BINDING:
                # Nothing is known for certain: kept for a while, so that a Binding made all the same does no harm.
                self._ledger.advance(ref.uid, Stage.DOUBTFUL)

    async def _bind_plain(self, ref: PodRef, pod: Pod, node: str) -> Bound:
        """Bind a pod that asks for no chips: it names the resource with 0, or every pod is left to the extender."""
        nothing = Grant((), None)
        if pod.spec.node_name:
            return Bound(pod.spec.node_name, nothing, repeated=True)
        async with self._turn:
            await self._client.bind(
                namespace=ref.namespace, name=ref.name, uid=ref.uid, node=node, annotations={}, timeout_s=POST_TIMEOUT_S
            )
        return Bound(node, nothing)

    async def _post(self, ref: PodRef, reservation: Reservation, annotations: dict[str, str]) -> Bound:
        try:
            async with self._turn:
                permit = self._permit(POST_TIMEOUT_S)
                await self._client.bind(
                    namespace=ref.namespace,
                    name=ref.name,
                    uid=ref.uid,
                    node=reservation.node,
                    annotations={**annotations, **permit.annotations},
                    timeout_s=permit.timeout_s,
                )
        except Refusal:
            self._ledger.withdraw(ref.uid)
            raise
        except Conflict:
            # Another pod of that name, or bound already: perhaps by an earlier attempt of ours whose answer was lost.
            bound = await self._settle(ref, reservation.node)
            if bound is None:
                self._ledger.withdraw(ref.uid)
                raise
            return bound
        except ApiError as error:
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                self._ledger.withdraw(ref.uid)
                raise
            return await self._settle_or_raise(ref, reservation.node, error)
        except Unreachable as error:
            return await self._settle_or_raise(ref, reservation.node, error)
        self._ledger.advance(ref.uid, Stage.BOUND)
        return Bound(reservation.node, reservation.grant)

    async def _settle_or_raise(self, ref: PodRef, node: str, error: AscendError) -> Bound:
        bound = await self._settle(ref, node)
        if bound is None:
            raise error
        return bound

    async def _settle(self, ref: PodRef, node: str) -> Bound | None:
        """Let the pod itself say whether it is bound: how, or None where it isn't (yet).

        Raises:
            Refusal: it is finished, another one, or bound to another node.
            ApiError: it is gone, or can't be read.
            Unreachable: it can't be read.
        """
        try:
            bound = read_bound(await self._read(ref))
        except (NotFound, Refusal):
            self._ledger.vacate(ref.uid)
            raise
        if bound is None:
            return None
        seen = self._cluster.pods.get(ref.uid)
        if seen is None or not seen.spec.node_name:
            # Until the watch shows it, the ledger keeps what is written on the pod, not what we had chosen.
            self._ledger.reserve(
                uid=ref.uid,
                pod=ref.key,
                node=bound.node,
                chips=bound.grant.chips,
                stage=Stage.BOUND,
                predicate_time=bound.grant.predicate_time,
            )
        if bound.node != node:
            raise elsewhere(ref.key, bound.node)
        return bound

    async def _read(self, ref: PodRef) -> Pod:
        pod = await self._client.get(PODS, ref.name, ref.namespace)
        if pod.uid != ref.uid:
            raise Refusal("PodGone", f"pod {ref.key} is another one now: its uid is {pod.uid}, not {ref.uid}")
        return pod
