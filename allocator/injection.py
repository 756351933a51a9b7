"""Chips for Bindings that others make: chosen on the node they name, and put into them by the API server.

Whatever scheduler binds a pod, the API server shows us its Binding before carrying it out. What we add is written on
the pod in the same step, so it is as atomic as a Binding of our own (design, decision 1). Whether the Binding is then
made we are not told: another webhook may deny it, the pod may have gone. So the chips are kept as those of a Binding
of unknown outcome are (``Stage.DOUBTFUL``): until the watch shows the pod bound or gone, and otherwise for as long as
the API server may still be busy with the request. A repeated Binding to the same node gets the same chips; one to
another node is refused during that time.
"""

from collections.abc import Callable, Mapping

from allocator.bound import Bound, PodRef
from allocator.decide import DecisionEngine
from allocator.leader import Permit, unlimited
from allocator.stamp import Stamps
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod

READ_TIMEOUT_S = 2.0
"""For a pod that the view does not have yet; the API server waits 5 s for a webhook."""

ANSWER_S = 5.0


class Injector:
    """Chooses chips for Bindings.

    Args:
        client: the API server, asked for pods that the view does not have yet.
        cluster: what is seen.
        ledger: what is decided.
        engine: decides.
        stamps: decision times.
        permit: leave to have a Binding made; refuses where another allocator leads or may soon.
        inscribed: all that is written on a pod in its Binding.
        kept: told of pods whose chips are kept.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        engine: DecisionEngine,
        stamps: Stamps,
        inscribed: Callable[[Pod, Reservation], Mapping[str, str]],
        permit: Callable[[float], Permit] = unlimited,
        kept: Callable[[Pod, Bound], None] = lambda _pod, _bound: None,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._stamps = stamps
        self._inscribed = inscribed
        self._permit = permit
        self._kept = kept

    async def inject(self, ref: PodRef, node: str, *, dry_run: bool = False) -> Mapping[str, str]:
        """The annotations a Binding must carry; none for a pod that asks for no chips, or that can't be bound anyway.

        Args:
            ref: the pod; its uid may be empty, as in a Binding made by hand.
            node: where it is to be bound.
            dry_run: nothing will come of it, so nothing is kept.

        Raises:
            Refusal: it doesn't fit there, is about to be bound to another node, or makes no sense on any: a job has one
                vNPU, whoever binds its pods.
            ApiError: there is no such pod.
            Unreachable: the pod is not in the view and can't be read.
        """
        pod = await self._pod(ref)
        if pod.spec.node_name or not pod.is_live:
            # A pod that has a node, or has ended, the API server does not bind; it says so better than we can.
            return {}
        if not pod.asks_for_chips:
            self._engine.validate(pod)
            return {}
        if dry_run:
            for refusal in self._engine.filter(pod, [node]).refused.values():
                raise Refusal(refusal.reason, refusal.message)
            return {}
        permit = self._permit(ANSWER_S)
        reservation = self._keep(pod, node)
        return {**self._inscribed(pod, reservation), **permit.annotations}

    def _keep(self, pod: Pod, node: str) -> Reservation:
        reservation = self._engine.place(pod, [node])
        if reservation.stage in {Stage.BINDING, Stage.BOUND}:
            return reservation  # a Binding of our own: what becomes of it we know ourselves
        is_new = reservation.stage is not Stage.DOUBTFUL
        stamp = self._stamps.next() if reservation.predicate_time is None else None
        reservation = self._ledger.advance(pod.uid, Stage.DOUBTFUL, predicate_time=stamp) or reservation
        if is_new:
            self._kept(pod, Bound(node, reservation.grant))
        return reservation

    async def _pod(self, ref: PodRef) -> Pod:
        pod = self._cluster.pods.get(ref.uid)
        if pod is not None and pod.key == ref.key:
            return pod
        pod = await self._client.get(PODS, ref.name, ref.namespace, timeout_s=READ_TIMEOUT_S)
        if ref.uid and pod.uid != ref.uid:
            raise Refusal("PodGone", f"pod {ref.key} is another one now: its uid is {pod.uid}, not {ref.uid}")
        return self._cluster.pods.get(pod.uid, pod)
