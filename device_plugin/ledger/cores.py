"""The ledger of AI cores: the vNPU or the whole chips of each pod, and which of them are not free yet.

The kubelet counts AI cores; what a pod has are chips or a vNPU. So in these allocations the chips are those that
pods have, or have parts of, while the kubelet's ids are numbers of cores that say nothing about chips.

The kubelet is offered a list of numbers, of which as many are healthy as pods can use. A core of an unhealthy chip that
nobody has is unhealthy, and so is one of a vNPU that could not be destroyed. They are shown under numbers that no pod
has in the kubelet's ledger: a pod whose own number became unhealthy would look faulty, and the Node would be short of a
core that is free (docs/spec/vnpu.md#dynamic-vnpus-in-allocate).
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.daemon.observable import Observable
from ascend.templates import TEMPLATES, Divisible, divisible
from ascend.vnpus import Vnpu
from device_plugin.device_types import CORES
from device_plugin.driver import NO_CARD, ChipFacts, Inventory, VirtualNpu
from device_plugin.health.snapshot import Chip, Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart, DeviceLedger
from device_plugin.ledger.node_pods import NodePod, NodePods

_MB_PER_GB: Final = 1024


def kind_of(server: Inventory) -> Divisible | None:
    """Return the kind of a server's chips; None if they can't be cut while pods run."""
    hbm_mb = next((chip.hbm_mb for chip in server.chips if chip.hbm_mb), 0)
    return divisible(server.chip_type, server.ai_cores, hbm_mb // _MB_PER_GB)


def core_allocation(
    pod: NodePod, ids: tuple[int, ...], chips: tuple[int, ...], template: str, vnpu: VirtualNpu | None
) -> Allocation:
    """Return the allocation of a pod for the kubelet's ids: only one container of a pod requests AI cores."""
    parts = tuple(ContainerPart(ask.container, ask.keeps, chips, ids) for ask in pod.container_requests[:1])
    return Allocation(pod.uid, pod.key, chips, ids, parts, CORES, template, vnpu)


class CoreLedger(DeviceLedger):
    """The ledger of AI cores.

    Args:
        changes: what is set on every change.
    """

    def __init__(self, changes: Observable[None]) -> None:
        allocations = Allocations(changes, keeps_dropped=True)
        super().__init__(NodePods(allocations.drop, CORES, changes), allocations)
        self.changes = changes
        self.kubelet_ids: frozenset[int] = frozenset()
        """The numbers of the cores that pods have in the kubelet's ledger as last read."""
        self.left: Mapping[tuple[int, int], VirtualNpu] = {}
        """vNPUs that no pod is known to have and that could not be destroyed, by chip and id."""
        self.guessed: set[str] = set()
        """Uids of pods that can have another vNPU than the one that is taken for theirs: the two look alike."""
        self._ended: frozenset[int] = frozenset()

    def took(self, ids: frozenset[int], left: Mapping[tuple[int, int], VirtualNpu]) -> None:
        """Take over what was read."""
        if (ids, left) != (self.kubelet_ids, self.left):
            self.kubelet_ids, self.left = ids, left
            self.changes.set(None)

    def forget(self, allocation: Allocation) -> None:
        """Forget the allocation of an ended pod; the chips are not free before the vNPU is destroyed."""
        if allocation.vnpu is not None:
            self._ended |= {allocation.vnpu.phy_id}
        self.allocations.forget(allocation.uid)

    def swept(self, left: Mapping[tuple[int, int], VirtualNpu], undestroyed: Container[int]) -> None:
        """Take over which vNPUs of no pod could not be destroyed, and the chips that still have any."""
        ended, self._ended = self._ended, frozenset(chip for chip in self._ended if chip in undestroyed)
        self.took(self.kubelet_ids, left)
        if ended != self._ended:
            self.changes.set(None)

    @property
    def used(self) -> ChipSet:
        """The chips that pods hold whole or in part, and the chips with further vNPUs."""
        return super().used | self._kept | self._undestroyed

    @property
    def running(self) -> ChipSet:
        """The chips that pods run with, or are about to."""
        return super().running | self._kept | self._undestroyed

    @property
    def _undestroyed(self) -> ChipSet:
        return chip_set((*self._ended, *(chip for chip, _ in self.left)))

    @property
    def _kept(self) -> ChipSet:
        return chip_set(chip for allocation in self.allocations.kept.values() for chip in allocation.chips)

    @property
    def claimed_vnpus(self) -> list[Vnpu]:
        """The vNPUs that live pods claim without an allocation in this ledger."""
        known = {allocation.uid for allocation in self.holding}
        claimed = (pod.claimed_vnpu for pod in self.pods if pod.uid not in known)
        return [vnpu for vnpu in claimed if vnpu is not None]

    @property
    def vnpus(self) -> list[Vnpu]:
        """The vNPUs of pods, by allocation or by claim."""
        own = (allocation.vnpu.vnpu for allocation in self.allocations if allocation.vnpu is not None)
        return [*(vnpu for vnpu in own if vnpu is not None), *self.claimed_vnpus]

    @property
    def cut(self) -> ChipSet:
        """The chips that have vNPUs."""
        held = (chip for allocation in self.holding if allocation.template for chip in allocation.chips)
        claimed = (vnpu.chip for vnpu in self.claimed_vnpus)
        return chip_set((*held, *claimed)) | self._undestroyed

    def may_be_mistaken(self, vnpu: VirtualNpu) -> bool:
        """Return whether a pod can have this vNPU although another is taken for its own: they look alike."""
        self.guessed &= {allocation.uid for allocation in self.holding}
        return any(
            allocation.uid in self.guessed
            and (allocation.chips, allocation.template) == ((vnpu.phy_id,), vnpu.template)
            for allocation in self.holding
        )

    def owns(self, vnpu: VirtualNpu) -> bool:
        """Return whether a vNPU is that of a pod; one of another size is not, although the driver reuses ids."""
        return any(allocation.vnpu == vnpu for allocation in self.holding)


@dataclass(frozen=True, slots=True)
class ChipUse:
    """What is taken of a chip.

    Attributes:
        pod: by whom, ``namespace/name``.
        template: by which it is cut for that; empty if it is taken as a whole.
    """

    pod: str
    template: str


def taken(ledger: CoreLedger, pod: NodePod | None = None) -> dict[int, list[ChipUse]]:
    """Return what others than a pod have or wait for, by physical id of the chip.

    Args:
        ledger: the ledger.
        pod: the pod; those that came after it and are not admitted don't count. None to count what pods have.
    """
    found: dict[int, list[ChipUse]] = {}
    known = set()
    for allocation in ledger.holding:
        known.add(allocation.uid)
        if pod is None or allocation.uid != pod.uid:
            for chip in allocation.chips:
                found.setdefault(chip, []).append(ChipUse(allocation.pod, allocation.template))
    for other in ledger.pods:
        if other.uid in known or not (other.live and other.count) or (pod is not None and other.uid == pod.uid):
            continue
        waits = pod is not None and other.order < pod.order and not other.is_mirror
        if other.past_admission or other.claimed or waits:
            for chip in chip_ids(other.held):
                found.setdefault(chip, []).append(ChipUse(other.key, other.template))
    return found


def free_cores(kind: Divisible, of_chip: list[ChipUse]) -> int:
    """Return the AI cores of a chip of which this much is taken."""
    if any(not use.template for use in of_chip):
        return 0
    cores = sum(TEMPLATES[use.template].cores for use in of_chip if use.template in TEMPLATES)
    return max(kind.cores - cores, 0)


def cores_left(ledger: CoreLedger, kind: Divisible, chip: int) -> int:
    """Return the AI cores of a chip that vNPUs have which could not be destroyed."""
    own = [vnpu for (phy_id, _), vnpu in ledger.left.items() if phy_id == chip]
    return sum(TEMPLATES[vnpu.template].cores if vnpu.template in TEMPLATES else kind.cores for vnpu in own)


def offered_cores(snapshot: Snapshot, kind: Divisible, ledger: CoreLedger, whole: ChipSet) -> Snapshot:
    """Return the AI cores in the form of a snapshot, whose chips they are.

    Args:
        snapshot: the node's chips.
        kind: of its chips.
        ledger: of AI cores.
        whole: chips that pods hold which do not request AI cores.
    """
    have = taken(ledger)
    closed = ~snapshot.healthy | snapshot.closed_to_new_pods | whole
    barred: list[int] = []
    spare: list[int] = []
    ids = ledger.kubelet_ids | {number for allocation in ledger.holding for number in allocation.kubelet_ids}
    lacking = 0
    for index, chip in enumerate(snapshot.chips):
        own = [number for number in range(index * kind.cores, (index + 1) * kind.cores) if number not in ids]
        of_chip, left = have.get(chip.chip_id, []), cores_left(ledger, kind, chip.chip_id)
        free = free_cores(kind, of_chip)
        lost = free if closed >> chip.chip_id & 1 else min(free, left)
        barred += own[len(own) - min(lost, len(own)) :]
        spare += own[: len(own) - min(lost, len(own))]
        lacking += max(lost - len(own), 0)
    unhealthy = {*barred, *(spare[len(spare) - lacking :] if lacking else ())}
    numa_nodes = {chip.facts.numa_node for chip in snapshot.chips}
    numa_node = numa_nodes.pop() if len(numa_nodes) == 1 else None
    cores = tuple(
        Chip(
            ChipFacts(number, NO_CARD, NO_CARD, NO_CARD, numa_node=numa_node),
            reason="Fault" if number in unhealthy else "",
        )
        for number in range(len(snapshot.chips) * kind.cores)
    )
    return Snapshot(replace(snapshot.server, chips=()), cores, running=chip_set(ids))
