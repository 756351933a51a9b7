"""Accepts the connections of a port, and decides which one gives way at a limit.

A new connection is more likely that of a probe or of a scheduler than one that waits for its client for long. So at a
limit the connection gives way that has waited longest: of the client's own address, or of the address that has most of
them. One whose request is being answered never does. Whoever has few connections is served, whatever others do. An
address whose connections come too fast does not even get that.
"""

import asyncio
import errno
import ipaddress
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

from aiohttp import web

from ascend.serving.bodies import Bodies
from ascend.serving.connection import Connection, Phase
from ascend.serving.counts import Cause, Refusals
from ascend.serving.limits import Limits

Knows: TypeAlias = Callable[[Mapping[str, Any] | None], bool]

BACKLOG: Final = 4096
"""So many connections wait to be accepted; in a flood one that finds no place tries again only after a second."""
_AT_ONCE: Final = 32
"""How many connections are accepted in one turn of the event loop."""
_RETRY_S: Final = 0.1
"""The time until connections are accepted again after descriptors were exhausted."""
_FEW: Final = 2
_KEPT: Final = 0.25
"""The share of a port's connections that are kept, beyond the limit, for addresses that have few: a probe or a call has
a place even if all others are being answered."""
_NETWORK_BITS: Final = 64
"""Of an IPv6 address: one client has as many addresses as it likes in its network."""


class Port:
    """Serves on some listening sockets.

    Args:
        server: of an application.
        limits: its limits.
        refusals: counts who is refused.
        bodies: the bodies of the process.
        tls: the certificates; None for plain text.
        knows: whether a verified certificate, or None, is that of a client that comes before others.
    """

    def __init__(
        self,
        server: web.Server,
        limits: Limits,
        refusals: Refusals,
        bodies: Bodies,
        *,
        tls: ssl.SSLContext | None,
        knows: Knows,
    ) -> None:
        self.server = server
        self.knows = knows
        self.limits = limits
        self.refusals = refusals
        self.bodies = bodies
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._listening: tuple[socket.socket, ...] = ()
        self._strangers: dict[str, dict[Connection, None]] = {}
        self._verified: dict[Connection, None] = {}
        self._replaced: Counter[str] = Counter()
        self._tick: asyncio.TimerHandle | None = None
        self._paused: asyncio.TimerHandle | None = None

    def open(self, listening: Iterable[socket.socket]) -> None:
        """Accept connections from now on."""
        self._listening = tuple(listening)
        self._resume()

    def close(self) -> None:
        """Accept no more connections, and end those whose handshake is not done."""
        for timer in (self._tick, self._paused):
            if timer is not None:
                timer.cancel()
        for sock in self._listening:
            self._loop.remove_reader(sock)
            sock.close()
        self._listening = ()
        for connection in self._all():
            if connection.wire is None and connection.connecting is not None:
                connection.connecting.cancel()

    def met(self, connection: Connection) -> None:
        """Take over a connection whose handshake is done."""
        if not connection.verified:
            return
        self.forget(connection)
        if len(self._verified) >= self.limits.verified:
            connection.end(Cause.CONNECTIONS)
        else:
            self._verified[connection] = None
            self.refusals.connections.inc()

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer."""
        own = self._strangers.get(connection.address, {})
        if connection in own or connection in self._verified:
            own.pop(connection, None)
            self._verified.pop(connection, None)
            self.refusals.connections.dec()
        if not own:
            self._strangers.pop(connection.address, None)

    def _all(self) -> list[Connection]:
        return [*self._verified, *(stranger for own in self._strangers.values() for stranger in own)]

    def _resume(self) -> None:
        self._paused = None
        for sock in self._listening:
            self._loop.add_reader(sock, self._accept, sock)

    def _pause(self) -> None:
        for sock in self._listening:
            self._loop.remove_reader(sock)
        self._paused = self._loop.call_later(_RETRY_S, self._resume)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                taken, name = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}:
                    self._make_room(Cause.DESCRIPTORS, "", self._strangers.values())
                    self._pause()
                    return
                continue  # the client has gone
            self._admit(taken, _network(name[0]))

    def _admit(self, taken: socket.socket, address: str) -> None:
        own = self._strangers.get(address, {})
        full = None
        if taken.fileno() >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - self.limits.spare_descriptors:
            full = Cause.DESCRIPTORS
        elif len(own) >= self.limits.per_address:
            full = Cause.ADDRESS
        elif self._number() >= self.limits.connections * (1 if len(own) > _FEW else 1 + _KEPT):
            full = Cause.CONNECTIONS
        if full is not None:
            self._replaced[address] += 1
            fairly: Iterable[dict[Connection, None]] = (own,)
            if self._replaced[address] > self.limits.replaced:
                fairly = ()
            elif full is not Cause.ADDRESS:
                fairly = (other for other in self._strangers.values() if other is own or len(other) > len(own))
            if not self._make_room(full, address, fairly):
                taken.close()
                return
        taken.setblocking(False)  # noqa: FBT003 - the name says it
        taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(self, address)
        self._strangers.setdefault(address, {})[connection] = None
        self.refusals.connections.inc()
        connection.connecting = self._loop.create_task(self._connect(connection, taken))
        connection.connecting.add_done_callback(lambda _task: self._on_connection(connection, taken))
        if self._tick is None:
            self._tick = self._loop.call_later(self.limits.tick_s, self._sweep)

    def _number(self) -> int:
        return sum(map(len, self._strangers.values()))

    def _make_room(self, cause: Cause, address: str, among: Iterable[dict[Connection, None]]) -> bool:
        """End the longest waiting connection of the address with the most; return whether any was waiting."""
        for own in sorted(among, key=len, reverse=True):
            # In the order in which they came. One that was answered before is more likely a client's that means well.
            waiting = (link for link in own if link.waits_for_client)
            if (found := next((link for link in own if link.waits_for_client and not link.answered), None)) or (
                found := max(waiting, key=lambda link: link.ticks, default=None)
            ):
                found.end(cause)
                return True
        self.refusals.count(cause, address)
        return False

    async def _connect(self, connection: Connection, taken: socket.socket) -> None:
        timeout_s = self.limits.handshake_s if self._tls is not None else None
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, taken, ssl=self._tls, ssl_handshake_timeout=timeout_s
            )
        except OSError:  # also a failed handshake, and one that takes too long
            self.refusals.count(Cause.HANDSHAKE, connection.address)

    def _on_connection(self, connection: Connection, taken: socket.socket) -> None:
        connection.connecting = None
        if connection.phase is Phase.HANDSHAKE:
            self.forget(connection)
            taken.close()

    def _sweep(self) -> None:
        self._replaced.clear()
        every = self._all()
        for connection in every:
            connection.tick()
        self._tick = self._loop.call_later(self.limits.tick_s, self._sweep) if every else None


@lru_cache(4096)
def _network(host: str) -> str:
    """The address by which a client is counted."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _NETWORK_BITS), strict=False))
