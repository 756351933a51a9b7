"""A certificate authority for tests, made with openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALLOWED = "spiffe://cluster.local/ns/volcano-system/sa/scheduler"
"""The name of the only client that is allowed."""

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


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
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self._signed: dict[tuple[str, tuple[str, ...]], Pair] = {}
        self.cert = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-keyout", self.key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}")

    def sign(self, name: str, *alternatives: str) -> Pair:
        """Make a certificate with subject alternative names such as ``DNS:localhost``."""
        if (made := self._signed.get((name, alternatives))) is not None:
            return made
        stem = f"{self._name}-{name}-{len(self._signed)}"
        pair = self._signed[name, alternatives] = Pair(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        request, more = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".ext")
        more.write_text(f"subjectAltName={','.join(alternatives)}\n")
        _openssl("req", *_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.cert, "-CAkey", self.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", more, "-out", pair.cert)
        return pair


def settings_for(folder: Path, authority: Authority) -> dict[str, Any]:
    """The settings of an allocator with TLS; its files are in a directory."""
    served = authority.sign("served", "DNS:localhost", "IP:127.0.0.1")
    shutil.copy(served.cert, folder / "tls.crt")
    shutil.copy(served.key, folder / "tls.key")
    shutil.copy(authority.cert, folder / "ca.crt")
    return {
        "tls_cert_file": folder / "tls.crt",
        "tls_key_file": folder / "tls.key",
        "client_ca_file": folder / "ca.crt",
        "client_names": [ALLOWED],
    }


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
