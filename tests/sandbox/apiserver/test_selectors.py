"""Label and field selectors."""

import pytest

from sandbox.apiserver.resources import CONFIGMAPS, PODS
from sandbox.apiserver.selectors import parse_field_selector, parse_label_selector
from sandbox.apiserver.status import StatusError

_LABELS = {"app": "train", "tier": "gold", "size": "8", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=train", True),
        ("app==train,tier=gold", True),
        ("app=train,tier=silver", False),
        ("app!=infer", True),
        ("absent!=x", True),
        ("empty=", True),
        ("app in (train, infer)", True),
        ("app in (infer)", False),
        ("app notin (infer),tier", True),
        ("absent notin (x)", True),
        ("absent in ()", False),
        ("!absent", True),
        ("!app", False),
        ("size>4,size<9", True),
        ("size>8", False),
        ("app>4", False),
        ("huawei.com/x", False),
    ],
)
def test_a_label_selector_matches_as_in_kubernetes(selector: str, *, matches: bool) -> None:
    assert all(term.matches(_LABELS) for term in parse_label_selector(selector)) == matches


@pytest.mark.parametrize("selector", ["a===b", "a foo (b)", "a in b", "a in (b", "a in (b c)", "=b", "a=b c"])
def test_a_malformed_label_selector_is_a_bad_request(selector: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_label_selector(selector)
    assert (refused.value.code, refused.value.reason) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("spec.nodeName=n1", True),
        ("spec.nodeName==n1,status.phase!=Running", True),
        ("spec.nodeName!=n1", False),
        ("spec.nodeName=", False),
        ("metadata.name=p,metadata.namespace=d", True),
        ("status.nominatedNodeName=", True),
    ],
)
def test_a_field_selector_matches_as_in_kubernetes(selector: str, *, matches: bool) -> None:
    pod = {"metadata": {"name": "p", "namespace": "d"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Pending"}}
    assert all(term.matches(pod) for term in parse_field_selector(selector, PODS)) == matches


def test_an_unknown_field_is_refused_with_the_message_of_the_server() -> None:
    with pytest.raises(StatusError, match=r"field label not supported: spec\.foo"):
        parse_field_selector("spec.foo=a", PODS)
    with pytest.raises(StatusError, match=r'"spec\.foo" is not a known field selector'):
        parse_field_selector("spec.foo=a", CONFIGMAPS)
    with pytest.raises(StatusError, match="can't understand"):
        parse_field_selector("spec.foo", CONFIGMAPS)
