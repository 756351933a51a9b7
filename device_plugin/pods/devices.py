"""What differs between the types of devices that pods get: whole chips, vNPUs of a size, AI cores.

The rest is the same for all: the kubelet's calls are matched with pods (``admission_matcher``), and the plugin's ledger
follows the kubelet's (``reconciler``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.slices import choose
from device_plugin.device_types import CORES, DeviceType
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.admission import AdmissionCandidate, chips_for
from device_plugin.ledger.adoption import adopt, believe, has_own_ids, is_as_requested
from device_plugin.ledger.allocations import Allocation, ContainerPart, DeviceLedger
from device_plugin.ledger.chip_choice import counted_for, substitute_ids
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.container_edits import ContainerEdits

Held: TypeAlias = Mapping[str, tuple[int, ...]]
"""The device ids that the kubelet's ledger has for a pod, by container."""

Inject: TypeAlias = Callable[[tuple[int, ...], DeviceType], ContainerEdits]
"""Returns what a container with devices of a type gets, or raises Refusal."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to an Allocate call.

    Attributes:
        allocation: everything the pod was given so far.
        part: the chips of this container.
        edits: what the kubelet adds to the container.
    """

    allocation: Allocation
    part: ContainerPart
    edits: ContainerEdits

    @property
    def matches_kubelet(self) -> bool:
        """Whether the kubelet's ledger has the same chips for the container; AI cores say nothing of chips."""
        return self.allocation.device_type == CORES or self.part.matches_kubelet


class Preference(NamedTuple):
    """The answer to a GetPreferredAllocation call.

    Attributes:
        ids: the device ids; None if the kubelet can't allocate what the pod gets.
        unoffered: the chips of the pod that the kubelet does not offer although our ledger has no holder for them.
    """

    ids: tuple[int, ...] | None
    unoffered: Collection[int] = ()


class Devices(Protocol):
    """One type of devices.

    Attributes:
        must_be_settled: whether the kubelet's ledger is read again and again until it leaves nothing unexplained,
            because what no pod has is given back.
    """

    must_be_settled: bool

    @property
    def ledger(self) -> DeviceLedger:
        """What pods have of them."""

    # For the kubelet's calls.

    async def check(self, pod: NodePod, snapshot: Snapshot) -> tuple[int, ...]:
        """Return the chips that are written on a pod under admission, if it may have them.

        Raises:
            Refusal: it may not; the kubelet shows the sentence in the pod's status.
        """

    def prefer(
        self,
        candidate: AdmissionCandidate,
        chips: Sequence[int],
        snapshot: Snapshot,
        *,
        offered: Collection[int],
        included: Collection[int],
    ) -> Preference:
        """Return the device ids that the kubelet should prefer for a container.

        Args:
            candidate: the container.
            chips: those of its pod.
            snapshot: the node's devices; for AI cores its chips.
            offered: the device ids that the kubelet can allocate.
            included: those of them that it takes in any case.
        """

    async def realize(
        self, candidate: AdmissionCandidate, chips: tuple[int, ...], kubelet_ids: tuple[int, ...], until_s: float
    ) -> Answer:
        """Give a container its part of the pod's devices; the ledger does not change.

        Args:
            candidate: the container.
            chips: those of its pod, as checked.
            kubelet_ids: the ids the kubelet chose.
            until_s: when the driver's time is over, on the loop's clock.

        Raises:
            Refusal: it gets none; the sentence is for the pod's owner.
        """

    def edits(self, allocation: Allocation, part: ContainerPart) -> ContainerEdits:
        """Return the edits of the container for its part of the devices, or raise Refusal."""

    # For the plugin's ledger.

    async def look(self) -> None:
        """Read the list of devices, before the devices of pods are judged."""

    def compare(self, ledger: PodResources, newer: Collection[int]) -> None:
        """Follow the kubelet's pod resources, and forget the ended pods that hold no device any more.

        Args:
            ledger: the kubelet's.
            newer: the device ids of calls that were answered while it was read.
        """

    def is_its_own(self, pod: NodePod, held: Held, *, admitted: bool, is_known: bool) -> bool:
        """Return whether an entry of the kubelet's ledger belongs to this pod, not to an earlier pod of its name.

        Args:
            pod: the pod.
            held: what the entry has.
            admitted: whether the watch had shown this very pod as admitted before the ledger was read.
            is_known: whether the kubelet knew this very pod before the ledger was read.
        """

    def adopt(self, pod: NodePod, held: Held, *, admitted: bool) -> Allocation | None:
        """Return the allocation that explains an entry of the kubelet's ledger; None if what the pod has is unknown."""

    def believe(self, pod: NodePod) -> Allocation | None:
        """Return the allocation that a pod's claim describes; None if that can't be true."""


class ChipDevices:
    """Whole chips, or the vNPUs of a size: the kubelet's ids name the devices, which are there before pods are.

    Args:
        ledger: what pods have of them.
        inject: returns what a container with some of them gets.
    """

    must_be_settled = False

    def __init__(self, ledger: DeviceLedger, inject: Inject) -> None:
        self.ledger = ledger
        self._device_type = ledger.device_type
        self._inject = inject

    async def check(self, pod: NodePod, snapshot: Snapshot) -> tuple[int, ...]:
        """Return the chips that are written on a pod, if it may have them; see ``chips_for``."""
        known = self.ledger.allocations.get(pod.uid)
        others = {
            allocation.pod: allocation.chip_set for allocation in self.ledger.allocations if allocation.uid != pod.uid
        }
        return chips_for(pod, snapshot, others, self.ledger.pods, own=known.chip_set if known is not None else 0)

    def prefer(
        self,
        candidate: AdmissionCandidate,
        chips: Sequence[int],
        snapshot: Snapshot,  # noqa: ARG002 - the ids name the chips
        *,
        offered: Collection[int],
        included: Collection[int],
    ) -> Preference:
        """Return the ids of the container's own chips, or of others that stand in for them; see ``Devices``."""
        ask, requests, kept = candidate.ask, candidate.pod.container_requests, self._reserved_chips(candidate.pod)
        ids = choose(ask, requests, chips, kept=kept, among=offered, must_include=included)
        if ids is not None:
            return Preference(ids)
        own = choose(ask, requests, chips, kept=kept, must_include=included)
        if own is None:
            return Preference(None)
        others = [allocation for allocation in self.ledger.allocations if allocation.uid != candidate.pod.uid]
        # A vNPU has its own id always: who reads the kubelet's ledger without our claims relies on that.
        ids = substitute_ids(own, offered, others) if not self._device_type.suffix else None
        return Preference(ids, {*own} - {*offered} - counted_for(others))

    async def realize(
        self,
        candidate: AdmissionCandidate,
        chips: tuple[int, ...],
        kubelet_ids: tuple[int, ...],
        until_s: float,  # noqa: ARG002 - it takes no time
    ) -> Answer:
        """Give a container its part of its pod's chips; see ``Devices``."""
        pod = candidate.pod
        part = ContainerPart(
            candidate.ask.container, candidate.ask.keeps, self._slice(candidate, chips, kubelet_ids), kubelet_ids
        )
        known = self.ledger.allocations.get(pod.uid)
        if known is not None:
            allocation = known.plus(part)
        else:
            allocation = Allocation.of_parts(pod.uid, pod.key, chips, (part,), self._device_type)
        return Answer(allocation, part, self.edits(allocation, part))

    def _slice(
        self, candidate: AdmissionCandidate, chips: Sequence[int], kubelet_ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the kubelet's own choice if the pod may have it: it reuses an init container's chips in any order."""
        ask, requests, kept = candidate.ask, candidate.pod.container_requests, self._reserved_chips(candidate.pod)
        given = choose(ask, requests, chips, kept=kept, must_include=kubelet_ids)
        device_type = self._device_type
        if given is None and device_type.suffix:
            written, chosen = device_type.join(chips), device_type.join(kubelet_ids)
            raise Refusal(
                Reason.CHIP_NOT_FREED, f"{written} is written on the pod, but the kubelet has chosen {chosen}"
            )
        if given is None:
            given = choose(ask, requests, chips, kept=kept)
        if given is None:
            raise Refusal(
                Reason.NO_CHIPS_LEFT, f"container {ask.container}: other containers of its pod have its chips"
            )
        return given

    def _reserved_chips(self, pod: NodePod) -> Mapping[str, tuple[int, ...]]:
        known = self.ledger.allocations.get(pod.uid)
        return known.kept if known is not None else {}

    def edits(self, allocation: Allocation, part: ContainerPart) -> ContainerEdits:
        """Return what the kubelet adds to a container with these devices, or raise Refusal."""
        return self._inject(part.chips, allocation.device_type)

    async def look(self) -> None:
        """Do nothing: the scanner looks all the time."""

    def compare(self, ledger: PodResources, newer: Collection[int]) -> None:
        """Do nothing: what a pod had is free once it has ended."""

    def is_its_own(self, pod: NodePod, held: Held, *, admitted: bool, is_known: bool) -> bool:  # noqa: ARG002 - its ids tell
        """Return whether an entry of the kubelet's ledger belongs to this pod; see ``Devices``."""
        return is_as_requested(pod, held) and (admitted or has_own_ids(pod, held))

    def adopt(self, pod: NodePod, held: Held, *, admitted: bool) -> Allocation:
        """Return the allocation that explains an entry of the kubelet's ledger."""
        return adopt(pod, held, self.ledger.allocations.answers_to(pod.uid), admitted=admitted)

    def believe(self, pod: NodePod) -> Allocation | None:
        """Return the allocation that a pod's claim describes; None if the claim has another number of devices."""
        return believe(pod)
