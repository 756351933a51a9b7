"""The reference scheduler's own test cases."""

import json
from pathlib import Path
from typing import Any


def reference_cases(name: str) -> Any:
    """The cases of ``cases/<name>.json``."""
    return json.loads((Path(__file__).parent / "cases" / f"{name}.json").read_text())
