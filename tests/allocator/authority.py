"""A certificate authority for tests, made with openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALLOWED = "spiffe://cluster.local/ns/volcano-system/sa/scheduler"
"""The name of the only client that is allowed."""

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_RSA_KEY = ("-newkey", "rsa:2048", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        folder: the directory of its files.
        name: its own name.
        days: how long it and its certificates are valid.
        rsa: whether its own key is RSA, in the format of PKCS #1.
    """

    def __init__(self, folder: Path, name: str = "authority", *, days: int = 2, rsa: bool = False) -> None:
        self._days = str(days)
        self._folder = folder
        self._name = name
        self._signed: dict[tuple[str, ...], Pair] = {}
        self.cert = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        named = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}")
        key = _RSA_KEY if rsa else _KEY
        _openssl("req", "-x509", *key, "-keyout", self.key, "-out", self.cert, "-days", self._days, *named)
        if rsa:
            _openssl("rsa", "-in", self.key, "-traditional", "-out", self.key)

    def sign(self, name: str, *alternatives: str, usage: str = "") -> Pair:
        """Make a certificate with subject alternative names such as ``DNS:localhost``, perhaps for one usage alone."""
        if (made := self._signed.get((name, usage, *alternatives))) is not None:
            return made
        stem = f"{self._name}-{name}-{len(self._signed)}"
        pair = self._signed[name, usage, *alternatives] = Pair(
            self._folder / f"{stem}.crt", self._folder / f"{stem}.key"
        )
        request, more = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".ext")
        more.write_text(f"subjectAltName={','.join(alternatives)}\n{f'extendedKeyUsage={usage}' if usage else ''}\n")
        _openssl("req", *_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.cert, "-CAkey", self.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signer, "-days", self._days, "-extfile", more, "-out", pair.cert)
        return pair


def settings_for(folder: Path, authority: Authority) -> dict[str, Any]:
    """The settings of an allocator that demands certificates of its clients; its files are in a directory."""
    served = authority.sign("served", "DNS:localhost", "IP:127.0.0.1")
    shutil.copy(served.cert, folder / "tls.crt")
    shutil.copy(served.key, folder / "tls.key")
    shutil.copy(authority.cert, folder / "ca.crt")
    return {
        "tls_cert_file": folder / "tls.crt",
        "tls_key_file": folder / "tls.key",
        "client_ca_file": folder / "ca.crt",
        "client_names": [ALLOWED],
        "webhook_address": "127.0.0.1:0",
        "probe_address": "127.0.0.1:0",
    }


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
