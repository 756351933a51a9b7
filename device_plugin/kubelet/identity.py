"""Verifies the kubelet by its certificate before a token goes to it.

By default the certificate must be the one that lies in the kubelet's own folder of certificates, whoever signed it:
``kubelet-server-current.pem``, which the cluster's CA signs (``serverTLSBootstrap``), or ``kubelet.crt``, which the
kubelet signs itself. Where there is none (a kubelet with ``--tls-cert-file``), the CA of the cluster must have signed
it for the address that is called. The files are read again if they don't fit: the kubelet renews them.
"""

import asyncio
import base64
import hashlib
import re
import ssl
from asyncio import Transport
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

import aiohttp

from ascend.errors import Unreachable
from ascend.kube.identity import trusting

CLUSTER_CA: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")
FILES: Final = ("kubelet-server-current.pem", "kubelet.crt")
"""The kubelet's certificates for serving, in its ``--cert-dir``; the first one also has its key."""

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")

Proof: TypeAlias = aiohttp.Fingerprint | ssl.SSLContext
"""What aiohttp verifies a server by, before it sends a request."""

REFUSALS: Final = (
    aiohttp.ServerFingerprintMismatch,
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ClientConnectorSSLError,
)
"""How aiohttp says that a server has not proved who it is."""


class Unverified(Unreachable):
    """Nothing proves that the kubelet listens there, so nothing was sent."""


class KubeletIdentity:
    """Knows by what the kubelet is verified.

    Args:
        cert_dir: the kubelet's folder of certificates (``--cert-dir``).
        ca_file: the CA that must have signed the kubelet's certificate for its address, instead of all that; None for
            the default.
        insecure: whether the kubelet is not verified at all.
    """

    def __init__(self, cert_dir: Path, ca_file: str | None = None, *, insecure: bool = False) -> None:
        self._cert_dir = cert_dir
        self._ca_file = ca_file
        self.insecure = insecure
        self._proofs: tuple[Proof, ...] | None = None
        self.problem: str | None = None
        """Why the kubelet could not be verified the last time; None if it was, or if nobody has asked yet."""

    async def proofs(self) -> tuple[Proof, ...]:
        """Return the ways to verify the kubelet, the most likely first; a single success is enough.

        Raises:
            Unverified: by nothing; the message says what is missing.
        """
        if self._proofs is None:
            self._proofs = await asyncio.to_thread(self._read)
        if not self._proofs:
            self._proofs = None  # there may be a certificate the next time
            raise Unverified(
                f"there is no certificate of the kubelet in {self._cert_dir}, and no CA of the cluster"
                if self._ca_file is None
                else f"{self._ca_file} has no CA by which the kubelet could be verified"
            )
        return self._proofs

    def forget(self) -> None:
        """Read the files again before the next verification: the kubelet may have renewed its certificate."""
        self._proofs = None

    def _read(self) -> tuple[Proof, ...]:
        if self._ca_file is not None:
            return tuple(_authorities(Path(self._ca_file)))
        pinned = frozenset(digest for name in FILES for digest in _own_certificate(self._cert_dir / name))
        return (*((_Pinned(pinned),) if pinned else ()), *_authorities(CLUSTER_CA))


class _Pinned(aiohttp.Fingerprint):
    """One of several certificates."""

    def __init__(self, digests: frozenset[bytes]) -> None:
        super().__init__(min(digests))
        self._digests = digests

    def check(self, transport: Transport) -> None:
        """Raise if the server has shown none of them.

        Raises:
            ServerFingerprintMismatch: it has not.
        """
        connection = transport.get_extra_info("ssl_object")
        if connection is None:
            return  # it is not encrypted, so no token is sent
        got = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").digest()
        if got not in self._digests:
            host, port, *_ = transport.get_extra_info("peername")
            raise aiohttp.ServerFingerprintMismatch(self.fingerprint, got, host, port)


def _own_certificate(file: Path) -> Iterable[bytes]:
    """Yield the digest of the first certificate of a file, which is the server's; none if it has none."""
    try:
        found = _CERTIFICATE.search(file.read_bytes())
        if found is not None:
            yield hashlib.sha256(base64.b64decode(found[1])).digest()
    except (OSError, ValueError):
        return


def _authorities(file: Path) -> Iterable[ssl.SSLContext]:
    """Yield what verifies certificates by the CAs of a file; nothing if it has none."""
    # Not without a file, which would read all authorities that the machine trusts.
    try:
        yield trusting(file)
    except (OSError, ssl.SSLError):
        return
