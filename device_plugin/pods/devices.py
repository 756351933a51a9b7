"""What differs between the types of devices that pods get: whole chips, vNPUs of a size, AI cores.

The rest is the same for all: the kubelet's calls are matched with pods (``admission_matcher``), and the plugin's ledger
follows the kubelet's (``reconciler``).
"""

from collections.abc import Collection, Mapping
from typing import Protocol

from device_plugin.kubelet.pod_resources import KubeletLedger
from device_plugin.ledger.adoption import adopt, believe, has_own_ids, is_as_requested
from device_plugin.ledger.handovers import HandOver, Ledger
from device_plugin.ledger.node_pods import NodePod

Held = Mapping[str, tuple[int, ...]]
"""The device ids that the kubelet's ledger has for a pod, by container."""


class Devices(Protocol):
    """One type of devices.

    Attributes:
        must_be_settled: whether the kubelet's ledger is read again and again until it leaves nothing unexplained,
            because what no pod has is given back.
    """

    must_be_settled: bool

    @property
    def ledger(self) -> Ledger:
        """What pods have of them."""

    async def look(self) -> None:
        """Read which devices there are, before it is judged which pod has which."""

    def compare(self, ledger: KubeletLedger, newer: Collection[int]) -> None:
        """Take over what the kubelet counts, and which of the pods that have ended have nothing any more.

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

    def adopt(self, pod: NodePod, held: Held, *, admitted: bool) -> HandOver | None:
        """Return the hand-over that explains an entry of the kubelet's ledger; None if what the pod has is unknown."""

    def believe(self, pod: NodePod) -> HandOver | None:
        """Return the hand-over that a pod's claim describes; None if that can't be true."""


class ChipDevices:
    """Whole chips, or the vNPUs of a size: the kubelet's ids name the devices, which are there before pods are.

    Args:
        ledger: what pods have of them.
    """

    must_be_settled = False

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    async def look(self) -> None:
        """Do nothing: the scanner looks all the time."""

    def compare(self, ledger: KubeletLedger, newer: Collection[int]) -> None:
        """Do nothing: what a pod had is free once it has ended."""

    def is_its_own(self, pod: NodePod, held: Held, *, admitted: bool, is_known: bool) -> bool:  # noqa: ARG002 - its ids tell
        """Return whether an entry of the kubelet's ledger belongs to this pod; see ``Devices``."""
        return is_as_requested(pod, held) and (admitted or has_own_ids(pod, held))

    def adopt(self, pod: NodePod, held: Held, *, admitted: bool) -> HandOver:
        """Return the hand-over that explains an entry of the kubelet's ledger."""
        return adopt(pod, held, self.ledger.handovers.answers, admitted=admitted)

    def believe(self, pod: NodePod) -> HandOver | None:
        """Return the hand-over that a pod's claim describes; None if the claim has another number of devices."""
        return believe(pod)
