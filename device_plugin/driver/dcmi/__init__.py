"""The driver of real chips, through Huawei's C library ``libdcmi.so`` (docs/spec/dcmi.md)."""

from device_plugin.driver.dcmi.driver import DcmiDriver
from device_plugin.driver.dcmi.errors import DcmiError

__all__ = ["DcmiDriver", "DcmiError"]
