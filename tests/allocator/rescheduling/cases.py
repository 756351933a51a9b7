"""The reference's own cases about rescheduling, and those derived from it."""

from typing import Any

import pytest

from tests.allocator.reference import reference_cases

CASES: list[dict[str, Any]] = reference_cases("rescheduling")


def of_area(area: str) -> pytest.MarkDecorator:
    """All cases of an area."""
    chosen = [case for case in CASES if case["area"] == area]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])
