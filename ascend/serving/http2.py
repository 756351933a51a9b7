"""The server's side of a connection over HTTP/2: the part that short requests and answers need (RFC 9113). No I/O.

No push, no priorities, and no indexed headers in answers. What can't come from a client that means well ends the
connection.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from struct import error, unpack_from
from typing import ClassVar, Final, Protocol

from hpack import Decoder, HPACKError

from ascend.serving.frames import (
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    FIELDS,
    HEADER,
    MOST_WINDOW,
    PREFACE,
    BrokenError,
    ConnectionSetting,
    ErrorCode,
    FrameType,
    answer_block,
    unpadded,
)
from ascend.serving.limits import MOST_HEADER_BYTES

MOST_STREAMS: Final = 32_768
"""The most requests of a connection that are answered at a time: the held Bindings of a gang are some of them."""
BODY_BYTES: Final = 16 << 20
"""The most bytes of a body."""
FRAME_BYTES: Final = 256 << 10
"""The most bytes of a frame: the names of thousands of nodes are in one."""

_BLOCKS, _BLOCK_BYTES = 256, 1024
"""How many blocks of headers are kept with what they say, and the longest of them."""
_CREDIT: Final = 8 << 20
"""After so many bytes the client may send so many more."""
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20


@dataclass(slots=True, eq=False)
class Stream:
    """A request and its answer.

    Attributes:
        number: that of the stream.
        headers: of the request, with those that begin with a colon.
        body: what has arrived of the body.
        is_complete: whether all of it has.
        is_awaited: whether the request is answered only then; else the body is not taken.
        window: how many bytes of the answer the client takes now.
        unsent: the rest of the answer.
    """

    number: int
    headers: Mapping[str, str]
    window: int
    body: bytearray = field(default_factory=bytearray)
    is_complete: bool = False
    is_awaited: bool = True
    unsent: memoryview | bytes = b""


class Receiver(Protocol):
    """What is called with the requests of a connection."""

    def awaits(self) -> bool:
        """Whether a request is answered only after its body has arrived; else the body is not taken."""

    def grown(self, stream: Stream, size: int) -> bool:
        """So many bytes of a body have arrived; return whether they are taken."""

    def on_request(self, stream: Stream) -> None:
        """A request has arrived as far as it is awaited."""

    def on_end(self, stream: Stream) -> None:
        """The stream of a request has ended; it may have been answered."""


class Http2:
    """The server's side of a connection over HTTP/2.

    Args:
        receiver: called with requests.

    Attributes:
        out: what is to be sent.
        streams: the requests that have not been answered to the end.
        waiting: those of them whose answer waits for the client to take more.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._decoder = Decoder(max_header_list_size=2 * MOST_HEADER_BYTES)
        self._blocks: dict[bytes, Mapping[str, str]] = {}
        self._pending = bytearray()
        self._preface = PREFACE
        self._block: tuple[int, int, bytearray] | None = None
        self._last = 0
        self._taken = 0
        self._window = self._stream_window = DEFAULT_WINDOW
        self._frame_bytes = DEFAULT_FRAME
        self._table = b"\x20"  # answers use no table, whatever size the client allows
        self.out = bytearray()
        self.streams: dict[int, Stream] = {}
        self.waiting: dict[int, Stream] = {}
        settings = {
            # Without a table equal headers have equal bytes, which are decoded once: in Python that takes long.
            ConnectionSetting.HEADER_TABLE_SIZE: 0,
            ConnectionSetting.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
            ConnectionSetting.INITIAL_WINDOW_SIZE: BODY_BYTES,
            ConnectionSetting.MAX_FRAME_SIZE: FRAME_BYTES,
            ConnectionSetting.MAX_HEADER_LIST_SIZE: 2 * MOST_HEADER_BYTES,
        }
        self._send(FrameType.SETTINGS, 0, 0, b"".join(FIELDS.pack(*item) for item in settings.items()))
        self._send(FrameType.WINDOW_UPDATE, 0, 0, (2 * _CREDIT).to_bytes(4, "big"))

    def receive(self, data: bytes) -> None:
        """Take bytes of the client.

        Raises:
            BrokenError: the connection can't continue.
        """
        pending = self._pending
        pending += data
        at = 0
        if self._preface:
            if not self._preface.startswith(pending[: len(self._preface)]):
                raise BrokenError(ErrorCode.PROTOCOL_ERROR)
            if len(pending) < len(self._preface):
                return
            at, self._preface = len(self._preface), b""
        try:
            while len(pending) - at >= HEADER.size:
                high, low, kind, flags, number = HEADER.unpack_from(pending, at)
                length = high << 8 | low
                if length > FRAME_BYTES:
                    raise BrokenError(ErrorCode.FRAME_SIZE_ERROR)
                start = at + HEADER.size
                if len(pending) - start < length:
                    break
                at = start + length
                if self._block is not None and kind != FrameType.CONTINUATION:
                    raise BrokenError(ErrorCode.PROTOCOL_ERROR)
                if (take := self._TAKEN.get(kind)) is not None:
                    take(self, flags, number & MOST_WINDOW, bytes(pending[start:at]))
        except error as short:  # a frame that is too short for its fields
            raise BrokenError(ErrorCode.FRAME_SIZE_ERROR) from short
        finally:
            del pending[:at]

    def answer(self, stream: Stream, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Answer a request, unless its stream has ended."""
        if self.streams.get(stream.number) is not stream:
            return
        block = self._table + answer_block(status, tuple(headers.items()))
        self._table = b""
        stream.unsent = memoryview(body)
        self._send(FrameType.HEADERS, _END_HEADERS | (0 if body else _END_STREAM), stream.number, block)
        if body:
            self._send_more(stream)
        else:
            self._end(stream)

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream without an answer."""
        self._send(FrameType.RST_STREAM, 0, stream.number, code.to_bytes(4, "big"))
        self._forget(stream)

    def leave(self, code: ErrorCode = ErrorCode.NO_ERROR) -> None:
        """Tell the client that no further request is answered on this connection."""
        self._send(FrameType.GOAWAY, 0, 0, self._last.to_bytes(4, "big") + code.to_bytes(4, "big"))

    def _send(self, kind: FrameType, flags: int, number: int, payload: bytes | memoryview) -> None:
        length = len(payload)
        self.out += HEADER.pack(length >> 8, length & 0xFF, kind, flags, number)
        self.out += payload

    def _send_more(self, stream: Stream) -> None:
        while stream.unsent:
            size = min(len(stream.unsent), self._frame_bytes, stream.window, self._window)
            if size <= 0:
                self.waiting[stream.number] = stream
                return
            part, stream.unsent = stream.unsent[:size], stream.unsent[size:]
            stream.window -= size
            self._window -= size
            self._send(FrameType.DATA, 0 if stream.unsent else _END_STREAM, stream.number, part)
        self._end(stream)

    def _end(self, stream: Stream) -> None:
        if stream.is_complete:
            self._forget(stream)
        else:
            self.reset(stream, ErrorCode.NO_ERROR)

    def _forget(self, stream: Stream) -> None:
        self.waiting.pop(stream.number, None)
        if self.streams.pop(stream.number, None) is not None:
            self._receiver.on_end(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= _CREDIT:
            self._send(FrameType.WINDOW_UPDATE, 0, 0, self._taken.to_bytes(4, "big"))
            self._taken = 0
        if flags & _PADDED:
            payload = unpadded(payload, 1)
        stream = self._of(number)
        if stream is None:
            return
        if stream.is_complete:
            raise BrokenError(ErrorCode.PROTOCOL_ERROR)
        if not stream.is_awaited:
            stream.is_complete = bool(flags & _END_STREAM)
        elif len(stream.body) + len(payload) > BODY_BYTES:
            self.reset(stream, ErrorCode.FLOW_CONTROL_ERROR)
        elif not self._receiver.grown(stream, len(payload)):
            self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
        else:
            stream.body += payload
            if flags & _END_STREAM:
                self._complete(stream)

    def _of(self, number: int) -> Stream | None:
        """The stream with a number; None if it has ended."""
        if number > self._last or not number & 1:
            raise BrokenError(ErrorCode.PROTOCOL_ERROR)
        return self.streams.get(number)

    def _complete(self, stream: Stream) -> None:
        stream.is_complete = True
        length = stream.headers.get("content-length")
        if length is not None and length != str(len(stream.body)):
            self.reset(stream, ErrorCode.PROTOCOL_ERROR)
        else:
            self._receiver.on_request(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & (_PADDED | _PRIORITY):
            skipped = (1 if flags & _PADDED else 0) + (5 if flags & _PRIORITY else 0)
            payload = unpadded(payload, skipped) if flags & _PADDED else payload[skipped:]
        self._block = number, flags, bytearray()
        self._on_continuation(flags, number, payload)

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None or self._block[0] != number:
            raise BrokenError(ErrorCode.PROTOCOL_ERROR)
        _, first, block = self._block
        block += payload
        if len(block) > 2 * MOST_HEADER_BYTES:
            raise BrokenError(ErrorCode.ENHANCE_YOUR_CALM)
        if flags & _END_HEADERS:
            self._block = None
            self._begin(number, bytes(block), is_whole=bool(first & _END_STREAM))

    def _begin(self, number: int, block: bytes, *, is_whole: bool) -> None:
        headers = self._decode_block(block)
        if number <= self._last:
            self._on_trailers(self._of(number), is_whole=is_whole)
            return
        self._last = number
        self._of(number)
        stream = Stream(number, headers, self._stream_window, is_awaited=self._receiver.awaits())
        self.streams[number] = stream
        if len(self.streams) > MOST_STREAMS:
            self.reset(stream, ErrorCode.REFUSED_STREAM)
        elif not headers.get(":path", "").startswith("/") or not headers.get(":method"):
            self.reset(stream, ErrorCode.PROTOCOL_ERROR)
        elif not stream.is_awaited:
            stream.is_complete = is_whole
            self._receiver.on_request(stream)
        elif is_whole:
            self._complete(stream)

    def _decode_block(self, block: bytes) -> Mapping[str, str]:
        """The headers of a block."""
        table = self._decoder.header_table
        has_table = bool(table.maxsize)
        if not has_table and (known := self._blocks.get(block)) is not None:
            return known
        try:
            headers = {str(name): str(value) for name, value in self._decoder.decode(block)}
        except (HPACKError, UnicodeDecodeError) as broken:
            raise BrokenError(ErrorCode.COMPRESSION_ERROR) from broken
        # Only a block that neither uses a table nor changes it always says the same.
        if not (has_table or table.maxsize) and len(block) <= _BLOCK_BYTES:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            self._blocks[block] = headers
        return headers

    def _on_trailers(self, stream: Stream | None, *, is_whole: bool) -> None:
        """Headers after a body end it; their fields are ignored."""
        if stream is None:
            return
        if stream.is_complete or not is_whole:
            raise BrokenError(ErrorCode.PROTOCOL_ERROR)
        if stream.is_awaited:
            self._complete(stream)
        else:
            stream.is_complete = True

    def _reset(self, _flags: int, number: int, _payload: bytes) -> None:
        if (stream := self._of(number)) is not None:
            self._forget(stream)

    def _settings(self, flags: int, _number: int, payload: bytes) -> None:
        if flags & _ACK:
            return
        for which, value in FIELDS.iter_unpack(payload):
            if which == ConnectionSetting.INITIAL_WINDOW_SIZE:
                if value > MOST_WINDOW:
                    raise BrokenError(ErrorCode.FLOW_CONTROL_ERROR)
                for stream in self.streams.values():
                    stream.window += value - self._stream_window
                self._stream_window = value
            elif which == ConnectionSetting.MAX_FRAME_SIZE:
                self._frame_bytes = min(max(value, DEFAULT_FRAME), FRAME_BYTES)
        self._send(FrameType.SETTINGS, _ACK, 0, b"")
        self._resume()

    def _on_push(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise BrokenError(ErrorCode.PROTOCOL_ERROR)

    def _ping(self, flags: int, _number: int, payload: bytes) -> None:
        if len(payload) != 8:  # noqa: PLR2004 - its size
            raise BrokenError(ErrorCode.FRAME_SIZE_ERROR)
        if not flags & _ACK:
            self._send(FrameType.PING, _ACK, 0, payload)

    def _on_credit(self, _flags: int, number: int, payload: bytes) -> None:
        size = unpack_from(">I", payload)[0] & MOST_WINDOW
        stream = self._of(number) if number else None
        if stream is not None:
            stream.window += size
        elif not number:
            self._window += size
        if not size or max(self._window, stream.window if stream is not None else 0) > MOST_WINDOW:
            raise BrokenError(ErrorCode.FLOW_CONTROL_ERROR)
        self._resume()

    def _resume(self) -> None:
        for stream in tuple(self.waiting.values()):
            self._send_more(stream)

    _TAKEN: ClassVar[Mapping[int, Callable[["Http2", int, int, bytes], None]]] = {
        FrameType.DATA: _data,
        FrameType.HEADERS: _headers,
        FrameType.RST_STREAM: _reset,
        FrameType.SETTINGS: _settings,
        FrameType.PUSH_PROMISE: _on_push,
        FrameType.PING: _ping,
        FrameType.WINDOW_UPDATE: _on_credit,
        FrameType.CONTINUATION: _on_continuation,
    }
    """What is done with each kind of frame; all others are ignored."""
