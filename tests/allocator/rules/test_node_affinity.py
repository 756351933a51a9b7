"""Which nodes a required node affinity admits, as kube-scheduler judges it."""

import json
from typing import Any

import pytest

from allocator.rules.node_constraints import admits
from tests.allocator.builders import term

LABELS = {"pool": "x", "year": "2024"}


def affinity(*terms: Any) -> str:
    return json.dumps(
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    )


@pytest.mark.parametrize(
    ("terms", "admitted"),
    [
        ([term("pool", "In", "x", "y")], True),
        ([term("pool", "In", "y")], False),
        ([term("pool", "NotIn", "y")], True),
        ([term("other", "NotIn", "y")], True),
        ([term("pool", "Exists")], True),
        ([term("pool", "DoesNotExist")], False),
        ([term("other", "DoesNotExist")], True),
        ([term("year", "Gt", "2023")], True),
        ([term("year", "Lt", "2023")], False),
        ([term("year", "Gt", "-1")], True),
        ([term("pool", "Gt", "1")], False),
        ([term("other", "Lt", "1")], False),
        ([term("year", "Gt", "1", "2")], False),
        ([term("year", "Gt", "many")], False),
        ([term("metadata.name", "In", "n1", field="matchFields")], True),
        ([term("metadata.name", "NotIn", "n1", field="matchFields")], False),
        ([term("metadata.uid", "In", "n1", field="matchFields")], False),
        ([term("pool", "In", "y"), term("year", "Exists")], True),
        ([{**term("pool", "In", "x"), **term("metadata.name", "In", "n2", field="matchFields")}], False),
        ([{}], False),
        ([], False),
        ([term("pool", "Like", "x")], False),
    ],
)
def test_terms_are_alternatives_of_requirements_that_hold_together(terms: list[Any], *, admitted: bool) -> None:
    assert admits(affinity(*terms), "n1", LABELS) is admitted


@pytest.mark.parametrize(
    "text", [None, "{}", "[]", '{"podAffinity": {}}', '{"nodeAffinity": {}}', '{"tooLong": "1"}', "{"]
)
def test_an_affinity_that_requires_nothing_of_nodes_admits_any(text: str | None) -> None:
    assert admits(text, "n1", LABELS)
