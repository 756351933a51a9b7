"""The driver of real chips, through Huawei's C library ``libdcmi.so`` (spec/node-agent.md §3)."""

from device_plugin.driver.dcmi.driver import DcmiDriver
from device_plugin.driver.dcmi.errors import DcmiError

__all__ = ["DcmiDriver", "DcmiError"]
