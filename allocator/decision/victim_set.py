"""A scheduler's suggestion of victims on a node, and the answer: the pods that make room there."""

from typing import Final

import msgspec

from allocator.rules.victims import Cost, Occupant, cost

NEVER: Final = "Never"
"""The preemption policy of pods that don't preempt."""


class VictimSet(msgspec.Struct, frozen=True, gc=False):
    """The pods that make room on a node.

    Attributes:
        node: the node.
        victims: the most important first; empty if the pod fits without preemption.
        pdb_violations: the number of violated PodDisruptionBudgets, as counted by the scheduler.
    """

    node: str
    victims: tuple[Occupant, ...]
    pdb_violations: int = 0

    @property
    def order(self) -> tuple[int, Cost, str]:
        """The sort key, smaller is better; by name of the node among equals, so that the answer is deterministic."""
        return self.pdb_violations, cost(self.victims), self.node


class Suggestion(msgspec.Struct, frozen=True, gc=False):
    """The victims that a scheduler selected on a node by counting chips.

    Attributes:
        uids: the uids of the pods.
        pdb_violations: the number of PodDisruptionBudgets that this violates.
    """

    uids: tuple[str, ...] = ()
    pdb_violations: int = 0
