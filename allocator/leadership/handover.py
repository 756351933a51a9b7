"""Hands the Bindings that may still be made over to the next leader, in a note on the lease.

When a leader ends in peace, its own Bindings have ended. But others may still carry out what it promised: a Binding
with injected chips may be held up in the API server, by a slow validating webhook for a minute, and a caller of
``Allocate`` posts its Binding itself. The next leader lists the pods without them, and would give their chips away. To
wait for them would take longer than Kubernetes gives a pod to end. So the next leader reserves their chips, as those of
a Binding of unknown outcome.
"""

import functools
import operator
from typing import Final

import msgspec

from allocator.rules.cores import fits_beside
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.cores import parse_cut
from ascend.errors import UNREADABLE, InvalidValue
from ascend.takes import Take
from ascend.vnpus import parse_vnpu

MAX_NOTE: Final = 200_000
"""The longest note, in bytes: the annotations of an object may have 256 KiB."""

_PROMISED: Final = frozenset({Stage.BINDING, Stage.ASSUMED, Stage.DOUBTFUL})


class OpenBinding(msgspec.Struct, frozen=True, array_like=True):
    """A Binding that may still be made.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        node: the node of the chips.
        chips: in selection order.
        predicate_time: what is written on the pod with them, Unix nanoseconds.
        vnpu: the name of the vNPU instead of chips; empty if there is none.
        cut: the name of the vNPU to be cut instead of chips; empty if there is none.
        cores: the AI cores, if these were requested; else 0.
    """

    uid: str
    pod: str
    node: str
    chips: tuple[int, ...]
    predicate_time: int | None = None
    vnpu: str = ""
    cut: str = ""
    cores: int = 0

    @property
    def take(self) -> Take:
        """What is promised.

        Raises:
            InvalidValue: the name of the vNPU is malformed.
        """
        if self.cut:
            return Take.part(parse_cut(self.cut))
        return Take.part(parse_vnpu(self.vnpu)) if self.vnpu else Take.whole(self.chips, cores=self.cores)

    @classmethod
    def of(cls, held: Reservation) -> "OpenBinding":
        """The Binding that a reservation stands for."""
        take = held.take
        vnpu = take.vnpu.name if take.vnpu is not None else ""
        cut = take.cut.name if take.cut is not None else ""
        return cls(held.uid, held.pod, held.node, take.chips, held.predicate_time, vnpu, cut, take.cores)


class HandOver:
    """Writes and reads the note.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger

    def write(self) -> str | None:
        """The note with all Bindings that may still be made; empty without any, None if they are too many."""
        found = [OpenBinding.of(reservation) for reservation in self._ledger if _is_promised(reservation)]
        note = msgspec.json.encode(found).decode() if found else ""
        return note if len(note) <= MAX_NOTE else None

    def read(self, note: str) -> list[Reservation]:
        """Reserve the chips of the Bindings in a note whose pods are not bound; call it when the pods are listed.

        Returns:
            The reservations.

        Raises:
            ValueError: it can't be decoded.
        """
        try:
            found = msgspec.json.decode(note, type=list[OpenBinding]) if note else []
            takes = {binding.uid: binding.take for binding in found}
        except (InvalidValue, *UNREADABLE) as error:
            raise ValueError(str(error)) from error
        return [
            self._ledger.reserve(
                uid=binding.uid,
                pod=binding.pod,
                node=binding.node,
                take=takes[binding.uid],
                stage=Stage.DOUBTFUL,
                predicate_time=binding.predicate_time,
            )
            for binding in found
            if self._may_be_made(binding)
        ]

    def _may_be_made(self, binding: OpenBinding) -> bool:
        pod, record = self._cluster.pods.get(binding.uid), self._cluster.nodes.get(binding.node)
        if pod is None or not pod.waits_for_chips or record is None:
            return False
        # The note of an earlier leader: other pods have the chips by now, since it has become too late for this one.
        others = [take for uid, take in self._ledger.on(binding.node).items() if uid != binding.uid]
        take = binding.take
        if take.vnpu is not None:
            held = {vnpu.vdev_id for holding in record.holdings.values() for vnpu in holding.vnpus}
            held |= {other.vnpu.vdev_id for other in others if other.vnpu is not None}
            return take.vnpu.vdev_id not in held
        whole = record.held | functools.reduce(operator.or_, (other.chip_set for other in others), 0)
        if take.cut is not None:
            held_cuts = [cut for holding in record.holdings.values() for cut in holding.cuts]
            cuts = [*held_cuts, *(other.cut for other in others if other.cut is not None)]
            return not take.occupied & whole and fits_beside(take.cut, cuts)
        parts = (*(holding.occupied for holding in record.holdings.values()), *(other.occupied for other in others))
        return not take.chip_set & functools.reduce(operator.or_, parts, whole)


def _is_promised(held: Reservation) -> bool:
    """Whether chips are reserved for a Binding that may be posted already, or that a caller posts."""
    return held.stage in _PROMISED or (held.stage is Stage.RESERVED and held.predicate_time is not None)
