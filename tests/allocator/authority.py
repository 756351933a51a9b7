"""A certificate authority for tests, made with openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates.

    Args:
        folder: where files go.
        name: its own name.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = name
        self.cert = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        _openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.cert, "-days", "2", "-subj", f"/CN={name}")

    def sign(self, name: str, *alternatives: str) -> Pair:
        """A certificate for subject alternative names such as ``DNS:localhost`` and ``IP:127.0.0.1``."""
        pair = Pair(self._folder / f"{self._name}-{name}.crt", self._folder / f"{self._name}-{name}.key")
        request, more = pair.cert.with_suffix(".csr"), pair.cert.with_suffix(".ext")
        more.write_text(f"subjectAltName={','.join(alternatives)}\n")
        _openssl("req", *_KEY, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signer, "-days", "2", "-extfile", more, "-out", pair.cert)
        return pair


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], capture_output=True, check=True)
