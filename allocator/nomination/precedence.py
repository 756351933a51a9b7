"""Which nominations give way to a pod of higher priority; no I/O."""

from collections import Counter
from collections.abc import Collection, Iterable

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod


def in_the_way(
    pod: Pod,
    names: Collection[str] | None,
    nominated: Iterable[str],
    *,
    cluster: Cluster,
    ledger: Ledger,
    engine: DecisionEngine,
) -> list[str]:
    """The nominated pods of lower priority without whose reservations a pod fits that was refused.

    Args:
        pod: the pod.
        names: names of the nodes it may be placed on; None for every node.
        nominated: the uids of nominated pods that the scheduler has not filtered yet.
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        engine: decides.

    Returns:
        Their uids; empty if the pod would not fit without them either.
    """

    def lower(uid: str) -> Reservation | None:
        seen, held = cluster.pods.get(uid), ledger.get(uid)
        is_lower = seen is not None and seen.priority < pod.priority
        return held if is_lower and held is not None and held.stage is Stage.RESERVED and not held.plan else None

    nodes = {uid: held.node for uid in nominated if (held := lower(uid)) is not None}
    if not nodes:
        return []
    try:
        fitting = engine.fitting_without(pod, names, nodes)
    except Refusal:
        return []
    if not fitting:
        return []
    if engine.is_of_gang(pod):
        return list(nodes)
    # The node on which the fewest of them give way.
    numbers = Counter(nodes.values())
    best = min(fitting, key=lambda name: (numbers[name], name))
    return [uid for uid, node in nodes.items() if node == best]
