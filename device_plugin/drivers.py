"""The driver that the settings name."""

from collections.abc import Callable

from device_plugin.driver import Driver
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.settings import DriverSettings

Observe = Callable[[str, float], None]
"""Told the name and the seconds of a call of the driver, from the thread that made it."""


def make_driver(settings: DriverSettings, observe: Observe = lambda _call, _took_s: None) -> Driver:
    """The driver; it has not been asked anything yet."""
    if settings.driver == "simulated":
        return SimulatedDriver(settings.simulated_state)
    from device_plugin.driver.dcmi import DcmiDriver

    return DcmiDriver(settings.dcmi_library, observe=observe)
