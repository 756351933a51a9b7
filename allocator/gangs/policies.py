"""The table of placement policies: which one places the pods of a job."""

from collections.abc import Callable
from typing import Final, NamedTuple

from allocator.gangs.network_topology import HyperNodeAffinity, read_topology
from allocator.gangs.packing import PACKING
from allocator.gangs.policy import Policy
from allocator.gangs.super_pods import SuperPods
from allocator.gangs.switch_affinity import SwitchAffinity
from allocator.rules.asked import Asked
from allocator.state.cluster import Cluster
from allocator.state.switches import asks_for_switches
from allocator.superpods.demand import read_demand
from allocator.switches.demand import read_switch_demand
from ascend.kube.objects import Pod


class PolicyRow(NamedTuple):
    """A policy for jobs that ask for it.

    Attributes:
        read: what a job asks of the policy; None if it asks nothing of that. Raises a Refusal if that is invalid.
        revision: changes whenever the policy may see something else (``Policy.sees``), for a pod with the settings of
            its job: a gang that does not fit is planned again only then, or once what nodes have left changes.
    """

    read: Callable[[Asked], Policy | None]
    revision: Callable[[Pod, Cluster], int] = lambda _stated, _cluster: 0


def _super_pods(asked: Asked) -> SuperPods | None:
    demand = read_demand(asked)
    return SuperPods(demand) if demand is not None else None


def _switches(asked: Asked) -> SwitchAffinity | None:
    demand = read_switch_demand(asked)
    return SwitchAffinity(demand) if demand is not None else None


def _use_of_switches(stated: Pod, cluster: Cluster) -> int:
    return cluster.switches.revision if asks_for_switches(stated) else 0


def _network(asked: Asked) -> HyperNodeAffinity | None:
    demand = read_topology(asked)
    return HyperNodeAffinity(demand) if demand is not None else None


POLICIES: Final = [PolicyRow(_network), PolicyRow(_switches, _use_of_switches), PolicyRow(_super_pods)]
"""The first policy that is asked for applies."""


def policy_of(asked: Asked) -> Policy:
    """The policy of a job.

    Raises:
        Refusal: what the job asks of its policy is invalid.
    """
    for row in POLICIES:
        if (policy := row.read(asked)) is not None:
            return policy
    return PACKING


def revision(stated: Pod, cluster: Cluster) -> int:
    """Changes whenever the policy of a pod's job may see something else; the pod has the settings of the job."""
    return sum(row.revision(stated, cluster) for row in POLICIES)
