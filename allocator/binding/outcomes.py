"""The outcome of Bindings whose answer was lost, or that have not been seen: the pod itself decides."""

from allocator.binding.binding import Assignment, PodRef, bound_elsewhere, read_assignment, recreated
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.errors import AscendError, NotFound, Refusal
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod


class BindingOutcomes:
    """Reads what has become of Bindings.

    Args:
        client: the API server.
        cluster: the pods as the watch shows them.
        ledger: the reservations.
    """

    def __init__(self, client: KubeClient, cluster: Cluster, ledger: Ledger) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger

    async def verify(self) -> None:
        """Read the pods whose Binding was made, or may have been, but has not been seen for a while.

        The watch may never show a pod that was created and deleted while it was being resumed; its chips must not stay
        reserved. And a Binding that was not made within the time limit of the API server will not be made.
        """
        for reservation in self._ledger.unconfirmed():
            namespace, _, name = reservation.pod.partition("/")
            try:
                bound = await self.settle(PodRef(namespace, name, reservation.uid), reservation.node)
            except AscendError:
                # Released if the pod is gone, kept if it can't be read: either way there is nothing to do now.
                continue
            if bound is not None or self._ledger.get(reservation.uid) is not reservation:
                continue
            if reservation.stage is Stage.DOUBTFUL:
                self._ledger.withdraw(reservation.uid)
            else:
                # Its caller confirmed too early, or wrongly: the Binding may still come.
                self._ledger.advance(reservation.uid, Stage.DOUBTFUL)

    async def settle(self, ref: PodRef, node: str) -> Assignment | None:
        """Read from the pod itself how it is bound; None if it is not.

        Raises:
            Refusal: it has finished, was recreated, or is bound to another node.
            ApiError: it is gone, or can't be read.
            Unreachable: it can't be read.
        """
        try:
            bound = read_assignment(await self.read(ref))
        except (NotFound, Refusal):
            self._ledger.vacate(ref.uid)
            raise
        if bound is None:
            return None
        seen = self._cluster.pods.get(ref.uid)
        if seen is None or not seen.spec.node_name:
            # Until the watch shows it, what is written on the pod is reserved, not what was chosen here.
            self._ledger.reserve(
                uid=ref.uid,
                pod=ref.key,
                node=bound.node,
                take=bound.grant.take,
                stage=Stage.ASSUMED,
                predicate_time=bound.grant.predicate_time,
            )
        if bound.node != node:
            raise bound_elsewhere(ref.key, bound.node)
        return bound

    async def read(self, ref: PodRef) -> Pod:
        """Read a pod.

        Raises:
            Refusal: it was recreated.
        """
        pod = await self._client.get(PODS, ref.name, ref.namespace)
        if pod.uid != ref.uid:
            raise recreated(ref)
        return pod
