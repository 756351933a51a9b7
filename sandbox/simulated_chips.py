"""Writes the file of the device plugin's simulated driver, also while a plugin reads it."""

import os
import tempfile
import time
from pathlib import Path
from typing import Final

import msgspec

from ascend.products import Product
from device_plugin.driver.simulated import SimulatedChip, SimulatedServer

ANY_CHIP: Final = "910B"
"""The kind of chip of servers whose chips can be of several kinds."""


def full_server(product: Product) -> SimulatedServer:
    """Return a server of this product with all its chips, healthy."""
    chips = [SimulatedChip(chip_id, ip=f"10.20.0.{chip_id + 1}") for chip_id in range(product.chips)]
    return SimulatedServer(product.chip or ANY_CHIP, chips)


def save_server(server: SimulatedServer, path: Path) -> None:
    """Write the file atomically."""
    content = msgspec.json.format(msgspec.json.encode(server), indent=1)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as scratch:
        scratch.write(content)
    now_ns = time.time_ns()  # the kernel's own times are too coarse to distinguish two versions
    os.utime(scratch.name, ns=(now_ns, now_ns))
    Path(scratch.name).replace(path)
