"""The limits within which a port serves HTTP, with the reasons for their values."""

from dataclasses import dataclass
from typing import Final

MOST_HEADERS: Final = 64
MOST_HEADER_BYTES: Final = 4096
"""The size of a header field, and of the request line; the clients of Kubernetes send a tenth of that."""

BODIES_BYTES: Final = 64 << 20
"""The most bytes of all bodies that a process holds at a time, over all ports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a port.

    Times are counted in ticks of the event loop, so that a stalled process does not blame its clients.

    Attributes:
        connections: the most connections of clients without the certificate of an allowed one.
        per_address: the most of these from one IPv4 address or one IPv6 network of 64 bits.
        verified: the most connections of clients with such a certificate.
        replaced: how many connections new ones of an address may replace in a tick; more cost too much time.
        spare_descriptors: the file descriptors that connections leave for other uses.
        handshake_s: the time for a TLS handshake, in seconds.
        header_s: the time until the first request, or a further one that has begun, has arrived up to its body.
        body_s: the time until a body has arrived.
        write_s: the time until the client has taken an answer.
        idle_s: the time between two requests; Go's clients drop an idle connection after 90 s, and should be the first.
        closing_s: the time until the client has taken what is sent before the connection ends.
        tick_s: the resolution of these times.
    """

    connections: int
    per_address: int
    verified: int = 4096
    replaced: int = 100
    spare_descriptors: int = 256
    handshake_s: float = 5.0
    header_s: float = 5.0
    body_s: float = 10.0
    write_s: float = 10.0
    idle_s: float = 120.0
    closing_s: float = 5.0
    tick_s: float = 1.0


PROBES: Final = Limits(connections=64, per_address=16, spare_descriptors=64)
"""For probes and metrics.

The kubelet has up to three probes of a program under way, each on a new connection; a few Prometheus servers keep one
each. Their descriptors are among those that other ports leave.
"""

CALLS: Final = Limits(connections=512, per_address=256)
"""For callers of which some have a certificate.

Over HTTP/1.1 each Binding of a gang that is held is a connection of its own, so schedulers, which have a certificate,
may have thousands. An API server sends at most 200 changing requests at a time by default
(``--max-mutating-requests-inflight``), and seldom has a certificate.
"""

OPEN_CALLS: Final = Limits(connections=16_384, per_address=16_384)
"""For callers without certificates: of these, one may be a scheduler with the thousands of Bindings of a gang."""
