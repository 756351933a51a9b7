"""Which pod an admission call is about, and whether the pod may have the chips of its annotation.

The kubelet's calls carry no identity (docs/spec/kubelet.md#allocation). The rule (docs/architecture.md#decisions): the
kubelet's own list decides, because it admits one pod at a time, and lists a pod right before it admits it. So the pod
under admission is the one that came last to the list, of those with a container that requests as many chips as the
call: those before it are done, even if they still look pending because the kubelet rejected them without calling us and
the API server does not know yet. Our own watch does not decide, not even if it shows a single such pod: it can be late.

Only if the kubelet can't be asked, the watch decides: for a pod that has some of its chips already, because the calls
for its containers follow each other directly; otherwise by the documented rule, the smallest predicate-time
(docs/spec/affinity-rules.md#which-pod-is-served). The kubelet's ledger contradicts a wrong guess later.

Pods without a usable annotation are candidates too: without them, another pod's chips would be given for their call.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ascend.annotations import CLAIMED, Grant
from ascend.chips import ChipSet, chip_ids
from ascend.errors import InvalidValue, Refusal
from ascend.reasons import Reason
from ascend.slices import ContainerRequest
from device_plugin.device_types import DeviceType
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import ContainerPart
from device_plugin.ledger.node_pods import NOT_PLACED, NodePod, NodePods


@dataclass(frozen=True, slots=True)
class AdmissionCandidate:
    """A container that an admission call can be about.

    Attributes:
        pod: its pod.
        ask: what the container requests.
        begun: whether earlier containers of the pod were given chips.
    """

    pod: NodePod
    ask: ContainerRequest
    begun: bool


def candidates(
    pods: Iterable[NodePod],
    count: int,
    granted: Mapping[str, Collection[str]],
    *,
    skips: bool = False,
) -> list[AdmissionCandidate]:
    """Return the containers that an admission call for ``count`` chips can be about, in the pods' order of arrival.

    Whether a container was given chips is decided by our ledger and the kubelet's, never by annotations, which can be
    forged.

    Args:
        pods: of the node.
        count: how many chips the kubelet requests.
        granted: the names of the containers that were given chips, by uid of their pod.
        skips: whether a pod can have more containers with chips than known here, as after a restart.
    """
    found = []
    for pod in pods:
        if pod.live and not pod.past_admission and not pod.is_mirror:
            names = granted.get(pod.uid, ())
            done = max(
                (number for number, ask in enumerate(pod.container_requests, 1) if ask.container in names), default=0
            )
            still = pod.container_requests[done:] if skips else pod.container_requests[done : done + 1]
            ask = next((ask for ask in still if ask.count == count), None)
            if ask is not None:
                found.append(AdmissionCandidate(pod, ask, begun=done > 0))
    return sorted(found, key=lambda candidate: candidate.pod.order)


@dataclass(frozen=True, slots=True, order=True)
class Listing:
    """When a pod came to the kubelet's list.

    Attributes:
        reading: the first reading of the list that had it.
        version: the resourceVersion of the kubelet's copy, 0 if it is not a number: of several pods in one reading, the
            kubelet has got the one with the greatest last. It updates no copy while it admits a pod.
    """

    reading: int
    version: int


def newest(listed: Iterable[AdmissionCandidate], listings: Mapping[str, Listing]) -> AdmissionCandidate:
    """Return the candidate that came last to the kubelet's list.

    Args:
        listed: the candidates in the list.
        listings: when pods came to the list, by uid.
    """
    return max(listed, key=lambda candidate: (listings[candidate.pod.uid], candidate.pod.order))


def oldest_decision(waiting: Iterable[AdmissionCandidate]) -> AdmissionCandidate:
    """Return the candidate that has begun, else the one with the smallest predicate-time, else the first to come."""
    return min(waiting, key=lambda candidate: (not candidate.begun, _decided_at(candidate), candidate.pod.order))


def _decided_at(candidate: AdmissionCandidate) -> int:
    time = candidate.pod.grant.predicate_time if candidate.pod.grant is not None else None
    return time if time is not None else CLAIMED


def chips_for(
    pod: NodePod, snapshot: Snapshot, handed: Mapping[str, ChipSet], pods: Iterable[NodePod], own: ChipSet = 0
) -> tuple[int, ...]:
    """Return the chips of a pod, in the order written on it; its containers get parts of them.

    Args:
        pod: the pod under admission.
        snapshot: the node's chips.
        handed: what other live pods were given: ``namespace/name`` to chips.
        pods: all pods of the node; one that came earlier and waits for its chips holds them too, and so does one that
            runs with a claim, whatever the kubelet's ledger has: that can be lost.
        own: what this pod was given already; a fault that bars new use does not bar it.

    Raises:
        Refusal: the pod must not get them; the kubelet shows the sentence in the pod's status.
    """
    grant = grant_of(pod)
    wanted = grant.chip_set
    check_usable(pod.device_type, wanted, snapshot, own=own)
    holders = dict(handed)
    for other in pods:
        if not (other.count and other.live) or other.is_mirror or other.uid == pod.uid:
            continue
        waits = not other.past_admission and other.order < pod.order
        if waits or (other.past_admission and other.claimed):
            holders.setdefault(other.key, other.held)
    for holder, chips in holders.items():
        if taken := wanted & chips:
            raise Refusal(Reason.CHIP_HELD, f"{_named(pod.device_type, taken, 'is', 'are')} held by pod {holder}")
    return grant.chips


def grant_of(pod: NodePod) -> Grant:
    """Return what the allocator wrote on a pod.

    Raises:
        Refusal: nothing, or nothing that the pod may have.
    """
    if pod.problem is not None:
        raise Refusal(*pod.problem)
    if pod.grant is None:
        raise Refusal(Reason.NOT_PLACED, f"annotation {pod.device_type.resource} is missing: {NOT_PLACED}")
    return pod.grant


def check_usable(device_type: DeviceType, wanted: ChipSet, snapshot: Snapshot, *, own: ChipSet) -> None:
    """Check that the node has devices, and that no fault or reset keeps a pod from them.

    Args:
        device_type: the type of the devices.
        wanted: the devices.
        snapshot: the node's devices.
        own: what the pod was given already; a fault that bars new use does not bar it.

    Raises:
        Refusal: one of them can't be used.
    """
    if unknown := wanted & ~snapshot.all_chips:
        raise Refusal(Reason.UNKNOWN_CHIP, f"this node has no {device_type.join(chip_ids(unknown))}")
    if resetting := wanted & snapshot.recovering:
        raise Refusal(Reason.CHIP_RESETTING, f"{_named(device_type, resetting, 'is', 'are')} being reset")
    if unhealthy := wanted & ~snapshot.healthy:
        raise Refusal(Reason.CHIP_UNHEALTHY, f"{_named(device_type, unhealthy, 'is', 'are')} unhealthy")
    if barred := wanted & snapshot.closed_to_new_pods & ~own:
        raise Refusal(Reason.CHIP_UNHEALTHY, f"{_named(device_type, barred, 'has', 'have')} a fault that bars new use")


def _named(device_type: DeviceType, chips: ChipSet, singular: str, plural: str) -> str:
    return f"{device_type.join(chip_ids(chips))} {singular if chips.bit_count() == 1 else plural}"


def known_ids(names: Iterable[str], device_type: DeviceType) -> set[int]:
    """Return the numbers of the device ids that are names of devices of a type."""
    ids = set()
    for name in names:
        try:
            ids.add(device_type.parse(name))
        except InvalidValue:
            continue
    return ids


class UnofferedChips:
    """The chips of a pod that the kubelet did not offer in its last GetPreferredAllocation call.

    After a restart the kubelet counts the chips of ended pods as used until it has admitted the pods it found
    (docs/spec/kubelet.md#freed-devices). If a found pod got such a chip all the same, the kubelet's ledger would
    have another one for as long as the pod lives, and no other pod could use either of them. So the pod is refused: its
    controller creates a new one, which comes after the chip is freed.

    The pods that were known before the kubelet was sent our devices count as the pods it found, because it admits none
    before that. So a kubelet that withholds ids for another reason, such as a topology policy, does not cause endless
    refusals.

    Args:
        pods: the node's pods.
    """

    def __init__(self, pods: NodePods) -> None:
        self._pods = pods
        self._first_new = 0
        self._chips: frozenset[int] = frozenset()

    def begin(self) -> None:
        """Note that a kubelet, which may have just started, is about to be sent our devices."""
        self._first_new = self._pods.next_order
        self.note(())

    def note(self, chips: Iterable[int]) -> None:
        """Note the chips of the pod that the kubelet does not offer although our ledger has no holder for them."""
        self._chips = frozenset(chips)

    def check(self, pod: NodePod, part: ContainerPart) -> None:
        """Check that a pod from before the kubelet's start gets only chips that are offered.

        Raises:
            Refusal: the part has such chips, and the kubelet chose others.
        """
        missing = self._chips.intersection(part.chips).difference(part.kubelet_ids)
        if missing and pod.order < self._first_new:
            raise Refusal(
                Reason.CHIP_NOT_FREED,
                f"the kubelet does not offer {pod.device_type.join_sorted(missing)} yet: after a restart it frees the "
                f"{pod.device_type.nouns} of ended pods only once it has admitted the pods it found; a new pod can get "
                f"{'it' if len(missing) == 1 else 'them'}",
            )
