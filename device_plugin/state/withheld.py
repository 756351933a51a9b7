"""Chips that the kubelet does not offer to a pod it found at its start: it still counts them to one that has ended.

Until the pods it found are through admission it frees nothing (spec/kubernetes.md §1.6 "Freed devices"). Handed over
all the same, such a chip would be another than the kubelet's for as long as the pod lives, and neither of the two could
be given to anybody else. Refused, the pod is made again by its controller, and the new one comes after the freeing.

Only pods that we knew when the kubelet was told of our devices are taken for those it found: before, it admits nobody
to them. So nobody is refused for ever by a kubelet that keeps ids back for another reason, such as a topology policy.
"""

from collections.abc import Iterable

from ascend.chips import join_names_sorted
from ascend.errors import Refusal
from ascend.reasons import Reason
from device_plugin.rules.pod import NodePod
from device_plugin.state.grants import Part
from device_plugin.state.pods import NodePods


class Withheld:
    """What the kubelet did not offer when it last asked for a preference.

    Args:
        pods: the node's pods.
    """

    def __init__(self, pods: NodePods) -> None:
        self._pods = pods
        self._first_new = 0
        self._chips: frozenset[int] = frozenset()

    def begin(self) -> None:
        """A kubelet that may have just started is about to be told of our devices."""
        self._first_new = self._pods.next_order
        self.note(())

    def note(self, chips: Iterable[int]) -> None:
        """It asks, and does not offer these chips of the pod, though nobody holds them as far as we know."""
        self._chips = frozenset(chips)

    def check(self, pod: NodePod, part: Part) -> None:
        """Refuse a pod the kubelet may have found at its start what was not offered.

        Raises:
            Refusal: the part has such chips, and the kubelet chose others.
        """
        missing = self._chips.intersection(part.chips).difference(part.kubelet_ids)
        if missing and pod.order < self._first_new:
            raise Refusal(
                Reason.CHIP_NOT_FREED,
                f"the kubelet does not offer {join_names_sorted(missing)} yet: after its start it frees what pods "
                "that have ended had only once those it found are admitted; a new pod will get it",
            )
