"""What the Node says about the health of its chips: two conditions, and a taint.

The conditions have the form of the node-problem-detector: a type names a problem, its status is True while the problem
lasts, and its reason is then a word for the cause, here the level of the most serious fault. So whatever acts by
conditions (a descheduler, a remediation operator, an administrator with ``kubectl wait``) can act by these.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from ascend.chips import chip_name
from ascend.kube.objects import Condition, Taint
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import DOUBTS, Chip, FaultRecord, Snapshot

CHIPS: Final = "AscendNPUUnhealthy"
"""True while a chip is not given to new pods because of its health."""
PORTS: Final = "AscendNPUNetworkUnhealthy"
"""True while the network port of a chip can't be used by distributed jobs."""
CONDITIONS: Final = (CHIPS, PORTS)

NOT_READY: Final = "AscendDevicePluginNotReady"
"""True while the device plugin lacks something; its reason has the ``Lack`` of each, with commas between."""

TAINT: Final = "ascend-affinity.io/npu-fault"

NO_FAULT: Final = "NoFault"
ENDED: Final = "DevicePluginEnded"
OTHER_PLUGIN: Final = "OtherPlugin"

LONGEST_MESSAGE: Final = 512
"""Of the message of a condition."""

TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class Lack(StrEnum):
    """The checks of ``/readyz``: what a device plugin can lack, causes before their consequences.

    The text is for people; ``reason`` is the word of the condition.
    """

    NODE = "node"
    START = "start"
    DRIVER = "driver"
    PODS = "pods"
    LOCK = "lock"
    KUBELET = "kubelet"
    REPORT = "report"
    CLAIMS = "claims"
    KUBELETS_PODS = "kubelet's pods"
    RIGHTS = "rights"

    @property
    def reason(self) -> str:
        """It as a word of a condition's reason."""
        return self.title().replace("'S ", "s")


@dataclass(frozen=True, slots=True)
class TaintRule:
    """Which faults taint the Node.

    Attributes:
        lowest: the lowest level that does.
        effect: of the taint.
    """

    lowest: FaultLevel
    effect: TaintEffect

    def taint(self, snapshot: Snapshot, present: str | None) -> Taint | None:
        """Return the taint that the Node should have; None for none.

        A chip that can't be read, or is held back after a fault, may have that fault again in a moment: a taint that is
        there stays as long.

        Args:
            snapshot: the node's chips.
            present: the value of the taint that the Node has; None if it has none.
        """
        worst = max((chip.level for chip in snapshot.chips), default=FaultLevel.NORMAL)
        value = worst.wire if worst >= self.lowest else None
        if value is None and any(chip.in_doubt or chip.reason in DOUBTS for chip in snapshot.chips):
            value = present
        return Taint(TAINT, self.effect, value) if value is not None else None


def node_conditions(snapshot: Snapshot) -> tuple[Condition, ...]:
    """Return the conditions; chips that are only withheld because others are being reset have no problem."""
    chips = [chip for chip in snapshot.chips if chip.level.bars_new_use or not chip.healthy_by_itself]
    ports = [chip for chip in snapshot.chips if not chip.network_healthy]
    return (
        _condition(CHIPS, chips, _of_chip, "every NPU can be given to pods"),
        _condition(PORTS, ports, _of_port, "the network port of every NPU is healthy"),
    )


def unknown_conditions(reason: str, message: str) -> tuple[Condition, ...]:
    """Return the conditions of a Node whose chips this plugin does not watch any more."""
    return tuple(Condition(kind, "Unknown", reason, message) for kind in CONDITIONS)


def _condition(
    kind: str, chips: list[Chip], describe: Callable[[Chip], tuple[FaultLevel, str, str]], healthy: str
) -> Condition:
    if not chips:
        return Condition(kind, "False", NO_FAULT, healthy)
    described = {chip.chip_id: describe(chip) for chip in chips}
    _, word, _ = max(described.values(), key=lambda found: found[0])
    return true_condition(kind, word, (f"{chip_name(chip)}: {said}" for chip, (*_, said) in described.items()))


def true_condition(kind: str, reason: str, sentences: Iterable[str]) -> Condition:
    """Return the condition of a problem, with as many sentences about it as fit."""
    message = "; ".join(sentences)
    if len(message) > LONGEST_MESSAGE:
        message = f"{message[: LONGEST_MESSAGE - 1]}…"
    return Condition(kind, "True", reason, message)


def _of_chip(chip: Chip) -> tuple[FaultLevel, str, str]:
    """Return the level of its most serious fault, a word and a sentence for its problem."""
    word = chip.level.wire if chip.level.bars_new_use else chip.reason
    return chip.level, word, _named(chip.faults) or chip.sentence


def _of_port(chip: Chip) -> tuple[FaultLevel, str, str]:
    without = "Recovering" if chip.network_in_doubt else "AwaitingReadmission"
    word = chip.network_level.wire if chip.network_level.bars_network else without
    return chip.network_level, word, _named(chip.network_faults) or chip.sentence


def _named(faults: Iterable[FaultRecord]) -> str:
    return ", ".join(str(fault) for fault in faults if fault.level.bars_network)
