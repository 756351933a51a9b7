"""The annotation ``baseDeviceInfos`` of a node: the chips and vNPUs that it has.

See docs/spec/node-report.md#node-annotations.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from ascend.chips import ChipSet, chip_name, chip_of_vnpu, chip_set, parse_chip_name
from ascend.errors import UNREADABLE, InvalidValue
from ascend.vnpus import Vnpu, parse_vnpu

BASE_DEVICE_INFOS = "baseDeviceInfos"
"""On a node, by the device plugin: the chips it has."""
_MOST_DEVICES: Final = 1_024
"""So many names are read, several times what a server has: who may write a Node must not keep the allocator busy."""


class ChipAddress(msgspec.Struct, frozen=True):
    """The network address of a chip, as an entry of ``baseDeviceInfos``.

    Attributes:
        ip: RoCE address; empty if it has none.
        super_device_id: the chip's id within its SuperPod, as the driver reports it.
    """

    ip: str = msgspec.field(default="", name="IP")
    super_device_id: int = msgspec.field(default=0, name="SuperDeviceID")


class BaseDeviceInfos(msgspec.Struct, frozen=True):
    """The chips of a node according to its annotation ``baseDeviceInfos``.

    Attributes:
        addresses: the whole chips, by physical id.
        withheld: chips that the node has, but that can't be given to pods as a whole: they are cut into vNPUs, or their
            entry is malformed.
        ignored: the names that are neither whole chips nor vNPUs: malformed entries, and devices of other kinds.
        vnpus: the vNPUs, in order.
    """

    addresses: Mapping[int, ChipAddress]
    withheld: ChipSet = 0
    ignored: tuple[str, ...] = ()
    vnpus: tuple[Vnpu, ...] = ()

    @property
    def chips(self) -> ChipSet:
        """The whole chips as a set."""
        return chip_set(self.addresses)


def write_base_device_infos(chips: Mapping[int, ChipAddress], vnpus: Iterable[str] = ()) -> str:
    """The node annotation ``baseDeviceInfos``: JSON from chip name to address, keys in string order.

    See docs/spec/node-report.md#node-annotations.

    Args:
        chips: the addresses of the whole chips, by physical id.
        vnpus: the names of the vNPUs.
    """
    infos = {chip_name(chip_id): address for chip_id, address in chips.items()}
    infos |= dict.fromkeys(vnpus, ChipAddress())
    return msgspec.json.encode(dict(sorted(infos.items()))).decode()


@lru_cache(maxsize=1)  # of each change of a Node it is read several times, in turn
def read_base_device_infos(text: str) -> BaseDeviceInfos:
    """The chips of a node from its annotation. An invalid entry loses at most its chip, never the node.

    Raises:
        InvalidValue: the annotation is not a JSON object of objects, or has too many of them.
    """
    try:
        entries = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        if len(entries) > _MOST_DEVICES:
            sentence = f"{len(entries):,} devices, more than {_MOST_DEVICES:,}"
            raise InvalidValue(f"annotation {BASE_DEVICE_INFOS}: {sentence}")
        try:
            addresses = msgspec.json.decode(text, type=dict[str, ChipAddress])
            return BaseDeviceInfos({parse_chip_name(name): address for name, address in sorted(addresses.items())})
        except (msgspec.ValidationError, InvalidValue):
            return _read_entries(entries)
    except UNREADABLE as error:
        raise InvalidValue(f"annotation {BASE_DEVICE_INFOS}: {error}") from error


def _read_entries(entries: Mapping[str, msgspec.Raw]) -> BaseDeviceInfos:
    addresses: dict[int, ChipAddress] = {}
    withheld: ChipSet = 0
    ignored: list[str] = []
    vnpus: list[Vnpu] = []
    for name, entry in sorted(entries.items()):
        chip = chip_of_vnpu(name)
        if chip is None:
            try:
                chip = parse_chip_name(name)
                addresses[chip] = msgspec.json.decode(entry, type=ChipAddress)
                continue
            except (*UNREADABLE, InvalidValue):
                pass
        if chip is not None:
            withheld |= 1 << chip
        try:
            vnpus.append(parse_vnpu(name))
        except InvalidValue:
            ignored.append(name)
    whole = {chip: chip_address for chip, chip_address in addresses.items() if not withheld >> chip & 1}
    return BaseDeviceInfos(whole, withheld, tuple(ignored), tuple(sorted(vnpus)))
