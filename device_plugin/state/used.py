"""Which chips pods hold now, and which of them they run with."""

from ascend.chips import ChipSet
from device_plugin.state.grants import HandOvers
from device_plugin.state.pods import NodePods


def used_chips(pods: NodePods, handovers: HandOvers) -> ChipSet:
    """The chips that are somebody's: handed over, or written on a live pod that asks for chips.

    A chip is used from the moment Allocate granted it (spec/node-agent.md §5.4 has it the other way: only once the
    pod's annotation is written, which leaves a gap).
    """
    used = _handed_over(handovers)
    for pod in pods:
        if pod.live and pod.count:
            used |= pod.held
    return used


def running_chips(pods: NodePods, handovers: HandOvers) -> ChipSet:
    """The chips that pods run with, or are about to: handed over, or claimed before the ledger was rebuilt.

    A pod that is merely bound has its chips written on it and does not have them yet: a fault that bars new use
    (spec/node-agent.md §4.1) bars them to it.
    """
    running = _handed_over(handovers)
    for pod in pods:
        if pod.live and pod.count and (pod.past_admission or pod.claimed):
            running |= pod.held
    return running


def _handed_over(handovers: HandOvers) -> ChipSet:
    held = 0
    for handover in handovers:
        held |= handover.held
    return held
