"""Verifies the files of a release: that they are all there, unchanged, and signed by a key."""

import hashlib
import json
from pathlib import Path
from typing import Final

from deploy.release.errors import ReleaseError
from deploy.release.provenance import PAYLOAD_TYPE, PREDICATE, STATEMENT
from deploy.release.signing import load_public_key, open_envelope, verify

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
ENVELOPE: Final = ".intoto.jsonl"
UNSIGNED: Final = ".intoto.UNSIGNED.json"


def checksum(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(folder: Path, key: Path | None) -> str:
    """Verify a release; return what was verified, in a sentence.

    Args:
        folder: with its files.
        key: the releaser's public key; `None` to check the checksums alone.

    Raises:
        ReleaseError: a file is missing, changed, not listed, or not signed by the key.
    """
    sums = folder / SUMS
    if not sums.is_file():
        raise ReleaseError(f"{folder} has no {SUMS}")
    content = sums.read_bytes()
    if key is not None:
        signature = folder / SIGNATURE
        if not signature.is_file():
            raise ReleaseError(f"{folder} IS NOT SIGNED: it has no {SIGNATURE}")
        try:
            verify(load_public_key(key), content, signature.read_bytes())
        except ReleaseError as error:
            raise ReleaseError(f"{SUMS}: {error}") from error
    listed = _listed(content.decode())
    present = {path.name for path in folder.iterdir()} - {SUMS, SIGNATURE}
    if present != set(listed):
        raise ReleaseError(f"missing: {sorted(set(listed) - present)}; not listed: {sorted(present - set(listed))}")
    for name, expected in listed.items():
        if checksum(folder / name) != expected:
            raise ReleaseError(f"{name} was changed: its checksum is another one than in {SUMS}")
    if key is None:
        return f"{len(listed)} files are unchanged since {SUMS} was written; WHO WROTE IT WAS NOT VERIFIED"
    _check_provenance(folder, listed, key)
    return f"{len(listed)} files are unchanged, and signed by the key"


def _listed(text: str) -> dict[str, str]:
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {pair[1]: pair[0] for pair in pairs}


def _check_provenance(folder: Path, listed: dict[str, str], key: Path) -> None:
    (path,) = folder.glob(f"*{ENVELOPE}")
    try:
        payload = open_envelope(load_public_key(key), path.read_bytes(), PAYLOAD_TYPE)
    except ReleaseError as error:
        raise ReleaseError(f"{path.name}: {error}") from error
    statement = json.loads(payload)
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
        raise ReleaseError(f"{path.name} is no provenance")
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    for name, expected in listed.items():
        if name != path.name and subjects.get(name) != expected:
            raise ReleaseError(f"{path.name} is not of this {name}")
