"""Taints that keep pods off nodes, by the rules of Kubernetes."""

import pytest

from allocator.rules.node_constraints import untolerated
from ascend.kube.objects import Taint

DRAIN = Taint("drain", "NoExecute", "soon")


@pytest.mark.parametrize(
    "tolerations",
    [
        '[{"operator": "Exists"}]',
        '[{"key": "drain", "operator": "Exists"}]',
        '[{"key": "drain", "value": "soon"}]',
        '[{"key": "other"}, {"key": "drain", "operator": "Equal", "value": "soon", "effect": "NoExecute"}]',
        '[{"key": "drain", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}]',
    ],
)
def test_a_taint_is_tolerated(tolerations: str) -> None:
    assert untolerated([DRAIN], tolerations) is None


@pytest.mark.parametrize(
    "tolerations",
    [
        None,
        "[]",
        '[{"key": "drain"}]',
        '[{"key": "drain", "value": "later"}]',
        '[{"key": "drain", "operator": "Exists", "effect": "NoSchedule"}]',
        '[{"value": "soon"}]',
        '{"key": "drain", "operator": "Exists"}',
    ],
)
def test_a_taint_is_not_tolerated(tolerations: str | None) -> None:
    assert untolerated([DRAIN], tolerations) == DRAIN


def test_a_taint_that_is_only_a_preference_keeps_no_pod_off() -> None:
    assert untolerated([Taint("drain", "PreferNoSchedule")], None) is None
    assert untolerated([Taint("drain", "PreferNoSchedule"), Taint("a", "NoSchedule")], None) == Taint("a", "NoSchedule")
