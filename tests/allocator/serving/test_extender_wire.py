"""kube-scheduler's calls are decoded only as far as needed, with the same result."""

import json
from copy import copy

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.filtered import Filtered
from allocator.serving.extender_wire import NodeNames, read_args, refused_result
from ascend.errors import InvalidValue, Refusal
from ascend.reasons import Reason

NODES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,5}", fullmatch=True)


@given(
    names=st.lists(st.one_of(NODES, st.text(max_size=4))),
    searched=st.lists(NODES, max_size=20),
    escaped=st.booleans(),
)
def test_names_searched_as_bytes_equal_the_decoded_names(
    names: list[str], searched: list[str], *, escaped: bool
) -> None:
    raw = json.dumps(names, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        read = msgspec.json.decode(raw, type=list[str])
    except msgspec.DecodeError:
        return
    lazy = NodeNames(raw)
    for name in [*searched, *(each for each in names if each in searched)]:
        assert (name in lazy) == (name in read)
    assert list(lazy) == read
    assert len(lazy) == len(read)
    assert list(copy(lazy)) == read


@pytest.mark.parametrize("names", [b'{"a": 1}', b'"n1"', b"3", b"true"])
def test_node_names_must_be_an_array(names: bytes) -> None:
    with pytest.raises(InvalidValue):
        read_args(b'{"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ' + names + b"}")


def test_a_name_that_is_no_string_is_refused_when_decoded() -> None:
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
    sentences_each=st.integers(1, 200),
    waits=st.booleans(),
)
def test_many_refusals_are_summed_up_by_reason(reasons: list[Reason], sentences_each: int, *, waits: bool) -> None:
    refusals: dict[str, Refusal] = {}  # nodes share them
    refused: dict[str, Refusal] = {}
    for number, reason in enumerate(reasons):
        sentence = f"{reason}: sentence {number % sentences_each}"
        refused[f"n{number}"] = refusals.setdefault(sentence, Refusal(reason, sentence))
    waiting = ("n0",) if waits else ()
    result = refused_result(Filtered([], refused), waiting, "default")
    assert list(result.failed_nodes) == list(waiting)
    sentences = list(result.failed_and_unresolvable_nodes.values())
    others = reasons[len(waiting) :]
    if len(others) > 64:
        for reason in set(others):
            (sentence,) = (each for each in sentences if each.startswith(reason))
            assert f"on {others.count(reason)} nodes" in sentence or others.count(reason) == 1
            first = f"n{reasons.index(reason, len(waiting))}"
            assert result.failed_and_unresolvable_nodes[first] == sentence
        assert len(sentences) == len(set(others))
    else:
        assert len(sentences) == len(others)
