"""A client of HTTP/2, by an independent library."""

import asyncio
from dataclasses import dataclass, field

from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded, StreamReset

from tests.ascend.serving.callers import until


@dataclass
class Client:
    """A connection of the client.

    Attributes:
        statuses: of the answers, by stream.
        bodies: of the answers.
        ended: the streams whose answer is there to its end.
        reset: the streams that the server has reset.
        left: whether the server answers no further request.
        rest: what it sends all the same, which the library does not read.
        takes: whether it lets the server send more as it reads.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    http2: H2Connection = field(default_factory=H2Connection)
    statuses: dict[int, int] = field(default_factory=dict)
    bodies: dict[int, int] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    reset: set[int] = field(default_factory=set)
    left: bool = False
    rest: bytes = b""
    takes: bool = True

    def flush(self) -> None:
        self.writer.write(self.http2.data_to_send())

    def ask(self, path: str, body: bytes | None = None, *, length: int | None = None, is_whole: bool = True) -> int:
        """Send a request, or the beginning of one; return its stream."""
        stream = self.http2.get_next_available_stream_id()
        headers = [(":method", "GET" if body is None else "POST"), (":scheme", "https"), (":authority", "x")]
        headers.append((":path", path))
        if body is not None:
            headers.append(("content-length", str(len(body) if length is None else length)))
        self.http2.send_headers(stream, headers, end_stream=body is None)
        for at in range(0, len(body or b""), 16384):
            self.http2.send_data(stream, (body or b"")[at : at + 16384])
        if body is not None and is_whole:
            self.http2.end_stream(stream)
        self.flush()
        return stream

    async def read(self) -> None:
        """Take what the server sends until the connection ends."""
        while data := await self.reader.read(1 << 16):
            self.rest += data if self.left else b""
            for event in () if self.left else self.http2.receive_data(data):
                self._take(event)
            self.flush()
        self.left = True

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(stream_id=stream, headers=headers):
                fields = dict(headers)
                assert fields[b"server"] == b"ascend-affinity"
                self.statuses[stream] = int(fields[b":status"])
            case DataReceived(stream_id=stream, data=data, flow_controlled_length=length):
                self.bodies[stream] = self.bodies.get(stream, 0) + len(data)
                if self.takes:
                    self.http2.acknowledge_received_data(length, stream)
            case StreamEnded(stream_id=stream):
                self.ended.add(stream)
            case StreamReset(stream_id=stream):
                self.reset.add(stream)
            case ConnectionTerminated():
                self.left = True

    async def answered(self, *streams: int) -> list[int]:
        """Wait for answers; return their statuses."""
        await until(lambda: self.ended.issuperset(streams))
        return [self.statuses[stream] for stream in streams]
