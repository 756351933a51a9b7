"""A reservation: chips reserved for a pod, and the stage of its Binding.

* PLANNED: a seat of a gang that no pod has taken yet (``allocator/state/ledger.py``). Peers may swap seats, and all
  seats of a plan may be released together.
* RESERVED: reserved for one pod. It expires unless it is used in time, since schedulers don't report that they drop a
  pod. The seat of a gang is RESERVED once its chips were given to a caller that posts the Binding itself; when it
  expires without a Binding, it is PLANNED again.
* HELD: the seat of a pod whose scheduler has asked to bind it, which means that the pod has passed its scheduler's
  filters there. The Binding is not posted before the other pods of the gang have come as far
  (``allocator/binding/barrier.py``). The seat can't be swapped; it is PLANNED again if the scheduler gives up.
* BINDING: the Binding is in flight.
* ASSUMED: the Binding was posted. The reservation ends when the watch (or, if that is silent for long, a read of the
  pod) shows the pod on its node, so that the pod itself holds the chips, or shows it finished or deleted.
* DOUBTFUL: the outcome of the Binding is unknown. The API server may still make it, so the chips stay reserved for this
  pod on this node until the watch shows what became of it or, after the longest time a request may take in the API
  server, a read of the pod does. Time alone is no proof: the watch may be late.
"""

from enum import StrEnum

import msgspec

from allocator.state.location import Level
from allocator.switches.rooms import SwitchState
from ascend.annotations import Grant
from ascend.takes import Take


class Stage(StrEnum):
    """The stage of a reservation."""

    PLANNED = "planned"
    RESERVED = "reserved"
    HELD = "held"
    BINDING = "binding"
    ASSUMED = "assumed"
    DOUBTFUL = "doubtful"


class InBlock(msgspec.Struct, frozen=True, gc=False):
    """The part of a seat in a job whose nodes form blocks.

    Attributes:
        block: the id of its block.
        rank: the rank within the job for which it was found.
        super_pod: the SuperPod in which its node has to be; negative for any.
    """

    block: int
    rank: int
    super_pod: int = -1

    @property
    def place(self) -> tuple[Level, int]:
        """Where its node has to be."""
        return Level.SUPER_POD, self.super_pod


class OnSwitch(msgspec.Struct, frozen=True, gc=False):
    """The part of a seat in a job with switch affinity.

    Attributes:
        switch: the number of the leaf switch below which its node has to be.
        rank: the rank within the job for which it was found.
        state: how the job uses the switch; None in version 1, which writes nothing of it.
    """

    switch: int
    rank: int
    state: SwitchState | None = None

    @property
    def block(self) -> int:
        """Pods below one switch may exchange their seats."""
        return self.switch

    @property
    def place(self) -> tuple[Level, int]:
        """Where its node has to be."""
        return Level.SWITCH, self.switch


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """What is reserved for a pod.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        node: the node.
        take: what is reserved.
        stage: its stage.
        since_s: when it entered the stage, on the ledger's clock.
        predicate_time: what is written on the pod, Unix nanoseconds; None before that is known.
        plan: the name of the plan to which the seat belongs; empty for a pod placed alone.
        part: its part in a job with blocks or with switch affinity; None in other jobs.
    """

    uid: str
    pod: str
    node: str
    take: Take
    stage: Stage
    since_s: float
    predicate_time: int | None = None
    plan: str = ""
    part: InBlock | OnSwitch | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it is the seat of a deleted pod, and waits for its successor."""
        return bool(self.plan) and self.uid.startswith(f"{self.plan}#")

    @property
    def grant(self) -> Grant:
        """What is written on the pod."""
        return Grant.of(self.take, self.predicate_time)


class Seat(msgspec.Struct, frozen=True, gc=False):
    """A place for one pod of a gang, found by a policy.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        node: the node.
        take: what the pod takes there.
        part: its part in a job with blocks or with switch affinity; None in other jobs.
    """

    uid: str
    pod: str
    node: str
    take: Take
    part: InBlock | OnSwitch | None = None
