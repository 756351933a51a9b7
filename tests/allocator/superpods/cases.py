"""The reference's own cases about SuperPods, and those derived from it."""

from typing import Any

import pytest

from tests.allocator.reference import reference_cases

CASES: list[dict[str, Any]] = reference_cases("superpods")


def of_id(*ids: str) -> pytest.MarkDecorator:
    """The cases with these ids."""
    chosen = [case for case in CASES if case["id"] in ids]
    assert len(chosen) == len(ids)
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])


def of_area(*areas: str, without: tuple[str, ...] = ()) -> pytest.MarkDecorator:
    """All cases of these areas; those that are left out are tested by themselves, because the answer is another one."""
    chosen = [case for case in CASES if case["area"] in areas and case["id"] not in without]
    assert chosen
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])
