"""The certificate a daemon shows and the authority it believes, taken over from their files while it serves.

cert-manager, the kubelet (for a mounted Secret) or an operator replaces the files some time before the old certificate
ends. Connections that are open go on; every new one gets what is newest. Files that don't fit each other, because only
half of them have been replaced, are not taken over: the old ones stay until the others come.

A resumed session would be a client that nobody verifies: of its certificate the server only remembers that it was good.
So each set of files has a context of its own, whose memory goes with it, and no tickets, which outlive a certificate.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import grpc
import structlog

from ascend.errors import InvalidValue

log = structlog.get_logger()

POLL_S = 2.0

_Identity = tuple[tuple[int, int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificates are; PEM.

    Attributes:
        cert: our certificate, with the ones between it and its authority.
        key: its key.
        client_ca: the authority that vouches for clients; None where clients need no certificate.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)


class Certificates:
    """What is in the files, for HTTP and for gRPC.

    Args:
        files: where.
        poll_s: time between looks at them; one ``stat`` each.

    Attributes:
        http: for an HTTP server. Where there is an authority for clients, they may show a certificate, and one that it
            does not vouch for ends the connection; who must show one is the application's to say.

    Raises:
        InvalidValue: they can't be used.
    """

    def __init__(self, files: TlsFiles, *, poll_s: float = POLL_S) -> None:
        self._files = files
        self._poll_s = poll_s
        self._seen = self._identity()
        self._load()
        self.http: ssl.SSLContext = _Newest(lambda: self._current)

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server: with an authority for clients, all of them must show a certificate."""
        required = self._files.client_ca is not None
        return grpc.dynamic_ssl_server_credentials(self._grpc, self._fetch, require_client_authentication=required)

    async def run(self) -> None:
        """Take changed files over until cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            seen = self._identity()
            if seen == self._seen:
                continue
            self._seen = seen
            try:
                self._load()
            except InvalidValue as error:
                log.warning("the certificates have changed and can't be used, the old ones stay", error=error.message)
            else:
                log.info("took over new certificates", files=[str(path) for path in self._files.paths])

    def _load(self) -> None:
        self._current = _context(self._files)
        files = self._files
        try:
            roots = files.client_ca.read_bytes() if files.client_ca is not None else None
            pair = (files.key.read_bytes(), files.cert.read_bytes())
        except OSError as error:
            raise InvalidValue(f"the certificates can't be read: {error}") from error
        self._grpc = grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _fetch(self) -> grpc.ServerCertificateConfiguration:
        # ResolvedRequest in every handshake, in a thread of gRPC's.
        return self._grpc

    def _identity(self) -> _Identity:
        return tuple(_identity(path) for path in self._files.paths)


class _Newest(ssl.SSLContext):
    """What an event loop makes its connections from: each from the context that is newest then.

    To change the context of a connection in its handshake (``sni_callback``) comes too late: by then OpenSSL has looked
    its session up in the old one.
    """

    _newest: Callable[[], ssl.SSLContext]

    def __new__(cls, newest: Callable[[], ssl.SSLContext]) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._newest = newest
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - as the standard library has it
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """As the newest context does."""
        return self._newest().wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
    except OSError as error:  # an SSLError is one
        names = ", ".join(str(path) for path in files.paths)
        raise InvalidValue(f"the certificates can't be used ({names}): {error}") from error
    return context


def _identity(path: Path) -> tuple[int, int, int, int] | None:
    # Follows links: the kubelet changes a mounted Secret by pointing a link elsewhere.
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
