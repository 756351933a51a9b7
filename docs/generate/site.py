"""The command ``python -m docs.generate.site [--check]``: the documents as a static site in ``dist/site``.

The site has the folders of the repository, so a link leads to the same file in both. ``--check`` builds the site in a
temporary folder: a broken link or anchor, a page that the navigation lacks, or something that a browser would load from
another host ends the command with status 1.
"""

import hashlib
import logging
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from docs.generate.pages import ROOT

_SCRIPTS: Final = {
    "mermaid.js": (
        "mermaid@11.17.2",
        "package/dist/mermaid.min.js",
        "581ed7d74bd9048d0e3a91363927d72ef22942d7722546b27f7cc29e35390eb8",
    ),
    "iframe-worker.js": (
        "iframe-worker@1.0.4",
        "package/shim/index.js",
        "e8e412dbcfea9b7e31b5ffa288d7b6035915e714c542f4176a0cdbe262fc9609",
    ),
}
"""The scripts of the site that the theme has not: the npm package, the file in it, and its SHA-256."""
_FENCE: Final = re.compile(r" *(```|~~~)")
_ITEM: Final = re.compile(r"([*-]|\d+\.) +")
_LINK: Final = re.compile(r"\]\(([^()\s#:]+)")
_LOADED: Final = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\ssrc=[\"']?(?:https?:)?//[^>]*|<link\b[^>]*//[^>]*>")


def main() -> None:
    """Build the site; with ``--check`` in a temporary folder and without scripts from npm."""
    check = sys.argv[1:] == ["--check"]
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        site = Path(folder, "site") if check else ROOT / "dist" / "site"
        _collect(source)
        if not check:
            if shutil.which("npm") is None:
                sys.exit("npm is missing: two scripts of the site come from its registry")
            for name in _SCRIPTS:
                (source / name).write_bytes(_script(name, Path(folder)))
        config = load_config(str(ROOT / "docs/mkdocs.yml"), docs_dir=str(source), site_dir=str(site), strict=True)
        try:
            build(config)
        except Abort as problems:
            sys.exit(str(problems))
        foreign = [f"{page.relative_to(site)}: {tag}" for page in site.rglob("*.html") for tag in _foreign(page)]
        if foreign:
            sys.exit("\n".join(["loaded from another host:", *foreign]))
    if not check:
        sys.stdout.write(f"{site.relative_to(ROOT)}/index.html: open it, or serve the folder\n")


def _collect(source: Path) -> None:
    """Put the documents, and the files that they link to, into a folder as they are in the repository."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    targets = {(page.parent / link).resolve() for page in pages for link in _LINK.findall(page.read_text())}
    for path in {*pages, *targets, ROOT / "docs" / "site.css"}:
        if path.is_file():
            copy = source / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                copy.write_text("\n".join(indented(path.read_text().splitlines())))
            else:
                copy.symlink_to(path)


def indented(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a page with four spaces for each level of its lists, as Python-Markdown needs them.

    In the pages, as in CommonMark, what belongs to an item is below the first letter of its text. Python-Markdown also
    needs a blank line between the paragraphs of an item and the next item.
    """
    columns: list[int] = []
    in_code = has_paragraphs = False
    before = ""
    for line in lines:
        column = len(line) - len(line.lstrip())
        while line and not in_code and columns and column < columns[-1]:
            columns.pop()
        text = line[columns[-1] :] if columns else line
        item = None if in_code else _ITEM.match(text)
        if item is not None:
            if before and has_paragraphs:
                yield ""
            has_paragraphs = False
        elif not line:
            has_paragraphs = bool(columns)
        yield " " * (4 * len(columns)) + text if text else ""
        before = line
        if _FENCE.match(text):
            in_code = not in_code
        elif item is not None:
            columns.append((columns[-1] if columns else 0) + item.end())


def _script(name: str, folder: Path) -> bytes:
    """Return a script of ``_SCRIPTS``.

    Raises:
        ValueError: the package has another content than the table says.
    """
    package, file, digest = _SCRIPTS[name]
    packed = subprocess.run(  # noqa: S603 (a name of the table)
        ["npm", "pack", "--silent", package],  # noqa: S607 (the builder's npm)
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    with tarfile.open(folder / packed.stdout.strip()) as archive:
        script = archive.extractfile(file)
        content = script.read() if script else b""
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{package}: its {file} is not the one that the table says")
    return content


def _foreign(page: Path) -> Iterator[str]:
    """Yield the tags of a page that make a browser load something from another host."""
    for tag in _LOADED.findall(page.read_text()):
        if 'rel="canonical"' not in tag:
            yield tag


if __name__ == "__main__":
    main()
