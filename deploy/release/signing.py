"""Signatures with the releaser's key: a DSSE envelope for the provenance, a plain one for the checksums.

Keys are ECDSA on the curve P-256, as cosign's; openssl and cosign verify what is signed here.
"""

import json
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError
from securesystemslib.signer import (  # type: ignore[attr-defined] # public, but not in an __all__
    CryptoSigner,
    Signature,
    SSlibKey,
)

from deploy.release.errors import ReleaseError

_MAKE_ONE: Final = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256"


def load_signer(path: Path, password: str) -> CryptoSigner:
    """Read the private key.

    Raises:
        ReleaseError: it is none, of another kind, or the password is wrong.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), password.encode() or None)
    except (ValueError, TypeError) as error:
        raise ReleaseError(f"RELEASE_KEY={path}: {error} (RELEASE_KEY_PASSWORD is for an encrypted key)") from error
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise ReleaseError(f"RELEASE_KEY={path} is no ECDSA key on the curve P-256; `{_MAKE_ONE}` makes one")
    return CryptoSigner(key)


def load_public_key(path: Path) -> SSlibKey:
    """Read the public key.

    Raises:
        ReleaseError: it is none, or of another kind.
    """
    try:
        key = load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{path} is no public key in PEM: {error}") from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ReleaseError(f"{path} is no ECDSA key on the curve P-256")
    return SSlibKey.from_crypto(key)


def sign(signer: CryptoSigner, content: bytes) -> bytes:
    """Return the signature (DER), as `openssl dgst -sha256 -verify` reads it."""
    return bytes.fromhex(signer.sign(content).signature)


def envelop(signer: CryptoSigner, payload: bytes, payload_type: str) -> bytes:
    """Return a signed DSSE envelope, one line of JSON."""
    envelope = Envelope(payload, payload_type, {})
    envelope.sign(signer)
    return json.dumps(envelope.to_dict()).encode() + b"\n"


def verify(key: SSlibKey, content: bytes, signature: bytes) -> None:
    """Verify a signature.

    Raises:
        ReleaseError: it is not the key's, or not of this content.
    """
    try:
        key.verify_signature(Signature(key.keyid, signature.hex()), content)
    except (UnverifiedSignatureError, VerificationError) as error:
        raise ReleaseError("the signature is not this key's, or the content was changed") from error


def open_envelope(key: SSlibKey, content: bytes, payload_type: str) -> bytes:
    """Return the payload of an envelope that the key has signed.

    Raises:
        ReleaseError: it has not, or this is no envelope of that type.
    """
    try:
        envelope = Envelope.from_dict(json.loads(content))
        envelope.verify([key], 1)
    except (ValueError, KeyError, TypeError, VerificationError) as error:
        raise ReleaseError(f"no envelope that this key has signed: {error}") from error
    if envelope.payload_type != payload_type:
        raise ReleaseError(f"the envelope has {envelope.payload_type} instead of {payload_type}")
    return bytes(envelope.payload)
