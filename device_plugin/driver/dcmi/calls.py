"""The functions of the driver's library as methods with Python values (docs/spec/dcmi.md#functions).

A call releases Python's interpreter lock, so a call that hangs blocks only its own thread. The library is initialized
while no other call uses its table of cards, see ``CallGate``.
"""

import ctypes
import ipaddress
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_uint32, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from device_plugin.driver.dcmi.call_gate import CallGate
from device_plugin.driver.dcmi.errors import MISSING, DcmiError
from device_plugin.driver.dcmi.structures import (
    BoardInfo,
    ChipInfo,
    ChipInfoV2,
    EventFilter,
    EventHandler,
    HbmInfo,
    IpAddress,
    PcieInfo,
    ProcessInfo,
    SuperPodInfo,
)

Place: TypeAlias = tuple[int, int]
"""Card, and device on the card: the library's address of a chip."""

Observe: TypeAlias = Callable[[str, float], None]
"""Called with the name and the duration in seconds of every call, in the thread that made it."""

FATAL = 3
"""The health of a chip with a critical alarm, or that the driver can't communicate with."""

STARTED = 16
"""The boot status of a chip that has started."""

NOT_EXISTING = 0xFFFFFFFF
"""The health of a chip that the kernel does not list."""

MAX_CARDS = 64
MAX_ID = 255
MAX_CODES = 128
_MAX_DEVICES = 4
_TEXT = 256
_ROCE_PORT = 1
_V4, _V6 = 0, 1
_CHIP_COMMAND, _SUPER_POD = 12, 1
_EVERY = -1
_MAX_PROCESSES = 256
"""The library writes as many as there are without knowing the space: up to 64 (docs/spec/dcmi.md#functions)."""
_IN_BAND = 1

_INT, _UINT = ctypes.POINTER(c_int), ctypes.POINTER(c_uint32)
# Structures and texts that a call fills in are plain pointers here.
_PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "dcmi_init": (),
    "dcmi_get_dcmi_version": (c_char_p, c_uint32),
    "dcmi_get_card_list": (_INT, _INT, c_int),
    "dcmi_get_device_num_in_card": (c_int, _INT),
    "dcmi_get_device_logic_id": (_INT, c_int, c_int),
    "dcmi_get_device_phyid_from_logicid": (c_uint32, _UINT),
    "dcmi_get_device_chip_info_v2": (c_int, c_int, c_void_p),
    "dcmi_get_device_chip_info": (c_int, c_int, c_void_p),
    "dcmi_get_device_board_info": (c_int, c_int, c_void_p),
    "dcmi_get_device_hbm_info": (c_int, c_int, c_void_p),
    "dcmi_get_device_ip": (c_int, c_int, c_int, c_int, c_void_p, c_void_p),
    "dcmi_get_device_info": (c_int, c_int, c_int, c_uint32, c_void_p, _UINT),
    "dcmi_get_affinity_cpu_info_by_device_id": (c_int, c_int, c_char_p, _INT),
    "dcmi_get_device_pcie_info_v2": (c_int, c_int, c_void_p),
    "dcmi_get_device_health": (c_int, c_int, _UINT),
    "dcmi_get_device_errorcode_v2": (c_int, c_int, _INT, _UINT, c_uint32),
    "dcmi_set_multi_die_policy": (c_int,),
    "dcmi_subscribe_fault_event": (c_int, c_int, EventFilter, EventHandler),
    "dcmi_get_device_resource_info": (c_int, c_int, c_void_p, _INT),
    "dcmi_get_device_boot_status": (c_int, c_int, _INT),
    "dcmi_get_netdev_brother_device": (c_int, c_int, _INT),
    "dcmi_set_device_reset": (c_int, c_int, c_int),
}


@dataclass(frozen=True, slots=True)
class SuperPodPlace:
    """A chip's place in its SuperPod.

    Attributes:
        super_device_id: the chip's id within the SuperPod, unsigned.
        super_pod_id: -1 if the chip is in none.
        server_index: -1 if the server has none.
    """

    super_device_id: int
    super_pod_id: int
    server_index: int


class Calls:
    """The library's functions. Each raises ``DcmiError`` if the call fails or the library lacks the function.

    Args:
        library: the loaded library.
        observe: called after every call.
    """

    prototypes: ClassVar[dict[str, tuple[Any, ...]]] = _PROTOTYPES

    def __init__(self, library: ctypes.CDLL, observe: Observe) -> None:
        self._observe = observe
        self._gate = CallGate()
        self._functions: dict[str, Any] = {}
        for name, arguments in self.prototypes.items():
            try:
                function = getattr(library, name)
            except AttributeError:
                continue  # reported when it is called
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def init(self) -> None:
        """Initialize the library, before all other calls or again while none of them uses its table of cards."""
        with self._gate.alone():
            self._time_call("dcmi_init")

    def version(self) -> str:
        """Return the version of the driver."""
        text = ctypes.create_string_buffer(_TEXT)
        self._call("dcmi_get_dcmi_version", text, _TEXT)
        return text_of(text.value)

    def cards(self) -> list[int]:
        """Return the ids of the cards; that of a card that was not ready at the initialization is negative."""
        count, cards = c_int(), (c_int * MAX_CARDS)()
        self._call("dcmi_get_card_list", byref(count), cards, MAX_CARDS)
        return cards[: within(count.value, MAX_CARDS)]

    def devices(self, card: int) -> range:
        """Return the numbers of the chips on a card."""
        count = c_int()
        self._call("dcmi_get_device_num_in_card", card, byref(count), target=(card,))
        return range(within(count.value, _MAX_DEVICES))

    def logic_id(self, chip: Place) -> int:
        """Return the driver's running number of a chip."""
        logic = c_int(-1)
        self._call("dcmi_get_device_logic_id", byref(logic), *chip, target=chip)
        return logic.value

    def phy_id(self, logic: int, chip: tuple[int, ...] = ()) -> int:
        """Return the physical id of a logic id; ``chip`` is only named in the error.

        It is known to the kernel, also for a card that was not ready at the initialization.
        """
        phy = c_uint32(MAX_ID + 1)
        self._call("dcmi_get_device_phyid_from_logicid", logic, byref(phy), target=chip)
        return phy.value

    def chip_info(self, chip: Place) -> tuple[str, int]:
        """Return the chip's name, such as ``910B3``, and the number of its AI cores."""
        info = self._chip_info(chip)
        return text_of(info.chip_name), info.aicore_cnt

    def _chip_info(self, chip: Place) -> ChipInfo | ChipInfoV2:
        info: ChipInfo | ChipInfoV2 = ChipInfoV2()
        try:
            self._call("dcmi_get_device_chip_info_v2", *chip, byref(info), target=chip)
        except DcmiError:
            info = ChipInfo()
            self._call("dcmi_get_device_chip_info", *chip, byref(info), target=chip)
        return info

    def board_id(self, chip: Place) -> int:
        """Return the type of the chip's board."""
        info = BoardInfo()
        self._call("dcmi_get_device_board_info", *chip, byref(info), target=chip)
        return int(info.board_id)

    def hbm_mb(self, chip: Place) -> int:
        """Return the size of the chip's memory in MB."""
        info = HbmInfo()
        self._call("dcmi_get_device_hbm_info", *chip, byref(info), target=chip)
        return int(info.memory_size)

    def roce_address(self, chip: Place) -> str:
        """Return the address of the chip's RoCE port; empty if it has no usable one.

        IPv6 is only used if there is no IPv4 address. Link-local addresses (``fe80…``) can't reach other servers.
        """
        try:
            return self._address(chip, _V4) or self._address(chip, _V6)
        except DcmiError:
            return self._address(chip, _V6)

    def _address(self, chip: Place, kind: int) -> str:
        address, mask = IpAddress(ip_type=kind), IpAddress(ip_type=kind)
        self._call("dcmi_get_device_ip", *chip, _ROCE_PORT, 0, byref(address), byref(mask), target=chip)
        raw = address.u_addr.ip6 if address.ip_type == _V6 else address.u_addr.ip4
        found = ipaddress.ip_address(bytes(raw))
        return "" if found.is_unspecified or found.is_link_local else str(found)

    def super_pod(self, chip: Place) -> SuperPodPlace:
        """Return the chip's place in its SuperPod."""
        info = SuperPodInfo()
        self._device_info(chip, _CHIP_COMMAND, _SUPER_POD, info)
        return SuperPodPlace(info.sdid, c_int(info.super_pod_id).value, c_int(info.server_id).value)

    def _device_info(self, chip: Place, main: int, sub: int, info: ctypes.Structure) -> None:
        size = c_uint32(sizeof(info))
        self._call("dcmi_get_device_info", *chip, main, sub, byref(info), byref(size), target=chip)

    def cpu_affinity(self, chip: Place) -> str:
        """Return the CPUs close to the chip, such as ``0-23``."""
        text, length = ctypes.create_string_buffer(_TEXT), c_int(_TEXT)
        self._call("dcmi_get_affinity_cpu_info_by_device_id", *chip, text, byref(length), target=chip)
        return text_of(text.value)

    def pci_address(self, chip: Place) -> str:
        """Return the chip's PCI address, such as ``0000:c1:00.0``."""
        info = PcieInfo()
        self._call("dcmi_get_device_pcie_info_v2", *chip, byref(info), target=chip)
        return f"{info.domain & 0xFFFFFFFF:04x}:{info.bdf_busid:02x}:{info.bdf_deviceid:02x}.{info.bdf_funcid:x}"

    def health(self, chip: Place) -> int:
        """Return the driver's health value of a chip: 0 healthy to ``FATAL``, or ``NOT_EXISTING``.

        A chip that is being reset, or has not started yet, raises ``NOT_READY``.
        """
        health = c_uint32()
        self._call("dcmi_get_device_health", *chip, byref(health), target=chip)
        return health.value

    def fault_codes(self, chip: Place) -> tuple[int, ...]:
        """Return the fault codes of a chip without repetitions, in the driver's order."""
        count, codes = c_int(), (c_uint32 * MAX_CODES)()
        self._call("dcmi_get_device_errorcode_v2", *chip, byref(count), codes, MAX_CODES, target=chip)
        present = codes[: within(count.value, MAX_CODES)]
        return tuple(dict.fromkeys(code for code in present if code))

    def set_die_policy(self, policy: int) -> None:
        """Set whether containers get the dies of an A3 card together (0) or independently of each other (1)."""
        self._call("dcmi_set_multi_die_policy", policy)

    def subscribe(self, handler: "ctypes._FuncPointer") -> None:
        """Have ``handler``, an ``EventHandler``, called with the fault events of all chips.

        The library keeps it until the process ends, so the caller must keep it as well.
        """
        self._call("dcmi_subscribe_fault_event", _EVERY, _EVERY, EventFilter(), handler)

    def processes(self, chip: Place) -> tuple[int, ...]:
        """Return the ids of the processes that use the chip, on the host and in all containers."""
        found, count = (ProcessInfo * _MAX_PROCESSES)(), c_int()
        self._call("dcmi_get_device_resource_info", *chip, byref(found), byref(count), target=chip)
        return tuple(int(process_info.proc_id) for process_info in found[: within(count.value, _MAX_PROCESSES)])

    def boot_status(self, chip: Place) -> int:
        """Return how far the chip has started: ``STARTED`` once it has."""
        status = c_int()
        self._call("dcmi_get_device_boot_status", *chip, byref(status), target=chip)
        return status.value

    def brother_card(self, chip: Place) -> int:
        """Return the card that is reset together with the card of an A3 chip; -1 without a partner."""
        card = c_int(-1)
        self._call("dcmi_get_netdev_brother_device", *chip, byref(card), target=chip)
        return card.value

    def reset(self, chip: Place) -> None:
        """Reset a chip and the chips of its reset group, through the PCIe bus."""
        self._call("dcmi_set_device_reset", *chip, _IN_BAND, target=chip)

    def _call(self, name: str, *arguments: Any, target: tuple[int, ...] = ()) -> None:
        with self._gate.beside():
            self._time_call(name, *arguments, target=target)

    def _time_call(self, name: str, *arguments: Any, target: tuple[int, ...] = ()) -> None:
        function = self._functions.get(name)
        if function is None:
            raise DcmiError(name, MISSING, *target)
        started = time.perf_counter()
        try:
            code: int = function(*arguments)
        finally:
            self._observe(name, time.perf_counter() - started)
        if code:
            raise DcmiError(name, code, *target)


def text_of(raw: bytes) -> str:
    """Return a text of the library."""
    return raw.decode(errors="replace").strip()


def within(count: int, limit: int) -> int:
    """Return how many elements of an array the library has written."""
    # A count larger than the array is an error of the library; the array is as much as it can have written.
    return max(0, min(count, limit))
