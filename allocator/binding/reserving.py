"""Reserves chips for callers that bind pods themselves."""

from dataclasses import replace

from allocator.binding.annotations import Stamper
from allocator.binding.binding import Assignment, read_assignment
from allocator.decision.engine import DecisionEngine
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Reserver:
    """Reserves chips, and keeps them until the pods of such callers are seen bound.

    Args:
        engine: chooses node and chips.
        stamper: makes predicate times and annotations.
    """

    def __init__(self, engine: DecisionEngine, stamper: Stamper) -> None:
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._stamper = stamper

    def reserve(self, pod: Pod, candidates: list[str] | None) -> Assignment:
        """Reserve node and chips for a caller that binds the pod itself, with the annotations of the answer.

        Raises:
            Refusal: the pod fits nowhere.
        """
        bound = read_assignment(pod)
        if bound is not None:
            return replace(bound, repeated=True)
        reservation = self._engine.place(pod, candidates)
        # A seat whose chips were given to a caller can't be swapped with a peer any more.
        stage = Stage.RESERVED if reservation.stage is Stage.PLANNED else reservation.stage
        if stage is not reservation.stage or reservation.predicate_time is None:
            reservation = self._stamper.stamp(reservation, stage)
        annotations = self._stamper.annotations(pod, reservation)
        return Assignment(reservation.node, reservation.grant, annotations=annotations)

    def confirm(self, uid: str, node: str) -> bool:
        """Keep the chips reserved for a pod that its caller has bound itself, until the pod is seen bound.

        Args:
            uid: the pod's uid.
            node: where it was bound; empty for the node of its reservation.

        Returns:
            Whether the pod has been seen bound already.

        Raises:
            Refusal: nothing is reserved for the pod there; another pod may have its chips by now.
        """
        seen = self._cluster.pods.get(uid)
        if seen is not None and seen.spec.node_name and node in {"", seen.spec.node_name}:
            return True
        held = self._ledger.get(uid)
        if held is None or node not in {"", held.node}:
            where = f" on node {node}" if node else ""
            raise Refusal(Reason.NOT_RESERVED, f"nothing is reserved for the pod with uid {uid!r}{where}")
        if held.stage in {Stage.RESERVED, Stage.PLANNED, Stage.DOUBTFUL}:
            self._ledger.advance(uid, Stage.ASSUMED)
        return False
