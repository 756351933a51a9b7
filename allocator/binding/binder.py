"""Binds pods: one Binding assigns the node and writes the chips on the pod (docs/architecture.md#decisions).

Each pod is bound by one task, however many callers wait for it: a caller that gives up (a scheduler's timeout, a
cancelled RPC) does not cancel the Binding, and a second caller gets the first one's result. The Binding of a pod of a
gang is held first (``allocator/binding/barrier.py``); until it is posted, it ends with its last caller. If the answer
to a Binding is lost, the Binding may have been made, so the pod is read and decides; if it can't be read either, its
chips stay reserved for a while.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeAlias

from allocator.binding.annotations import Stamper
from allocator.binding.barrier import Barrier
from allocator.binding.binding import Assignment, BindingLease, PodRef, bound_elsewhere, read_assignment
from allocator.binding.known_pods import KnownPods, unknown
from allocator.binding.outcomes import BindingOutcomes
from allocator.decision.engine import DecisionEngine
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import Grant
from ascend.errors import ApiError, AscendError, Conflict, Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod
from ascend.reasons import Reason

POST_TIMEOUT_S = 2.5
"""For the Binding itself; leaves time to read the pod within ANSWER_TIMEOUT_S if the answer is lost."""

ANSWER_TIMEOUT_S = 4.0
"""A caller is answered within this time; kube-scheduler's default timeout for an extender is 5 s."""

AT_ONCE = 16
"""The most Bindings in flight; further ones wait for their turn. Each has a connection of its own, with a TLS handshake
if it is new: more at once would mean more handshakes for the same Bindings."""


Outcome: TypeAlias = Callable[[PodRef, str, Assignment | AscendError, float], None]
"""Called after every attempt to bind, with the pod, the node, the result and the duration in seconds."""


class Binder:
    """Binds pods.

    Args:
        client: the API server.
        pods: finds the pods that are bound.
        engine: chooses node and chips if nothing is reserved.
        barrier: holds the Bindings of gangs.
        stamper: makes predicate times and annotations.
        monotonic: the clock for durations.
        outcome: called after every attempt.
        lease: called right before every Binding; refuses if another allocator leads, or may lead soon.

    Attributes:
        outcomes: reads what has become of Bindings.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        pods: KnownPods,
        engine: DecisionEngine,
        barrier: Barrier,
        stamper: Stamper,
        monotonic: Callable[[], float],
        outcome: Outcome,
        lease: Callable[[float], BindingLease] = BindingLease,
    ) -> None:
        self._client = client
        self._pods = pods
        self._ledger = engine.ledger
        self._engine = engine
        self._barrier = barrier
        self._stamper = stamper
        self._monotonic = monotonic
        self._outcome = outcome
        self._lease = lease
        self._running: dict[str, asyncio.Task[Assignment]] = {}
        self._callers: Counter[str] = Counter()
        # Done when the Binding is not held any more, and it is its turn to be posted.
        self._posting: dict[str, asyncio.Future[None]] = {}
        self.outcomes = BindingOutcomes(client, engine.cluster, engine.ledger)
        self._slots = asyncio.Semaphore(AT_ONCE)
        barrier.post = self._bind_unasked

    async def bind(
        self,
        ref: PodRef,
        node: str,
        *,
        timeout_s: float = ANSWER_TIMEOUT_S,
        hold_s: float | None = None,
        is_repeated: bool = False,
    ) -> Assignment:
        """Bind a pod to a node with its chips written on it; idempotent.

        Args:
            ref: the pod.
            node: the node.
            timeout_s: how long the caller waits for the API server; the Binding continues after that.
            hold_s: how long the caller waits until the gang of the pod can start; None if it decides itself when to
                give up.
            is_repeated: as for ``Barrier.passed``.

        Raises:
            Refusal: the pod does not fit there, or is bound to another node, or its gang can't start; or it does not
                exist, or names a scheduler that is not served.
            ApiError: the API server refuses.
            Unreachable: the API server did not answer in time; the pod may be bound nevertheless.
        """
        if not ref.uid:
            raise Refusal(Reason.INVALID_REQUEST, f"pod {ref.key}: the uid is missing; other pods may reuse a name")
        task = self._running.get(ref.uid) or self._start(ref, node, is_repeated=is_repeated)
        self._callers[ref.uid] += 1
        try:
            first: tuple[asyncio.Future[Any], ...] = task, self._posting[ref.uid]
            await asyncio.sleep(0)  # the Binding of a pod alone is posted at once, without a wait for its turn
            if not any(future.done() for future in first):
                done, _ = await asyncio.wait(first, timeout=hold_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    self._barrier.withdraw(ref.uid)
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            self._callers[ref.uid] -= 1
            if not self._callers[ref.uid]:
                del self._callers[ref.uid]
                self._barrier.leave(ref.uid)
        if not task.done():
            raise Unreachable(
                f"pod {ref.key}: the API server has not answered within {timeout_s:.3g} s; the Binding continues"
            )
        bound = task.result()
        if bound.node != node:
            raise bound_elsewhere(ref.key, bound.node)
        return bound

    async def drain(self) -> None:
        """Wait for the Bindings in flight."""
        while self._running:
            await asyncio.wait(set(self._running.values()))

    def choose(self, pod: Pod, candidates: list[str] | None) -> str:
        """Choose the node of a pod that is bound next, and reserve the chips there.

        Raises:
            Refusal: the pod fits nowhere.
        """
        bound = read_assignment(pod)
        return bound.node if bound is not None else self._engine.place(pod, candidates).node

    def _start(self, ref: PodRef, node: str, *, is_repeated: bool = False) -> "asyncio.Task[Assignment]":
        task = asyncio.create_task(self._attempt(ref, node, is_repeated=is_repeated), name=f"bind {ref.key}")
        self._running[ref.uid] = task
        self._posting[ref.uid] = asyncio.get_running_loop().create_future()
        task.add_done_callback(lambda done: self._on_end(ref.uid, done))
        return task

    def _bind_unasked(self, reservation: Reservation) -> None:
        """Bind a pod for whose Binding its scheduler does not wait any more."""
        if reservation.uid not in self._running:
            namespace, _, name = reservation.pod.partition("/")
            self._start(PodRef(namespace, name, reservation.uid), reservation.node)

    def _on_end(self, uid: str, task: "asyncio.Task[Assignment]") -> None:
        del self._running[uid], self._posting[uid]
        if not task.cancelled():
            task.exception()  # no caller may be left; _attempt has logged the outcome

    async def _attempt(self, ref: PodRef, node: str, *, is_repeated: bool) -> Assignment:
        started_s = self._monotonic()
        result: Assignment | AscendError | None = None
        try:
            result = await self._bind(ref, node, is_repeated=is_repeated)
        except AscendError as error:
            result = error
            raise
        finally:
            if result is not None:
                self._outcome(ref, node, result, self._monotonic() - started_s)
        return result

    async def _bind(self, ref: PodRef, node: str, *, is_repeated: bool) -> Assignment:
        held = self._ledger.get(ref.uid)
        if held is not None and held.stage is Stage.ASSUMED:
            if held.pod != ref.key:
                raise unknown(ref)
            return Assignment(held.node, held.grant, repeated=True)
        if self._pods.is_served_plain(ref):
            return await self._bind_plain(ref, node)
        pod = self._pods.find_seen(ref) or await self._pods.read(ref)
        self._pods.require_served(pod)
        if not pod.requests_chips:
            if pod.spec.node_name:
                return Assignment(pod.spec.node_name, Grant((), None), repeated=True)
            return await self._bind_plain(ref, node)
        bound = read_assignment(pod)
        if bound is not None:
            return replace(bound, repeated=True)
        reservation = await self._reserve(pod, node, is_repeated=is_repeated)
        try:
            return await self._post(ref, reservation, self._stamper.annotations(pod, reservation))
        finally:
            held = self._ledger.get(ref.uid)
            if held is not None and held.stage is Stage.BINDING:
                # The outcome is unknown: reserved for a while, in case the Binding was made.
                self._ledger.advance(ref.uid, Stage.DOUBTFUL)

    async def _reserve(self, pod: Pod, node: str, *, is_repeated: bool) -> Reservation:
        """The reservation to carry out; for a pod of a gang, once the gang can start."""
        reservation = self._engine.place_on(pod, node)
        gang = self._engine.gang_of(pod)
        if gang is None:
            self._posting[pod.uid].set_result(None)
        elif reservation.stage in {Stage.PLANNED, Stage.RESERVED, Stage.HELD}:
            await self._barrier.wait_for_gang(pod, gang, is_repeated=is_repeated)
        return self._stamper.stamp(reservation, Stage.BINDING, renew=True)

    async def _bind_plain(self, ref: PodRef, node: str) -> Assignment:
        """Bind a pod that requests no chips: it names the resource with 0, or all pods are bound by the extender."""
        try:
            async with self._slots:
                await self._client.bind(
                    namespace=ref.namespace,
                    name=ref.name,
                    uid=ref.uid,
                    node=node,
                    annotations={},
                    timeout_s=POST_TIMEOUT_S,
                )
        except Conflict:
            # It is bound already; or there is another pod of that name, and the API server's sentence has its uid.
            pod = await self.outcomes.read(ref)
            if not pod.spec.node_name:
                raise
            return Assignment(pod.spec.node_name, Grant((), None), repeated=True)
        return Assignment(node, Grant((), None))

    async def _post(self, ref: PodRef, reservation: Reservation, annotations: dict[str, str]) -> Assignment:
        try:
            async with self._slots:
                if not self._posting[ref.uid].done():
                    self._posting[ref.uid].set_result(None)
                lease = self._lease(POST_TIMEOUT_S)
                await self._client.bind(
                    namespace=ref.namespace,
                    name=ref.name,
                    uid=ref.uid,
                    node=reservation.node,
                    annotations={**annotations, **lease.annotations},
                    timeout_s=lease.timeout_s,
                )
        except Refusal:
            self._ledger.withdraw(ref.uid)
            raise
        except (ApiError, Unreachable) as error:
            is_refused = isinstance(error, ApiError) and error.status < HTTPStatus.INTERNAL_SERVER_ERROR
            bound = None
            if not is_refused or isinstance(error, Conflict):
                # The Binding may have been made. A conflict means another pod of that name, or one that is bound
                # already: perhaps by an earlier attempt whose answer was lost.
                bound = await self.outcomes.settle(ref, reservation.node)
            if bound is not None:
                return bound
            if is_refused:
                self._ledger.withdraw(ref.uid)
            raise
        self._ledger.advance(ref.uid, Stage.ASSUMED)
        return Assignment(reservation.node, reservation.grant)
