"""The plugin's ledger: which pod was given which chips.

It is about one type of devices, which are called chips here, whole or not. It exists in memory only. After a restart it
is rebuilt from the kubelet's ledger (pod-resources), which a pod's author can't forge, and from the pods' annotations.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ascend.chips import ChipSet, chip_set
from ascend.daemon.observable import Observable
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType
from device_plugin.driver import VirtualNpu
from device_plugin.ledger.node_pods import NodePod, NodePods


@dataclass(frozen=True, slots=True)
class ContainerPart:
    """The chips given to one container.

    Attributes:
        container: its name.
        keeps: whether it keeps them; those of a regular init container are reused by later containers of its pod.
        chips: the physical ids given to the container, in order.
        kubelet_ids: the physical ids in the kubelet's ledger for it.
    """

    container: str
    keeps: bool
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]

    @property
    def matches_kubelet(self) -> bool:
        """Whether the kubelet's ledger has the same chips."""
        return chip_set(self.chips) == chip_set(self.kubelet_ids)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The chips given to a pod. Once its first container has chips, the pod owns all of its chips.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        chips: the physical ids of all its chips, in selection order.
        kubelet_ids: the physical ids that the kubelet's ledger has or will have for it; the same set unless the kubelet
            did not follow the preferred allocation, or another device plugin gave the chips. They say nothing about who
            has the chips with these ids.
        parts: what its containers were given so far, in order.
        device_type: the type of the devices. The kubelet counts AI cores: for these the chips are those that the pod
            has, or has a part of, while the kubelet's ids are numbers of cores that say nothing about chips.
        template: by which the chip was cut for the pod; empty if the pod has what was there before.
        vnpu: the vNPU that was cut for the pod; None if the driver does not have it any more.
    """

    uid: str
    pod: str
    chips: tuple[int, ...]
    kubelet_ids: tuple[int, ...]
    parts: tuple[ContainerPart, ...] = ()
    device_type: DeviceType = WHOLE_CHIPS
    template: str = ""
    vnpu: VirtualNpu | None = None

    @classmethod
    def of_parts(
        cls,
        uid: str,
        pod: str,
        chips: tuple[int, ...],
        parts: tuple[ContainerPart, ...],
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> "Allocation":
        """Return an allocation; for chips no container has yet, the kubelet is expected to use the same ids."""
        given = {chip for part in parts for chip in part.chips}
        ids = dict.fromkeys(chip for part in parts for chip in part.kubelet_ids)
        ids |= dict.fromkeys(chip for chip in chips if chip not in given)
        return cls(uid, pod, chips, tuple(ids), parts, device_type)

    def plus(self, part: ContainerPart) -> "Allocation":
        """Return the allocation after one more container was given its part."""
        others = tuple(earlier for earlier in self.parts if earlier.container != part.container)
        return Allocation.of_parts(self.uid, self.pod, self.chips, (*others, part), self.device_type)

    @property
    def name(self) -> str:
        """What the pod has, as the annotation AscendReal has it; empty if the vNPU is unknown."""
        if not self.template:
            return (WHOLE_CHIPS if self.device_type == CORES else self.device_type).join_sorted(self.chips)
        named = self.vnpu.vnpu if self.vnpu is not None else None
        return f"{named.name}_{self.vnpu.vfg_id}" if named is not None and self.vnpu is not None else ""

    def overlaps(self, other: "Allocation") -> bool:
        """Return whether two allocations conflict: they share a chip or a vNPU."""
        if self.template and other.template and (self.vnpu is None or self.vnpu != other.vnpu):
            return False
        return bool(self.chip_set & other.chip_set)

    @property
    def kept(self) -> dict[str, tuple[int, ...]]:
        """The chips reserved for one container of the pod, by container."""
        return {part.container: part.chips for part in self.parts if part.keeps}

    @property
    def chip_set(self) -> ChipSet:
        """The chips as a set: no other pod may get them."""
        return chip_set(self.chips)

    @property
    def matches_kubelet(self) -> bool:
        """Whether the kubelet's ledger has the same chips for the pod as a whole and for each container."""
        if self.device_type == CORES:
            return True
        return self.chip_set == chip_set(self.kubelet_ids) and all(part.matches_kubelet for part in self.parts)


class Allocations:
    """All allocations of one type of devices to live pods.

    Args:
        changes: what is set on every change; None for one of its own.
        keeps_dropped: whether what a pod had is kept until it is known to be unused: a vNPU that was cut for a pod has
            to be destroyed before its chip is free, and never while a container has it.
    """

    def __init__(self, changes: Observable[None] | None = None, *, keeps_dropped: bool = False) -> None:
        self._by_uid: dict[str, Allocation] = {}
        self._keeps_dropped = keeps_dropped
        self.kept: dict[str, Allocation] = {}
        """What was dropped and is kept, by uid: of pods that have ended, and of those that the kubelet admits again
        after its restart."""
        self.refused: set[str] = set()
        """Uids of pods that were refused; the kubelet rejects such a pod, but the watch shows that later."""
        self.answers: dict[frozenset[int], Allocation] = {}
        """The last answer for each set of device ids, as the allocation to the pod that the call was taken for. It is
        kept until one of the ids is given again: the kubelet's ledger says which pod has the ids, and that pod has the
        chips that were given for them."""
        self._shown: dict[frozenset[int], str] = {}
        """The uids of the pods for which the kubelet's ledger has shown the ids of answers."""
        self.unconfirmed: set[str] = set()
        """Uids of pods whose allocations have not been compared with the kubelet's ledger yet."""
        self.believed: set[str] = set()
        """Uids of pods whose allocations rest on their claims only: they give way to what the kubelet's ledger has."""
        self.changes: Observable[None] = changes if changes is not None else Observable(None)
        """Set on every change."""

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self._by_uid.values())

    def __contains__(self, uid: object) -> bool:
        return uid in self._by_uid

    def get(self, uid: str) -> Allocation | None:
        """Return the allocation to the pod with this uid."""
        return self._by_uid.get(uid)

    @property
    def granted(self) -> dict[str, frozenset[str]]:
        """The names of the containers that were given chips, by uid of their pod."""
        return {allocation.uid: frozenset(part.container for part in allocation.parts) for allocation in self}

    def give(self, allocation: Allocation, kubelet_ids: Iterable[int]) -> None:
        """Add or replace an allocation by which a call for these device ids is answered."""
        ids = frozenset(kubelet_ids)
        self.answers = {given: answer for given, answer in self.answers.items() if not given & ids}
        self._shown = {given: uid for given, uid in self._shown.items() if given in self.answers}
        self.answers[ids] = allocation
        self.add(allocation)
        self.unconfirmed.add(allocation.uid)

    def answers_to(self, uid: str) -> dict[frozenset[int], Allocation]:
        """Return the answers to calls that may have been for the pod with this uid, by device ids.

        An answer is left out if the kubelet's ledger has shown its ids for another pod: if this one has them since,
        another device plugin has given them.
        """
        return {ids: answer for ids, answer in self.answers.items() if self._shown.get(ids, uid) == uid}

    def confirm(self, allocation: Allocation) -> None:
        """Note that the kubelet's ledger has what a pod was given, for this pod."""
        self.unconfirmed.discard(allocation.uid)
        ids = {frozenset(part.kubelet_ids) for part in allocation.parts}
        self._shown |= dict.fromkeys(ids & self.answers.keys(), allocation.uid)

    def add(self, allocation: Allocation) -> None:
        """Add or replace an allocation that is what the kubelet's ledger shows."""
        self.kept.pop(allocation.uid, None)
        self._by_uid[allocation.uid] = allocation
        self.unconfirmed.discard(allocation.uid)
        self.believed.discard(allocation.uid)
        self.changes.set(None)

    def drop(self, uid: str) -> None:
        """Remove a pod whose containers can't run any more; its chips are free, or kept."""
        if self._keeps_dropped and uid in self._by_uid:
            self.kept[uid] = self._by_uid[uid]
        self._remove(uid)

    def take_away(self, uid: str) -> None:
        """Remove an allocation that was never to this pod: nothing of it is kept for the pod."""
        self.kept.pop(uid, None)
        self._remove(uid)

    def _remove(self, uid: str) -> None:
        self.refused.discard(uid)
        self.unconfirmed.discard(uid)
        self.believed.discard(uid)
        if self._by_uid.pop(uid, None) is not None:
            self.changes.set(None)

    def forget(self, uid: str) -> None:
        """Forget the allocation of a pod, and what was kept of it: nobody uses the devices."""
        if self.kept.pop(uid, None) is not None:
            self.changes.set(None)


class DeviceLedger:
    """What the pods of the node have of one type of devices.

    Args:
        pods: the node's pods; for vNPUs only those that request some of this size.
        allocations: what they were given.
    """

    def __init__(self, pods: NodePods, allocations: Allocations) -> None:
        self.pods = pods
        self.allocations = allocations
        self.is_settled: Observable[bool] = Observable(False)  # noqa: FBT003 - a value
        """Whether the kubelet's ledger, when it was read last, left nothing unexplained."""

    @property
    def device_type(self) -> DeviceType:
        """The type."""
        return self.pods.device_type

    @property
    def holding(self) -> list[Allocation]:
        """The allocations of pods, including pods that may have ended."""
        return [*self.allocations, *self.allocations.kept.values()]

    @property
    def used(self) -> ChipSet:
        """The devices that pods were given, or that are written on live pods; for AI cores the chips.

        What a pod was given is known: whatever its author has written on it since does not count. A device is used as
        soon as Allocate has granted it (in docs/spec/node-report.md#used-chips only once the pod's annotation is
        written, which leaves a gap).
        """
        return self._chips_of(self.pods)

    def used_by_others(self, uid: str) -> ChipSet:
        """Return the devices used by other pods than one."""
        return self._chips_of(pod for pod in self.pods if pod.uid != uid)

    @property
    def running(self) -> ChipSet:
        """The devices that pods run with, or are about to; for AI cores the chips.

        A pod that is only bound has its devices written on it but does not have them yet: a fault that bars new use
        (docs/spec/faults.md#chip-health) bars them to it.
        """
        return self._chips_of(pod for pod in self.pods if pod.past_admission or pod.claimed)

    def _chips_of(self, pods: Iterable[NodePod]) -> ChipSet:
        held = 0
        for allocation in self.allocations:
            held |= allocation.chip_set
        for pod in pods:
            if pod.live and pod.count and pod.uid not in self.allocations:
                held |= pod.held
        return held

    @property
    def given(self) -> ChipSet:
        """The devices that pods were given."""
        return chip_set(number for allocation in self.allocations for number in allocation.chips)

    @property
    def under_other_ids(self) -> ChipSet:
        """The devices of running pods that the kubelet's pod resources do not list for them under their own ids."""
        own = (
            number
            for allocation in self.allocations
            for number in {*allocation.chips}.intersection(allocation.kubelet_ids)
        )
        return self.running & ~chip_set(own)

    def explains(self, key: str, ids: Iterable[int]) -> bool:
        """Return whether the device ids that the kubelet's ledger has for a pod's name are those of a known pod."""
        return any(allocation.pod == key and {*allocation.kubelet_ids}.issuperset(ids) for allocation in self.holding)
