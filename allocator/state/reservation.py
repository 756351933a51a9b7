"""A reservation: chips kept for a pod, and how far its Binding has come.

A reservation is made TENTATIVE, and expires unless it is used in time: nothing tells us when a scheduler drops a pod.
It is BINDING while the Binding is in flight and BOUND once that is posted; from then on it ends when the watch (or,
when that is silent for long, a look at the pod) shows the pod on its node, so that the pod itself holds the chips, or
finished, or gone. Where the Binding's outcome is not known it is DOUBTFUL: the API server may still make it, so the
chips are kept for this pod on this node, and for nothing else, until the watch shows what became of it or, after as
long as a request can take there, a look at the pod does. Time alone proves nothing: the watch may be behind.

PLANNED is a seat of a gang that no pod has taken yet (``allocator/state/ledger.py``): peers may change seats, and all
may be given up together. TENTATIVE is one whose chips somebody was told who makes the Binding himself: it is that pod's
alone, and when its time is up without a Binding the pod sits down again.
"""

from enum import StrEnum

import msgspec

from ascend.annotations import Grant
from ascend.chips import ChipSet, chip_set


class Stage(StrEnum):
    """How far a reservation has come."""

    PLANNED = "planned"
    TENTATIVE = "tentative"
    BINDING = "binding"
    BOUND = "bound"
    DOUBTFUL = "doubtful"


class Reservation(msgspec.Struct, frozen=True):
    """Chips kept for a pod.

    Attributes:
        uid: the pod's.
        pod: ``namespace/name``.
        node: where the chips are.
        chips: in selection order.
        stage: how far it has come.
        since_s: when it entered the stage, on the ledger's clock.
        predicate_time: what is or will be written on the pod, Unix nanoseconds; None before that is known.
        plan: the name of the plan it is a seat of; empty for a pod placed alone.
    """

    uid: str
    pod: str
    node: str
    chips: tuple[int, ...]
    stage: Stage
    since_s: float
    predicate_time: int | None = None
    plan: str = ""

    @property
    def taken(self) -> ChipSet:
        """The chips as a set."""
        return chip_set(self.chips)

    @property
    def is_empty(self) -> bool:
        """A seat whose pod is gone: it waits for a successor."""
        return bool(self.plan) and self.uid.startswith(f"{self.plan}#")

    @property
    def grant(self) -> Grant:
        """What is written on the pod."""
        return Grant(self.chips, self.predicate_time)


class Seat(msgspec.Struct, frozen=True):
    """A place of a plan.

    Attributes:
        uid: of the pod it is for.
        pod: ``namespace/name``.
        node: where the chips are.
        chips: in selection order.
    """

    uid: str
    pod: str
    node: str
    chips: tuple[int, ...]
