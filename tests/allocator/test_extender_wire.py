"""kube-scheduler's questions are read no further than needed, and mean the same as read whole."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.engine import Filtered
from allocator.serving.extender_wire import NodeNames, read_args, refused_result
from ascend.errors import InvalidValue, Refusal
from ascend.reasons import Reason

NODES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,5}", fullmatch=True)


@given(
    names=st.lists(st.one_of(NODES, st.text(max_size=4))),
    asked=st.lists(NODES, max_size=20),
    escaped=st.booleans(),
)
def test_names_found_as_bytes_are_the_names_found_by_reading(
    names: list[str], asked: list[str], *, escaped: bool
) -> None:
    raw = json.dumps(names, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        read = msgspec.json.decode(raw, type=list[str])
    except msgspec.DecodeError:
        return
    lazy = NodeNames(raw)
    for name in [*asked, *(each for each in names if each in asked)]:
        assert (name in lazy) == (name in read)
    assert list(lazy) == read
    assert len(lazy) == len(read)


@pytest.mark.parametrize("names", [b'{"a": 1}', b'"n1"', b"3", b"true"])
def test_what_is_no_list_of_names_is_refused_at_once(names: bytes) -> None:
    with pytest.raises(InvalidValue):
        read_args(b'{"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ' + names + b"}")


def test_a_name_that_is_none_is_refused_when_the_names_are_read() -> None:
    _, names = read_args(b'{"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ["n1", 3]}')
    assert "n1" in names
    with pytest.raises(InvalidValue):
        list(names)


@given(
    reasons=st.lists(
        st.sampled_from([Reason.RING_TOO_SMALL, Reason.NOT_ENOUGH_CHIPS, Reason.STALE_REPORT]),
        min_size=65,
        max_size=200,
    ),
    waits=st.booleans(),
)
def test_of_many_refusals_every_reason_is_told_with_its_number_of_nodes(reasons: list[Reason], *, waits: bool) -> None:
    refused = {f"n{number}": Refusal(reason, f"of n{number}") for number, reason in enumerate(reasons)}
    waiting = ("n0",) if waits else ()
    result = refused_result(Filtered([], refused), waiting)
    assert list(result.failed_nodes) == list(waiting)
    told = list(result.failed_and_unresolvable_nodes.values())
    others = reasons[len(waiting) :]
    if len(others) > 64:
        for reason in set(others):
            (sentence,) = (each for each in told if each.startswith(reason))
            assert f"on {others.count(reason)} nodes" in sentence or others.count(reason) == 1
        assert len(told) == len(set(others))
    else:
        assert len(told) == len(others)
