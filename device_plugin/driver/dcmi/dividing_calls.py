"""The library's functions that cut chips into vNPUs (docs/spec/dcmi.md#virtual-devices)."""

from ctypes import byref, c_int, c_uint32, c_void_p
from typing import Any, ClassVar, Final

from device_plugin.driver import Division, VirtualNpu
from device_plugin.driver.dcmi.calls import VIRTUAL_COMMAND, Place
from device_plugin.driver.dcmi.errors import DcmiError
from device_plugin.driver.dcmi.measuring_calls import MeasuringCalls
from device_plugin.driver.dcmi.structures import CreatedVirtualDevice, FreeResource, VirtualDeviceRequest

_FREE: Final = 2
_BY_DRIVER: Final = 0xFFFFFFFF
"""As an id in a request: the driver chooses it."""
_MOST: Final = 255


class DividingCalls(MeasuringCalls):
    """The functions of ``MeasuringCalls``, and those that cut chips."""

    prototypes: ClassVar[dict[str, tuple[Any, ...]]] = MeasuringCalls.prototypes | {
        "dcmi_create_vdevice": (c_int, c_int, c_void_p, c_void_p),
        "dcmi_set_destroy_vdevice": (c_int, c_int, c_uint32),
    }

    def division(self, chip: Place, phy_id: int) -> Division:
        """Return how a chip is cut; ``phy_id`` is its physical id."""
        _, ids = self.resources(chip)
        vnpus = tuple(self.virtual_npu(chip, chip_id, phy_id) for chip_id in ids)
        free = FreeResource()
        try:
            self._device_info(chip, VIRTUAL_COMMAND, _FREE, free)
        except DcmiError:
            return Division(vnpus)  # without it, the driver itself refuses what does not fit
        cores, cpus = free.computing.aic, free.computing.device_aicpu
        # A driver that does not fill the number of CPUs in says 0 for a chip without vNPUs as well.
        return Division(vnpus, int(cores) if 0 <= cores <= _MOST else None, cpus or None)

    def create_vnpu(self, chip: Place, phy_id: int, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip; ``phy_id`` is the chip's physical id."""
        request = VirtualDeviceRequest(vdev_id=_BY_DRIVER, vfg_id=_BY_DRIVER, template_name=template.encode())
        created = CreatedVirtualDevice()
        self._call("dcmi_create_vdevice", *chip, byref(request), byref(created), target=chip)
        return VirtualNpu(created.vdev_id, phy_id, template, vfg_id=created.vfg_id)

    def destroy_vnpu(self, chip: Place, vdev_id: int) -> None:
        """Give the parts of a vNPU back."""
        self._call("dcmi_set_destroy_vdevice", *chip, vdev_id, target=chip)
