"""What all tests of npuctl have in common."""

import functools
from collections.abc import Iterator

import pytest
from typer.main import get_command


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of pytest have $COLUMNS, which says how wide the lines of npuctl are in a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _one_command() -> Iterator[None]:
    """Typer's runner makes all commands from their signatures for each call, which takes more CPU than most calls."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("typer.testing._get_command", functools.cache(get_command))
        yield
