"""The structures of the driver's C interface, in natural C alignment (docs/spec/dcmi.md#structures).

Class and field names are those of the interface if the specification has them. Fields that the plugin never reads are
declared as well, because the driver writes them.
"""

import ctypes
from ctypes import c_char, c_float, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_ulong


class ChipInfo(ctypes.Structure):
    """Names and number of AI cores of a chip, from ``dcmi_get_device_chip_info``."""

    _fields_ = (
        ("chip_type", c_char * 32),
        ("chip_name", c_char * 32),
        ("chip_ver", c_char * 32),
        ("aicore_cnt", c_uint32),
    )


class ChipInfoV2(ctypes.Structure):
    """The same from ``dcmi_get_device_chip_info_v2``."""

    _fields_ = (*ChipInfo._fields_, ("npu_name", c_char * 32))


class BoardInfo(ctypes.Structure):
    """The board of a chip."""

    _fields_ = (("board_id", c_uint32), ("pcb_id", c_uint32), ("bom_id", c_uint32), ("slot_id", c_uint32))


class HbmInfo(ctypes.Structure):
    """A chip's memory; sizes in MB."""

    _fields_ = (
        ("memory_size", c_uint64),
        ("freq", c_uint32),
        ("memory_usage", c_uint64),
        ("temp", c_int),
        ("bandwidth_util_rate", c_uint32),
    )


class DieId(ctypes.Structure):
    """The id of a die, from ``dcmi_get_device_die_v2``."""

    _fields_ = (("soc_die", c_uint32 * 5),)


class _Address(ctypes.Union):
    _fields_ = (("ip6", c_uint8 * 16), ("ip4", c_uint8 * 4))


class IpAddress(ctypes.Structure):
    """An address; ``ip_type`` (0 IPv4, 1 IPv6) is set before the call."""

    _fields_ = (("u_addr", _Address), ("ip_type", c_int))


class PcieInfo(ctypes.Structure):
    """A chip's PCIe address, from ``dcmi_get_device_pcie_info_v2``."""

    _fields_ = (
        ("venderid", c_uint32),
        ("subvenderid", c_uint32),
        ("deviceid", c_uint32),
        ("subdeviceid", c_uint32),
        ("domain", c_int),
        ("bdf_busid", c_uint32),
        ("bdf_deviceid", c_uint32),
        ("bdf_funcid", c_uint32),
        ("reserve", c_uint8 * 32),
    )


class SuperPodInfo(ctypes.Structure):
    """A chip's place in its SuperPod: main command 12, sub command 1."""

    _fields_ = (
        ("sdid", c_uint32),
        ("scale_type", c_uint32),
        ("super_pod_id", c_uint32),
        ("server_id", c_uint32),
        ("chassis_id", c_uint32),
        ("super_pod_type", c_uint32),
        ("reserve", c_uint32 * 6),
    )


class BaseResource(ctypes.Structure):
    """General resources of a chip or a virtual NPU."""

    _fields_ = (
        ("token", c_uint64),
        ("token_max", c_uint64),
        ("task_timeout", c_uint64),
        ("vfg_id", c_uint32),
        ("vip_mode", c_uint8),
        ("reserved", c_uint8 * 31),
    )


class ComputingResource(ctypes.Structure):
    """Computing resources of a chip or a virtual NPU; ``aic`` is the number of AI cores."""

    _fields_ = (
        ("aic", c_float),
        ("aiv", c_float),
        ("dsa", c_uint16),
        ("rtsq", c_uint16),
        ("acsq", c_uint16),
        ("cdqm", c_uint16),
        ("c_core", c_uint16),
        ("ffts", c_uint16),
        ("sdma", c_uint16),
        ("pcie_dma", c_uint16),
        ("memory_size", c_uint64),
        ("event_id", c_uint32),
        ("notify_id", c_uint32),
        ("stream_id", c_uint32),
        ("model_id", c_uint32),
        ("topic_schedule_aicpu", c_uint16),
        ("host_ctrl_cpu", c_uint16),
        ("host_aicpu", c_uint16),
        ("device_aicpu", c_uint16),
        ("topic_ctrl_cpu_slot", c_uint16),
        ("vdev_aicore_utilization", c_uint32),
        ("vdev_memory_total", c_uint64),
        ("vdev_memory_free", c_uint64),
        ("reserved", c_uint8 * 12),
    )


class MediaResource(ctypes.Structure):
    """Media resources of a chip or a virtual NPU."""

    _fields_ = (
        ("jpegd", c_float),
        ("jpege", c_float),
        ("vpc", c_float),
        ("vdec", c_float),
        ("pngd", c_float),
        ("venc", c_float),
        ("reserved", c_uint8 * 32),
    )


class TotalResource(ctypes.Structure):
    """A chip and its virtual NPUs: main command 52, sub command 1."""

    _fields_ = (
        ("vdev_num", c_uint32),
        ("vdev_id", c_uint32 * 32),
        ("vfg_num", c_uint32),
        ("vfg_bitmap", c_uint32),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


class FreeResource(ctypes.Structure):
    """What no virtual NPU of a chip has: main command 52, sub command 2."""

    _fields_ = (
        ("vfg_num", c_uint32),
        ("vfg_bitmap", c_uint32),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


class VirtualDeviceRequest(ctypes.Structure):
    """What ``dcmi_create_vdevice`` is asked for; ids of 0xFFFFFFFF are chosen by the driver."""

    _fields_ = (
        ("vdev_id", c_uint32),
        ("vfg_id", c_uint32),
        ("template_name", c_char * 32),
        ("reserved", c_uint8 * 64),
    )


class CreatedVirtualDevice(ctypes.Structure):
    """What ``dcmi_create_vdevice`` answers."""

    _fields_ = (
        ("vdev_id", c_uint32),
        ("pcie_bus", c_uint32),
        ("pcie_device", c_uint32),
        ("pcie_func", c_uint32),
        ("vfg_id", c_uint32),
        ("reserved", c_uint8 * 32),
    )


class VirtualDeviceInfo(ctypes.Structure):
    """A virtual NPU; ``name`` is its template."""

    _fields_ = (
        ("name", c_char * 16),
        ("status", c_uint32),
        ("is_container_used", c_uint32),
        ("vfid", c_uint32),
        ("vfg_id", c_uint32),
        ("container_id", c_uint64),
        ("base", BaseResource),
        ("computing", ComputingResource),
        ("media", MediaResource),
    )


class VirtualDeviceQuery(ctypes.Structure):
    """A virtual NPU by its id: main command 52, sub command 0."""

    _fields_ = (("vdev_id", c_uint32), ("query_info", VirtualDeviceInfo))


class FaultEventRecord(ctypes.Structure):
    """A fault that occurred or cleared; ``deviceid`` is the logic id."""

    _fields_ = (
        ("event_id", c_uint32),
        ("deviceid", c_uint16),
        ("node_type", c_uint8),
        ("node_id", c_uint8),
        ("sub_node_type", c_uint8),
        ("sub_node_id", c_uint8),
        ("severity", c_uint8),
        ("assertion", c_uint8),
        ("event_serial_num", c_int),
        ("notify_serial_num", c_int),
        ("alarm_raised_time", c_uint64),
        ("event_name", c_char * 256),
        ("additional_info", c_char * 32),
        ("resv", c_uint8 * 32),
    )


class Event(ctypes.Structure):
    """What the driver passes to a subscriber; ``type`` 0 is a fault."""

    _fields_ = (("type", c_int), ("dms_event", FaultEventRecord))


class EventFilter(ctypes.Structure):
    """Selects events; all zero selects every event. Passed by value."""

    _fields_ = (
        ("filter_flag", c_uint64),
        ("event_id", c_uint32),
        ("severity", c_uint8),
        ("node_type", c_uint8),
        ("resv", c_uint8 * 32),
    )


EventHandler = ctypes.CFUNCTYPE(None, ctypes.POINTER(Event))
"""The type of a subscriber's callback, which the driver calls from a thread of its own."""


class ProcessInfo(ctypes.Structure):
    """A process that uses a chip, from ``dcmi_get_device_resource_info``; its memory in bytes."""

    _fields_ = (("proc_id", c_int), ("proc_mem_usage", c_ulong))
