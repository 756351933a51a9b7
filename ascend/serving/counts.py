"""Counts the connections and requests that a program refuses, and logs each cause from time to time."""

import time
from enum import StrEnum
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOG_EVERY_S: Final = 60.0
"""A flood is logged once in this time, for each cause."""


class Cause(StrEnum):
    """Why a connection or a request is refused or ended; the value is a label of the metric."""

    CONNECTIONS = "connections"
    """The port has as many connections as it may have."""
    ADDRESS = "address"
    """The client's address has as many connections as it may have."""
    DESCRIPTORS = "descriptors"
    """The process has no file descriptor left for it."""
    HANDSHAKE = "handshake"
    """The TLS handshake failed, or took too long."""
    HEADER = "header"
    """The request did not arrive in time, has too many headers, or is none."""
    WRITE = "write"
    """The client did not take the answer in time."""
    BODY_SIZE = "body_size"
    """The body is larger than its path allows, or its length is not given."""
    BODY_VALUES = "body_values"
    """The body has more JSON values than its path allows."""
    BODY_TIME = "body_time"
    """The body did not arrive in time."""
    BODY_BUDGET = "body_budget"
    """The process holds as many bytes of bodies as it may."""


class Refusals:
    """Counts them for a program.

    Args:
        prefix: of the names of the metrics.
        registry: where they are registered; nowhere if not given.
    """

    def __init__(self, prefix: str = "ascend", registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self._logged_s: dict[Cause, float] = {}
        self.total = Counter(
            f"{prefix}_http_refusals_total",
            "Connections and requests over HTTP that were refused or ended, by cause: connections, address (it has"
            " too many), descriptors, handshake, header, write (the answer was not taken in time), body_size,"
            " body_values (too many JSON values), body_time, body_budget (too many bytes of bodies at a time)",
            ["cause"],
            registry=registry,
        )
        self.connections = Gauge(f"{prefix}_http_connections", "Open connections over HTTP", registry=registry)

    def count(self, cause: Cause, address: str) -> None:
        """Count a refusal of a client at this address."""
        self.total.labels(cause=cause.value).inc()
        now_s = time.monotonic()
        if now_s - self._logged_s.get(cause, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[cause] = now_s
            log.warning("a client is refused; others may be, too", cause=cause.value, address=address)
