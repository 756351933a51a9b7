"""The AI cores that the kubelet is offered: a list of numbers, of which as many are healthy as pods can use.

Which pod has which number says nothing about chips. A core of an unhealthy chip that nobody has is unhealthy, and so is
one of a vNPU that could not be destroyed. They are shown under numbers that no pod has in the kubelet's ledger: a pod
whose own number became unhealthy would look faulty, and the Node would be short of a core that is free
(docs/spec/vnpu.md#dynamic-vnpus-in-allocate).
"""

from dataclasses import replace

from ascend.chips import ChipSet, chip_set
from ascend.templates import Divisible
from device_plugin.driver import NO_CARD, ChipFacts
from device_plugin.health.snapshot import Chip, Snapshot
from device_plugin.ledger.cores import CoreLedger, cores_left, free_cores, taken


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
