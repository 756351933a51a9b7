"""A daemon's certificate and the authority of its clients, reloaded from their files while it serves.

cert-manager, the kubelet (for a mounted Secret) or an operator replaces the files before the old certificate expires.
Open connections continue; new ones use the newest files. Files that don't match, because only some have been replaced,
are not loaded: the old ones stay until the others arrive.

On session resumption a server does not verify the client's certificate again. So each set of files has a context of its
own, whose session cache ends with it, and no session tickets, which would outlive the certificate.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import grpc
import structlog

from ascend.daemon.settings import POLL_S, FileIdentity, TlsFiles, file_identity
from ascend.daemon.validity import Validity, validity_in
from ascend.errors import InvalidValue

log = structlog.get_logger()


class Certificates:
    """The current certificates, for HTTP and for gRPC servers.

    Args:
        files: their paths.
        poll_s: seconds between checks of the files; each costs one ``stat`` per file.

    Raises:
        InvalidValue: the files can't be used.
    """

    def __init__(self, files: TlsFiles, *, poll_s: float = POLL_S) -> None:
        self._files = files
        self._poll_s = poll_s
        self._seen = self._identity()
        self._load()

    @property
    def validities(self) -> Mapping[str, Validity]:
        """The lifetimes of the certificate (``server``) and of the authority for clients (``client_ca``)."""
        return self._validities

    def http(self, clients: ssl.VerifyMode) -> ssl.SSLContext:
        """Return a context for an HTTP server.

        Args:
            clients: whether a client must present a certificate (``CERT_REQUIRED``), may (``CERT_OPTIONAL``), or is not
                asked. Without an authority for clients none is asked. One that can't be verified ends the connection.
        """
        return _Newest(lambda: self._current[clients])

    def grpc_credentials(self) -> grpc.ServerCredentials:
        """Return credentials for a gRPC server; with an authority for clients, each must present a certificate."""
        required = self._files.client_ca is not None
        # gRPC calls the function in every handshake, from a thread of its own.
        return grpc.dynamic_ssl_server_credentials(
            self._grpc, lambda: self._grpc, require_client_authentication=required
        )

    async def run(self) -> None:
        """Load changed files until cancelled; those that can't be used are tried again."""
        problem = ""
        while True:
            await asyncio.sleep(self._poll_s)
            seen = self._identity()
            if seen == self._seen:
                continue
            try:
                self._load()
            except InvalidValue as error:
                # Not only files that don't match: there may be no descriptor to read them with.
                if problem != error.message:
                    log.warning("changed certificates can't be used, the old ones stay", error=error.message)
                problem = error.message
            else:
                self._seen, problem = seen, ""
                log.info("loaded changed certificates", files=[str(path) for path in self._files.paths])

    def _load(self) -> None:
        files = self._files
        contexts = {clients: _context(files, clients) for clients in ssl.VerifyMode}
        try:
            roots = files.client_ca.read_bytes() if files.client_ca is not None else None
            pair = (files.key.read_bytes(), files.cert.read_bytes())
        except OSError as error:
            raise InvalidValue(f"the certificates can't be read: {error}") from error
        validities = dict(_validities(files))
        # All at once: what can't be read as a whole is not used in parts.
        self._current, self._validities = contexts, validities
        self._grpc = grpc.ssl_server_certificate_configuration([pair], root_certificates=roots)

    def _identity(self) -> tuple[FileIdentity, ...]:
        return tuple(map(file_identity, self._files.paths))


def _validities(files: TlsFiles) -> Iterator[tuple[str, Validity]]:
    for what, path in (("server", files.cert), ("client_ca", files.client_ca)):
        if path is not None:
            try:
                yield what, validity_in(path)
            except InvalidValue as error:  # OpenSSL can use it all the same
                log.warning("it is not known when a certificate expires", certificate=what, error=error.message)


class _Newest(ssl.SSLContext):
    """A context that makes each connection from the newest context.

    Changing a connection's context in its handshake (``sni_callback``) would be too late: by then OpenSSL has looked up
    the session in the old one.
    """

    _newest: Callable[[], ssl.SSLContext]

    def __new__(cls, newest: Callable[[], ssl.SSLContext]) -> Self:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made._newest = newest
        return made

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Wrap with the newest context."""
        return self._newest().wrap_bio(*args, **options)


def _context(files: TlsFiles, clients: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca is not None:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = clients
            if clients is ssl.CERT_REQUIRED:
                context.set_alpn_protocols(["h2", "http/1.1"])  # HTTP/2 is not for strangers
    except OSError as error:  # an SSLError is one
        names = ", ".join(str(path) for path in files.paths)
        raise InvalidValue(f"the certificates can't be used ({names}): {error}") from error
    return context
