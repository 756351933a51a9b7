"""The return codes of the driver's library (docs/spec/dcmi.md#error-codes)."""

from ascend.errors import DriverError

NOT_READY = -8012
"""The chip does not answer: it has dropped off the bus."""

UNSUPPORTED = -8255
"""This driver, or this kind of chip, does not support the call."""

MISSING = -99998
"""Not one of the library's: the library has no such function."""

UNSUPPORTED_CODES = frozenset({UNSUPPORTED, MISSING})
"""With these, every call of the function fails."""

MEANINGS: dict[int, str] = {
    -8001: "invalid parameter",
    -8002: "not permitted",
    -8003: "a memory operation failed",
    -8004: "a checked C function failed",
    -8005: "internal error",
    -8006: "timed out",
    -8007: "invalid device id",
    -8008: "no such device",
    -8009: "the ioctl failed",
    -8010: "a message could not be sent",
    -8011: "no answer to a message",
    NOT_READY: "the device is not ready",
    -8013: "not supported in a container",
    -8014: "a file operation failed",
    -8015: "the reset failed",
    -8016: "aborted",
    -8017: "an upgrade is under way",
    -8020: "in use by another process",
    -8022: "wrong partition",
    -8023: "not configured",
    UNSUPPORTED: "not supported",
    MISSING: "this driver has no such function",
}


class DcmiError(DriverError):
    """A call of the driver's library failed.

    Args:
        call: the function.
        code: its return code, or ``MISSING``.
        card_id: the card it was called for; None if for none.
        device_id: the device on the card; None if for none.
    """

    def __init__(self, call: str, code: int, card_id: int | None = None, device_id: int | None = None) -> None:
        target = "" if card_id is None else f" of card {card_id}"
        if device_id is not None:
            target += f" device {device_id}"
        super().__init__(f"{call}{target}: {code} ({MEANINGS.get(code, 'unknown error')})")
        self.code = code

    @property
    def permanent(self) -> bool:
        """Whether every call of this function fails: the driver does not support it."""
        return self.code in UNSUPPORTED_CODES
