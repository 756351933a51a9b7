"""The command ``python -m docs.generate [--check]``."""

import sys

from deploy.monitoring import FILES
from docs.generate.pages import PAGES, ROOT, render
from docs.generate.pictures import PICTURES
from docs.generate.schemas import SCHEMAS


def main() -> None:
    """Write everything that is generated; with ``--check`` exit with status 1 if a file is not current."""
    made = {**PICTURES, **SCHEMAS, **FILES}
    rendered = {path: render(path) for path in PAGES} | {path: make() for path, make in made.items()}
    stale = {path: text for path, text in rendered.items() if not path.exists() or text != path.read_text()}
    if sys.argv[1:] == ["--check"]:
        if stale:
            sys.exit(f"{', '.join(str(path.relative_to(ROOT)) for path in stale)}: not current; run `make docs`")
        return
    for path, text in stale.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
