"""Who is the kubelet asking for, and may that pod have the chips written on it?

The kubelet's calls carry no pod identity (spec/kubernetes.md §1.6). Design, decision 2: of the pods on this node that
ask for as many chips and were handed none yet, a single one is it; of several, the one the kubelet already lists; where
the kubelet can't be asked, the documented rule decides: the smallest predicate-time (seed 002, last step). It is also
asked about a single one after a pod of that size was deleted on its way in: it may be admitting that one still.

Pods without a usable annotation count as candidates too: leaving them out would take another pod's chips for theirs.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from ascend.annotations import ALLOCATED, CLAIMED
from ascend.chips import ChipSet, chip_ids, chip_name, join_names
from ascend.errors import Refusal
from device_plugin.rules.pod import NodePod
from device_plugin.rules.snapshot import Snapshot


def candidates(pods: Iterable[NodePod], count: int, granted: Collection[str]) -> list[NodePod]:
    """The pods an admission call for ``count`` chips can be about, in the order they came to the node.

    Whether a pod was handed chips is what we and the kubelet know (``granted`` uids, containers in its status), never
    what its annotations claim: those can be forged.
    """
    waiting = [
        pod for pod in pods if pod.count == count and pod.live and not pod.past_admission and pod.uid not in granted
    ]
    return sorted(waiting, key=lambda pod: pod.order)


def oldest_decision(pods: Sequence[NodePod]) -> NodePod:
    """Of several, the one with the smallest predicate-time; a missing one orders last; among equals the earliest."""

    def key(pod: NodePod) -> tuple[int, int]:
        time = pod.grant.predicate_time if pod.grant is not None else None
        return (time if time is not None else CLAIMED, pod.order)

    return min(pods, key=key)


def chips_for(
    pod: NodePod, snapshot: Snapshot, handed: Mapping[str, ChipSet], pods: Iterable[NodePod]
) -> tuple[int, ...]:
    """The chips to hand to a pod, in the order written on it.

    Args:
        pod: the pod under admission.
        snapshot: the node's chips.
        handed: what other live pods were handed: ``namespace/name`` to chips.
        pods: all pods of the node; one that came earlier and waits for its chips holds them too.

    Raises:
        Refusal: the pod must not get them; the sentence is shown to its owner by the kubelet.
    """
    if pod.problem is not None:
        raise Refusal("InvalidPod", pod.problem)
    if pod.grant is None:
        raise Refusal(
            "NotPlaced",
            f"annotation {ALLOCATED} is missing: the pod was not placed by the allocator (was its node set by hand?)",
        )
    wanted = pod.grant.chip_set
    if unknown := wanted & ~snapshot.all_chips:
        raise Refusal("UnknownChip", f"this node has no {join_names(chip_ids(unknown))}")
    if unhealthy := wanted & ~snapshot.healthy:
        raise Refusal("ChipUnhealthy", f"{join_names(chip_ids(unhealthy))} is unhealthy")
    holders = dict(handed)
    for other in pods:
        if other.count and other.live and other.order < pod.order and not other.past_admission:
            holders.setdefault(other.key, other.held)
    for holder, chips in holders.items():
        if taken := wanted & chips:
            raise Refusal("ChipHeld", f"{join_names(chip_ids(taken))} is held by pod {holder}")
    return pod.grant.chips


def steer(chips: Sequence[int], available: Iterable[str], must_include: Iterable[str]) -> list[str]:
    """The device ids to prefer: the pod's chips if the kubelet can still give all of them, else no preference."""
    names = [chip_name(chip_id) for chip_id in chips]
    if not set(names) <= {*available, *must_include} or not set(must_include) <= set(names):
        return []
    return names
