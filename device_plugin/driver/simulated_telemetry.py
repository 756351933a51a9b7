"""What simulated chips measure: plausible values of an idle chip, each of which the file can replace."""

import time
from typing import Annotated

import msgspec

from ascend.errors import DriverError
from device_plugin.driver.telemetry import HBM, NotMeasured, Quantity, Reading, Values

Delay = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class SimulatedTelemetry(msgspec.Struct, forbid_unknown_fields=True):
    """The values of a chip in the file; null for one that the driver does not have.

    ``error`` makes each reading fail with this text, ``delay_s`` delays each.
    """

    utilization: float | None = 0.0
    overall_utilization: float | None = 0.0
    vector_utilization: float | None = 0.0
    hbm_used_memory: float | None = 3072.0
    hbm_utilization: float | None = 5.0
    hbm_temperature: float | None = 38.0
    hbm_bandwidth_utilization: float | None = 0.0
    temperature: float | None = 41.0
    power: float | None = 92.5
    voltage: float | None = 0.9
    aicore_current_freq: float | None = 1000.0
    link_up_num: float | None = 1.0
    error: str = ""
    delay_s: Delay = 0.0

    def values(self, reading: Reading, *, hbm_mb: int, is_healthy: bool, network_is_healthy: bool) -> Values:
        """Return the values of a reading.

        Args:
            reading: which values.
            hbm_mb: the chip's memory in MB.
            is_healthy: whether it has no fault.
            network_is_healthy: whether its network port has none.

        Raises:
            NotMeasured: they are null.
            DriverError: each reading fails.
        """
        time.sleep(self.delay_s)
        if self.error:
            raise DriverError(self.error)
        found: dict[Quantity, float | None] = {
            Quantity.UTILIZATION: self.utilization,
            Quantity.OVERALL_UTILIZATION: self.overall_utilization,
            Quantity.VECTOR_UTILIZATION: self.vector_utilization,
            Quantity.HBM_USED_MEMORY: self.hbm_used_memory,
            Quantity.HBM_TOTAL_MEMORY: float(hbm_mb),
            Quantity.HBM_UTILIZATION: self.hbm_utilization,
            Quantity.HBM_TEMPERATURE: self.hbm_temperature,
            Quantity.HBM_BANDWIDTH_UTILIZATION: self.hbm_bandwidth_utilization,
            Quantity.TEMPERATURE: self.temperature,
            Quantity.POWER: self.power,
            Quantity.VOLTAGE: self.voltage,
            Quantity.FREQUENCY: self.aicore_current_freq,
            Quantity.LINK_UPS: self.link_up_num,
            Quantity.HEALTH: float(is_healthy),
            Quantity.NETWORK: float(network_is_healthy),
        }
        wanted = HBM if reading is Reading.HBM else (Quantity(reading),)
        values = {quantity: value for quantity in wanted if (value := found[quantity]) is not None}
        if not values:
            raise NotMeasured(f"the simulated chip has no {reading}")
        return values
