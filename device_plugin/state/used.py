"""Which chips pods hold now."""

from ascend.chips import ChipSet
from device_plugin.state.grants import HandOvers
from device_plugin.state.pods import NodePods


def used_chips(pods: NodePods, handovers: HandOvers) -> ChipSet:
    """The chips that are somebody's: handed over, or written on a live pod that asks for chips.

    A chip is used from the moment Allocate granted it (spec/node-agent.md §5.4 has it the other way: only once the
    pod's annotation is written, which leaves a gap).
    """
    used = 0
    for handover in handovers:
        used |= handover.held
    for pod in pods:
        if pod.live and pod.count:
            used |= pod.held
    return used
