"""A driver whose chips live in a JSON file: for demos, tests, and clusters without NPUs.

The file may be edited while the plugin runs::

    {"product": "910A",
     "delay_s": 0.0,
     "error": "",
     "chips": [{"id": 0, "health": "Healthy", "network_health": "Healthy", "fault_codes": [],
                "ip": "10.20.0.1", "super_device_id": 0, "delay_s": 0.0}, …]}

``delay_s`` makes the driver (or a chip) slow to answer, ``error`` makes it fail with that text.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ascend.annotations import UNKNOWN, ChipAddress
from ascend.chips import MAX_CHIP_ID
from ascend.errors import DriverError
from ascend.products import PRODUCTS, Product
from device_plugin.driver import ChipReading, Reading

Health = Literal["Healthy", "Unhealthy"]
Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]
SuperDeviceId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]

_CODE = re.compile(r"[0-9A-Fa-f]{1,16}")


class SimulatedChip(msgspec.Struct, forbid_unknown_fields=True):
    """A chip in the file."""

    id: int
    health: Health = "Healthy"
    network_health: Health = "Healthy"
    fault_codes: list[str] = []
    ip: str = ""
    super_device_id: SuperDeviceId = 0
    delay_s: Delay = 0.0


class SimulatedServer(msgspec.Struct, forbid_unknown_fields=True):
    """The file's content."""

    product: str
    chips: list[SimulatedChip]
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN
    delay_s: Delay = 0.0
    error: str = ""

    @classmethod
    def full(cls, product: Product) -> "SimulatedServer":
        """A server of this product with all its chips healthy."""
        return cls(
            product.name, [SimulatedChip(chip_id, ip=f"10.20.0.{chip_id + 1}") for chip_id in range(product.chips)]
        )

    def save(self, path: Path) -> None:
        """Write the file in one step, so that no reader sees half of it."""
        content = msgspec.json.format(msgspec.json.encode(self), indent=1)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as scratch:
            scratch.write(content)
        Path(scratch.name).replace(path)


class SimulatedDriver:
    """Reads the file at every call.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Reading:
        """The file's content as a reading.

        Raises:
            DriverError: the file is missing or malformed, or simulates a failure.
        """
        try:
            server = msgspec.json.decode(self._path.read_bytes(), type=SimulatedServer)
        except (OSError, ValueError) as error:  # a ValueError is msgspec's, or what is not UTF-8
            raise DriverError(f"simulated chips in {self._path}: {error}") from error
        if (product := PRODUCTS.get(server.product)) is None:
            raise DriverError(
                f"simulated chips in {self._path}: product {server.product!r} is not one of {[*PRODUCTS]}"
            )
        time.sleep(server.delay_s + sum(chip.delay_s for chip in server.chips))
        if server.error:
            raise DriverError(server.error)
        chips: dict[int, ChipReading] = {}
        for chip in server.chips:
            if chip.id in chips:
                raise DriverError(f"simulated chips in {self._path}: id {chip.id} occurs twice")
            chips[chip.id] = self._reading(chip)
        return Reading(product, tuple(chips[each] for each in sorted(chips)), server.super_pod_id, server.server_index)

    def _reading(self, chip: SimulatedChip) -> ChipReading:
        if not 0 <= chip.id <= MAX_CHIP_ID:
            raise DriverError(f"simulated chips in {self._path}: id {chip.id} is not within 0..{MAX_CHIP_ID}")
        for code in chip.fault_codes:
            if _CODE.fullmatch(code) is None:
                raise DriverError(f"simulated chips in {self._path}: chip {chip.id}: fault code {code!r} is not hex")
        return ChipReading(
            chip_id=chip.id,
            healthy=chip.health == "Healthy",
            network_healthy=chip.network_health == "Healthy",
            fault_codes=tuple(code.upper() for code in chip.fault_codes),
            address=ChipAddress(chip.ip, chip.super_device_id),
        )
