"""The table of placement policies: which one places the pods of a job."""

from collections.abc import Callable
from typing import Final

from allocator.gangs.packing import PACKING
from allocator.gangs.policy import Policy
from allocator.gangs.super_pods import SuperPods
from allocator.gangs.switch_affinity import SwitchAffinity
from allocator.rules.asked import Asked
from allocator.superpods.demand import read_demand
from allocator.switches.demand import read_switch_demand


def _super_pods(asked: Asked) -> SuperPods | None:
    demand = read_demand(asked)
    return SuperPods(demand) if demand is not None else None


def _switches(asked: Asked) -> SwitchAffinity | None:
    demand = read_switch_demand(asked)
    return SwitchAffinity(demand) if demand is not None else None


POLICIES: Final[list[Callable[[Asked], Policy | None]]] = [_switches, _super_pods]
"""Each reads what a job asks of one policy; None if it asks nothing of that. The first one that is asked for applies.

Raises a Refusal if what the job asks is invalid.
"""


def policy_of(asked: Asked) -> Policy:
    """The policy of a job.

    Raises:
        Refusal: what the job asks of its policy is invalid.
    """
    for read in POLICIES:
        if (policy := read(asked)) is not None:
            return policy
    return PACKING
