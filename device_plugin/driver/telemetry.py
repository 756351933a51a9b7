"""What a driver can measure on a chip for its metrics (docs/spec/telemetry.md#driver-calls)."""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, ChipType, Driver


class Reading(StrEnum):
    """A call of the driver about a chip, or a run of the driver's tool."""

    UTILIZATION = "utilization"
    OVERALL_UTILIZATION = "overall_utilization"
    VECTOR_UTILIZATION = "vector_utilization"
    HBM = "hbm"
    HBM_UTILIZATION = "hbm_utilization"
    TEMPERATURE = "temperature"
    POWER = "power"
    VOLTAGE = "voltage"
    FREQUENCY = "aicore_current_freq"
    HEALTH = "health_status"
    LINK_UPS = "link_up_num"
    NETWORK = "network_status"


class Label(StrEnum):
    """The labels that identify a chip in metrics; the driver is called once for each label."""

    MODEL_NAME = "model_name"
    VDIE_ID = "vdie_id"
    PCIE_BUS_INFO = "pcie_bus_info"


class Quantity(StrEnum):
    """A value of a reading, with its unit."""

    UTILIZATION = "utilization"  # percent, of the AI cores
    OVERALL_UTILIZATION = "overall_utilization"  # percent
    VECTOR_UTILIZATION = "vector_utilization"  # percent
    HBM_USED_MEMORY = "hbm_used_memory"  # MB
    HBM_TOTAL_MEMORY = "hbm_total_memory"  # MB
    HBM_UTILIZATION = "hbm_utilization"  # percent
    HBM_TEMPERATURE = "hbm_temperature"  # °C
    HBM_BANDWIDTH_UTILIZATION = "hbm_bandwidth_utilization"  # percent
    TEMPERATURE = "temperature"  # °C
    POWER = "power"  # W
    VOLTAGE = "voltage"  # V
    FREQUENCY = "aicore_current_freq"  # MHz, of the AI cores
    HEALTH = "health_status"  # 1 healthy, 0 not
    LINK_UPS = "link_up_num"  # times
    NETWORK = "network_status"  # 1 healthy, 0 not


Values: TypeAlias = Mapping[Quantity, float]

HBM: Final = (
    Quantity.HBM_USED_MEMORY,
    Quantity.HBM_TOTAL_MEMORY,
    Quantity.HBM_TEMPERATURE,
    Quantity.HBM_BANDWIDTH_UTILIZATION,
)
"""The values of ``Reading.HBM``; each other reading has one value, of the same name."""

NOT_ON: Final[Mapping[Reading, frozenset[ChipType]]] = {
    Reading.OVERALL_UTILIZATION: frozenset({"Ascend910"}),
    Reading.VECTOR_UTILIZATION: frozenset({"Ascend910"}),
}
"""The types of chips that do not have a reading; their driver may answer all the same."""

_PERCENT, _CELSIUS, _FLAG = (0.0, 100.0), (-100.0, 250.0), (0.0, 1.0)
_MB = (0.0, float(1 << 24))
LIMITS: Final[Mapping[Quantity, tuple[float, float]]] = {
    Quantity.UTILIZATION: _PERCENT,
    Quantity.OVERALL_UTILIZATION: _PERCENT,
    Quantity.VECTOR_UTILIZATION: _PERCENT,
    Quantity.HBM_USED_MEMORY: _MB,
    Quantity.HBM_TOTAL_MEMORY: (1.0, _MB[1]),
    Quantity.HBM_UTILIZATION: _PERCENT,
    Quantity.HBM_TEMPERATURE: _CELSIUS,
    Quantity.HBM_BANDWIDTH_UTILIZATION: _PERCENT,
    Quantity.TEMPERATURE: _CELSIUS,
    Quantity.POWER: (0.0, 10_000.0),
    Quantity.VOLTAGE: (0.0, 100.0),
    Quantity.FREQUENCY: (0.0, 100_000.0),
    Quantity.HEALTH: _FLAG,
    Quantity.LINK_UPS: (0.0, float(1 << 53)),
    Quantity.NETWORK: _FLAG,
}
"""The least and the largest value that a chip can have."""


class NotMeasured(DriverError):
    """This driver does not have the value, for this chip or for any."""


class MeasuringDriver(Driver, Protocol):
    """A driver that can measure. Its calls may block or hang as well, and run in any thread."""

    def measure(self, chip: ChipFacts, reading: Reading) -> Values:
        """Return the values of a reading, as the driver reports them.

        Raises:
            NotMeasured: this driver does not have them.
            DriverError: the chip can't be read; the message says why.
        """

    def describe(self, chip: ChipFacts, label: Label) -> str:
        """Return what identifies the chip.

        Raises:
            NotMeasured: this driver does not have it.
            DriverError: the chip can't be read; the message says why.
        """


def plausible(values: Values) -> tuple[Values, str]:
    """Return the values that a chip can have, and a sentence about the others; empty if there are none."""
    kept = dict(values)
    problems = []
    for quantity, value in values.items():
        low, high = LIMITS[quantity]
        if not (math.isfinite(value) and low <= value <= high):
            del kept[quantity]
            problems.append(f"{quantity} is {value:g}, not within {low:g}..{high:g}")
    used, total = kept.get(Quantity.HBM_USED_MEMORY), kept.get(Quantity.HBM_TOTAL_MEMORY)
    if used is not None and total is not None and used > total:
        del kept[Quantity.HBM_USED_MEMORY], kept[Quantity.HBM_TOTAL_MEMORY]
        problems.append(f"{used:g} MB of {total:g} MB are used")
    return kept, "; ".join(problems)
