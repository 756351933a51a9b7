"""The library's functions that measure a chip or identify it (docs/spec/telemetry.md#driver-calls)."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_uint32, c_void_p
from typing import Any, ClassVar, Final, TypeVar

from device_plugin.driver.dcmi.calls import Calls, Place, text_of
from device_plugin.driver.dcmi.errors import NOT_READY, DcmiError
from device_plugin.driver.dcmi.structures import DieId, HbmInfo
from device_plugin.driver.telemetry import Label, NotMeasured, Quantity, Reading, Values

T = TypeVar("T")

_VDIE = 1
_PER_WATT, _PER_VOLT = 10, 100
_AI_CORE_FREQUENCY = 7
_NETWORK_OK, _NETWORK_INIT = 0, 6

_KINDS: Final = {
    Reading.UTILIZATION: 2,
    Reading.HBM_UTILIZATION: 6,
    Reading.VECTOR_UTILIZATION: 12,
    Reading.OVERALL_UTILIZATION: 13,
}
"""What ``dcmi_get_device_utilization_rate`` is asked for."""

_INT, _UINT = ctypes.POINTER(c_int), ctypes.POINTER(c_uint32)


class MeasuringCalls(Calls):
    """The functions of ``Calls``, and those that measure."""

    prototypes: ClassVar[dict[str, tuple[Any, ...]]] = Calls.prototypes | {
        "dcmi_get_device_utilization_rate": (c_int, c_int, c_int, _UINT),
        "dcmi_get_device_temperature": (c_int, c_int, _INT),
        "dcmi_get_device_power_info": (c_int, c_int, _INT),
        "dcmi_get_device_voltage": (c_int, c_int, _UINT),
        "dcmi_get_device_frequency": (c_int, c_int, c_int, _UINT),
        "dcmi_get_device_network_health": (c_int, c_int, _UINT),
        "dcmi_get_device_die_v2": (c_int, c_int, c_int, c_void_p),
    }

    def measure(self, chip: Place, reading: Reading) -> Values:
        """Return the values of a reading.

        Raises:
            NotMeasured: the library does not have them.
            DcmiError: the call failed.
        """
        return _unless_missing(lambda: self._measure(chip, reading))

    def describe(self, chip: Place, label: Label) -> str:
        """Return what identifies a chip, spelt as the reference does.

        Raises:
            NotMeasured: the library does not have it.
            DcmiError: the call failed.
        """
        match label:
            case Label.MODEL_NAME:
                return _unless_missing(lambda: self._model_name(chip))
            case Label.VDIE_ID:
                return _unless_missing(lambda: self._die_id(chip))
            case Label.PCIE_BUS_INFO:
                return _unless_missing(lambda: self.pci_address(chip).upper())

    def _measure(self, chip: Place, reading: Reading) -> Values:
        match reading:
            case Reading.HBM:
                return self._hbm(chip)
            case Reading.TEMPERATURE:
                value = self._number("dcmi_get_device_temperature", chip)
            case Reading.POWER:
                value = self._number("dcmi_get_device_power_info", chip) / _PER_WATT
            case Reading.VOLTAGE:
                value = self._read_unsigned("dcmi_get_device_voltage", chip) / _PER_VOLT
            case Reading.FREQUENCY:
                value = self._read_unsigned("dcmi_get_device_frequency", chip, _AI_CORE_FREQUENCY)
            case Reading.HEALTH:
                value = self._health(chip)
            case Reading.NETWORK:
                value = self._network(chip)
            case _:
                value = self._read_unsigned("dcmi_get_device_utilization_rate", chip, _KINDS[reading])
        return {Quantity(reading): value}

    def _hbm(self, chip: Place) -> Values:
        info = HbmInfo()
        self._call("dcmi_get_device_hbm_info", *chip, byref(info), target=chip)
        return {
            Quantity.HBM_USED_MEMORY: float(info.memory_usage),
            Quantity.HBM_TOTAL_MEMORY: float(info.memory_size),
            Quantity.HBM_TEMPERATURE: float(info.temp),
            Quantity.HBM_BANDWIDTH_UTILIZATION: float(info.bandwidth_util_rate),
        }

    def _number(self, function: str, chip: Place) -> float:
        number = c_int()
        self._call(function, *chip, byref(number), target=chip)
        return float(number.value)

    def _read_unsigned(self, function: str, chip: Place, *kind: int) -> float:
        number = c_uint32()
        self._call(function, *chip, *kind, byref(number), target=chip)
        return float(number.value)

    def _health(self, chip: Place) -> float:
        try:
            return float(self.health(chip) == 0)
        except DcmiError as error:
            if error.code == NOT_READY:
                return 0.0  # it has dropped off the bus
            raise

    def _network(self, chip: Place) -> float:
        return float(self._read_unsigned("dcmi_get_device_network_health", chip) in {_NETWORK_OK, _NETWORK_INIT})

    def _model_name(self, chip: Place) -> str:
        info = self._chip_info(chip)
        parts = [text_of(field) for field in (info.chip_name, info.chip_type, info.chip_ver)]
        return "-".join(parts) if any(parts) else ""

    def _die_id(self, chip: Place) -> str:
        die = DieId()
        self._call("dcmi_get_device_die_v2", *chip, _VDIE, byref(die), target=chip)
        return "-".join(f"{part:08X}" for part in die.soc_die)


def _unless_missing(call: Callable[[], T]) -> T:
    try:
        return call()
    except DcmiError as error:
        if error.permanent:
            raise NotMeasured(error.message) from error
        raise
