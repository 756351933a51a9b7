"""The paths of a daemon's certificates: a setting, which needs no library to be read."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The paths of certificates; PEM.

    Attributes:
        cert: our certificate with its intermediate certificates.
        key: its private key.
        client_ca: the authority that client certificates are verified by; None if clients need no certificate.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All paths."""
        return (self.cert, self.key) if self.client_ca is None else (self.cert, self.key, self.client_ca)
