"""What all tests of npuctl have in common."""

import pytest


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of pytest have $COLUMNS, which says how wide the lines of npuctl are in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
