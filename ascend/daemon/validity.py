"""From when until when certificates are valid, read from their files or from what a client has presented."""

import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from ascend.errors import InvalidValue

RENEWED_S: Final = 30 * 86_400.0
"""How long before its end a certificate should have been renewed, at most."""
RENEWED_SHARE: Final = 1 / 4
"""The share of a shorter lifetime that counts instead: cert-manager renews after two thirds."""

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION: Final = 0xA0
_GENERALIZED_TIME: Final = 0x18
_LONG: Final = 0x80
_TWO_DIGIT_YEARS: Final = 50
"""From this on they are of the 20th century (RFC 5280, 4.1.2.5.1)."""


@dataclass(frozen=True, slots=True)
class Validity:
    """A certificate's lifetime, Unix seconds."""

    begins_s: float
    ends_s: float

    @property
    def renewal_s(self) -> float:
        """When it should have been renewed."""
        return self.ends_s - min(RENEWED_S, RENEWED_SHARE * (self.ends_s - self.begins_s))

    @classmethod
    def of_peer(cls, certificate: Mapping[str, Any]) -> Self:
        """Of a certificate as ``getpeercert`` returns it."""
        return cls(
            ssl.cert_time_to_seconds(certificate["notBefore"]), ssl.cert_time_to_seconds(certificate["notAfter"])
        )


def validity_in(path: Path) -> Validity:
    """Return the validity of the certificate in a PEM file that ends first.

    Raises:
        InvalidValue: the file can't be read, or has no certificate.
    """
    # The standard library has no public function for a certificate that nobody has presented, and a library for it
    # would be larger than this whole program.
    try:
        found = [_validity(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(path.read_text())]
    except (OSError, ValueError, IndexError, StopIteration) as error:
        raise InvalidValue(f"the certificate {path} can't be read: {error}") from error
    if not found:
        raise InvalidValue(f"there is no certificate in {path}")
    return min(found, key=lambda validity: validity.ends_s)


def _validity(der: bytes) -> Validity:
    """The validity in a certificate (RFC 5280, 4.1), after version (optional), serial number, signature and issuer."""
    _, certificate = next(_elements(der))
    _, signed = next(_elements(certificate))
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    begins, ends = _elements(fields[3])
    return Validity(_seconds(*begins), _seconds(*ends))


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a sequence in DER: their tags and contents."""
    at = 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & _LONG:
            size = length & ~_LONG
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        yield tag, der[at : at + length]
        at += length


def _seconds(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag != _GENERALIZED_TIME:
        text = f"{'19' if int(text[:2]) >= _TWO_DIGIT_YEARS else '20'}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
