"""The Node condition with the reason why a device plugin does not work; npuctl reads it."""

from enum import StrEnum
from typing import Final

NOT_READY: Final = "AscendDevicePluginNotReady"
"""True while the device plugin lacks something; its reason has the ``Lack`` of each, with commas between."""


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
