"""The condition of a Node that says why its device plugin does not work: written there, read by npuctl."""

from enum import StrEnum
from typing import Final

NOT_READY: Final = "AscendDevicePluginNotReady"
"""True while the device plugin lacks something; its reason has the ``Lack`` of each, with commas between."""


class Lack(StrEnum):
    """What a device plugin can lack, in the order in which one explains the next: also the checks of ``/readyz``.

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
