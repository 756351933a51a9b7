"""The types of devices that the plugin offers, each as a resource of its own: whole chips, and the vNPUs of each size.

A device is a number, so that a set of devices is an integer, as for chips. The number of a whole chip is its physical
id. That of a vNPU has its id and that of its chip, so that its name needs nothing else (docs/spec/vnpu.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ascend.chips import NAME_PREFIX, RESOURCE, ChipSet, chip_ids, chip_name, chip_set, parse_chip_name, parse_names
from ascend.errors import InvalidValue
from ascend.grammar import count
from ascend.pod_devices import MAX_LIST_ENTRIES
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import Vnpu, parse_vnpu, resource_of, suffix_of

_DOMAIN: Final = RESOURCE.removesuffix(NAME_PREFIX.rstrip("-"))
_CHIP_BITS: Final = 8
_CORE_DIGITS: Final = 5

MAX_VDEV_ID: Final = 2047
"""The largest id of a vNPU that is served: the driver gives out ids from 100, and MindCluster takes 1024 at most."""


@dataclass(frozen=True, slots=True, order=True)
class DeviceType:
    """A type of devices.

    Attributes:
        suffix: the size of its vNPUs, such as ``2c``; empty for whole chips.
    """

    suffix: str = ""

    @property
    def resource(self) -> str:
        """The resource of this type of devices; also the name of the pod annotation with the pod's devices."""
        return resource_of(self.suffix) if self.suffix else RESOURCE

    @property
    def name(self) -> str:
        """``Ascend910``, or ``Ascend910-2c`` for vNPUs."""
        return self.resource.removeprefix(_DOMAIN)

    def device_name(self, number: int) -> str:
        """The name of a device on the wire."""
        return self.vnpu(number).name if self.suffix else chip_name(number)

    def vnpu(self, number: int) -> Vnpu:
        """The vNPU with a number."""
        return Vnpu(self.suffix, number & ((1 << _CHIP_BITS) - 1), number >> _CHIP_BITS)

    def chip(self, number: int) -> int:
        """The physical id of the chip that a device is, or is a part of."""
        return self.vnpu(number).chip if self.suffix else number

    def chips(self, devices: ChipSet) -> ChipSet:
        """The chips that devices are, or are parts of."""
        return chip_set(map(self.chip, chip_ids(devices))) if self.suffix else devices

    def parse(self, name: str) -> int:
        """The number of the device with a name.

        Raises:
            InvalidValue: no device of this type has such a name.
        """
        if not self.suffix:
            return parse_chip_name(name)
        vnpu = parse_vnpu(name)
        if vnpu.suffix != self.suffix or vnpu.vdev_id > MAX_VDEV_ID:
            raise InvalidValue(f"{name!r} is not the name of a vNPU of {self.resource}")
        return number_of(vnpu)

    def parse_list(self, text: str, field: str) -> tuple[int, ...]:
        """The numbers in a comma-joined list of names, in its order.

        Raises:
            InvalidValue: the list is malformed, or too long.
        """
        if text.count(",") >= MAX_LIST_ENTRIES:
            raise InvalidValue(f"{field}: more than {MAX_LIST_ENTRIES} {self.nouns}")
        if not self.suffix:
            return parse_names(text, field)
        try:
            numbers = tuple(map(self.parse, text.split(","))) if text else ()
        except InvalidValue as error:
            raise InvalidValue(f"{field}: {error}") from None
        if len(set(numbers)) != len(numbers):
            raise InvalidValue(f"{field}: {text!r} names a vNPU twice")
        return numbers

    def join(self, numbers: Iterable[int]) -> str:
        """A comma-joined list of names in the order given."""
        return ",".join(map(self.device_name, numbers))

    def join_sorted(self, numbers: Iterable[int]) -> str:
        """A comma-joined list of names in string order, as ``ascend.chips.join_names_sorted``."""
        return ",".join(sorted(map(self.device_name, numbers)))

    @property
    def nouns(self) -> str:
        """What its devices are called."""
        return "vNPUs" if self.suffix else "chips"

    def count(self, number: int) -> str:
        """A number of devices with its noun: ``1 chip``, ``2 chips``."""
        return count(number, f"vNPU of {self.name}", f"vNPUs of {self.name}") if self.suffix else count(number, "chip")


@dataclass(frozen=True, slots=True)
class CoreType(DeviceType):
    """AI cores, of which vNPUs are cut when a pod starts: the kubelet counts them, and they belong to no chip."""

    @property
    def resource(self) -> str:
        """The resource of AI cores; also the name of the pod annotation with template and chip."""
        return RESOURCE_CORES

    def device_name(self, number: int) -> str:
        """The name of an AI core on the wire."""
        return f"{self.name}-{number}"

    def parse(self, name: str) -> int:
        """The number of the AI core with a name.

        Raises:
            InvalidValue: no AI core has such a name.
        """
        number = name.removeprefix(f"{self.name}-")
        if number == name or len(number) > _CORE_DIGITS or not (number.isascii() and number.isdigit()):
            raise InvalidValue(f"{name!r} is not the name of an AI core")
        return int(number)

    @property
    def nouns(self) -> str:
        """What they are called."""
        return "AI cores"

    def count(self, number: int) -> str:
        """A number of them with the noun."""
        return count(number, "AI core")


WHOLE_CHIPS: Final = DeviceType()
"""The type of whole chips."""

CORES: Final = CoreType()
"""The type of AI cores, on nodes on which chips are cut when pods start."""


def type_of(resource: str) -> DeviceType | None:
    """The type of the devices of a resource; None if they are not this plugin's."""
    if resource in {WHOLE_CHIPS.resource, CORES.resource}:
        return CORES if resource == CORES.resource else WHOLE_CHIPS
    suffix = suffix_of(resource)
    return DeviceType(suffix) if suffix is not None else None


def number_of(vnpu: Vnpu) -> int:
    """The number of a vNPU within its type."""
    return vnpu.vdev_id << _CHIP_BITS | vnpu.chip
