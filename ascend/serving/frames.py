"""The frames of HTTP/2 (RFC 9113), and the headers of answers as literals (RFC 7541)."""

from enum import IntEnum
from functools import lru_cache
from http import HTTPStatus
from struct import Struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW: Final = 65_535
DEFAULT_FRAME: Final = 16_384
MOST_WINDOW: Final = (1 << 31) - 1
HEADER: Final = Struct(">HBBBI")
FIELDS: Final = Struct(">HI")


class FrameType(IntEnum):
    """The type of a frame."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class ConnectionSetting(IntEnum):
    """A setting of a connection."""

    HEADER_TABLE_SIZE = 1
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class BrokenError(Exception):
    """The connection can't continue.

    Args:
        code: what the client is told.
    """

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def unpadded(payload: bytes, skipped: int) -> bytes:
    """The payload of a padded frame, without its first fields."""
    if not payload or payload[0] > len(payload) - skipped:
        raise BrokenError(ErrorCode.PROTOCOL_ERROR)
    return payload[skipped : len(payload) - payload[0]]


@lru_cache(256)
def answer_block(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The headers of an answer, as literals."""
    first = b"\x88" if status == HTTPStatus.OK else b"\x08" + _text(str(status))
    return first + b"".join(b"\0" + _text(name.lower()) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    raw = text.encode("latin-1", "replace")
    size = len(raw)
    if size < 0x7F:  # noqa: PLR2004 - a prefix of seven bits
        return bytes([size]) + raw
    found, size = bytearray([0x7F]), size - 0x7F
    while size > 0x7F:  # noqa: PLR2004 - groups of seven bits
        found.append(size & 0x7F | 0x80)
        size >>= 7
    found.append(size)
    return bytes(found) + raw
