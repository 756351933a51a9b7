"""Writes the licences of the installed Python packages as one text, as their licences ask of whoever passes them on.

    python3 notices.py FOLDER          the packages of that folder, such as an image's site-packages

Ends with 1 and the names of packages that state no licence.
"""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

_HEADER = """\
The Python packages in this image, and their licences.

The packages of the base have theirs in /usr/share/doc/<package>/copyright. The programs themselves are
ascend-affinity's, under the Apache License 2.0.
"""
_NAMES = ("licen", "copying", "notice", "authors")


def licence_of(package: Distribution) -> str:
    """Return what the package's metadata calls its licence, or an empty text."""
    stated = package.metadata.get("License-Expression") or ""
    classifiers = package.metadata.get_all("Classifier") or []
    named = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License ::")]
    # Older metadata may have the whole text there.
    short = (package.metadata.get("License") or "").strip().partition("\n")[0]
    return stated or ", ".join(named) or short


def texts_of(package: Distribution) -> list[tuple[str, str]]:
    """Return the names and texts of its licence files."""
    found = []
    for file in sorted(package.files or (), key=str):
        path = Path(file)
        inside = any(part.endswith(".dist-info") for part in path.parts[:-1])
        if inside and path.name.lower().startswith(_NAMES) and package.locate_file(file).is_file():
            found.append((path.name, package.locate_file(file).read_text(encoding="utf-8", errors="replace").strip()))
    return found


def notices(folder: str) -> tuple[str, list[str]]:
    """Return the text for all packages of a folder, and the names of those that state no licence."""
    packages = sorted(distributions(path=[folder]), key=lambda package: package.name.lower())
    parts, unstated = [_HEADER], []
    for package in packages:
        licence, texts = licence_of(package), texts_of(package)
        if not licence and not texts:
            unstated.append(package.name)
        parts.append(f"{'=' * 80}\n{package.name} {package.version}: {licence or 'see below'}\n")
        parts += [f"--- {name}\n\n{text}\n" for name, text in texts]
    return "\n".join(parts), unstated


if __name__ == "__main__":
    text, unstated = notices(sys.argv[1])
    if unstated:
        sys.exit(f"these packages state no licence: {', '.join(unstated)}")
    sys.stdout.write(text)
