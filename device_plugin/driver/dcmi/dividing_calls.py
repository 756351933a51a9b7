"""The library's functions about vNPUs: which there are, and cutting them (docs/spec/dcmi.md#virtual-devices)."""

from ctypes import byref, c_int, c_uint32, c_void_p
from typing import Any, ClassVar, Final

from device_plugin.driver import Division, VirtualNpu
from device_plugin.driver.dcmi.calls import MAX_ID, Place, text_of, within
from device_plugin.driver.dcmi.errors import DcmiError
from device_plugin.driver.dcmi.measuring_calls import MeasuringCalls
from device_plugin.driver.dcmi.structures import (
    CreatedVirtualDevice,
    FreeResource,
    TotalResource,
    VirtualDeviceQuery,
    VirtualDeviceRequest,
)

_VIRTUAL_COMMAND: Final = 52
_SINGLE, _TOTAL, _FREE = 0, 1, 2
_BY_DRIVER: Final = 0xFFFFFFFF
"""As an id in a request: the driver chooses it."""


class DividingCalls(MeasuringCalls):
    """The functions of ``MeasuringCalls``, and those about vNPUs."""

    prototypes: ClassVar[dict[str, tuple[Any, ...]]] = MeasuringCalls.prototypes | {
        "dcmi_create_vdevice": (c_int, c_int, c_void_p, c_void_p),
        "dcmi_set_destroy_vdevice": (c_int, c_int, c_uint32),
    }

    def resources(self, chip: Place) -> tuple[int, tuple[int, ...]]:
        """Return the number of the chip's AI cores, 0 if unknown, and the ids of its virtual NPUs."""
        info = TotalResource()
        self._device_info(chip, _VIRTUAL_COMMAND, _TOTAL, info)
        ids = info.vdev_id[: within(info.vdev_num, len(info.vdev_id))]
        cores = info.computing.aic
        return int(cores) if 0 <= cores <= MAX_ID else 0, tuple(ids)  # a NaN fails both comparisons

    def virtual_npu(self, chip: Place, vdev_id: int, phy_id: int) -> VirtualNpu:
        """Return a virtual NPU; ``phy_id`` is the chip it is cut out of."""
        query = VirtualDeviceQuery(vdev_id=vdev_id)
        self._device_info(chip, _VIRTUAL_COMMAND, _SINGLE, query)
        info = query.query_info
        return VirtualNpu(
            vdev_id, phy_id, text_of(info.name), in_container=bool(info.is_container_used), vfg_id=info.vfg_id
        )

    def division(self, chip: Place, phy_id: int) -> Division:
        """Return how a chip is cut; ``phy_id`` is its physical id."""
        _, ids = self.resources(chip)
        vnpus = tuple(self.virtual_npu(chip, chip_id, phy_id) for chip_id in ids)
        free = FreeResource()
        try:
            self._device_info(chip, _VIRTUAL_COMMAND, _FREE, free)
        except DcmiError:
            return Division(vnpus)  # without it, the driver itself refuses what does not fit
        cores, cpus = free.computing.aic, free.computing.device_aicpu
        # A driver that does not fill the number of CPUs in says 0 for a chip without vNPUs as well.
        return Division(vnpus, int(cores) if 0 <= cores <= MAX_ID else None, cpus or None)

    def create_vnpu(self, chip: Place, phy_id: int, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip; ``phy_id`` is the chip's physical id."""
        request = VirtualDeviceRequest(vdev_id=_BY_DRIVER, vfg_id=_BY_DRIVER, template_name=template.encode())
        created = CreatedVirtualDevice()
        self._call("dcmi_create_vdevice", *chip, byref(request), byref(created), target=chip)
        return VirtualNpu(created.vdev_id, phy_id, template, vfg_id=created.vfg_id)

    def destroy_vnpu(self, chip: Place, vdev_id: int) -> None:
        """Give the parts of a vNPU back."""
        self._call("dcmi_set_destroy_vdevice", *chip, vdev_id, target=chip)
