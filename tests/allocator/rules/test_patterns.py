"""Regular expressions of others match as Python's do, and take linear time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.patterns import Pattern

ATOMS = st.sampled_from(["a", "b", "1", "-", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", r"\.", "[0-9-]", r"[\d.]"])
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda both: f"({both[0]}|{both[1]})")
        | st.tuples(inner, COUNTS).map(lambda both: f"(?:{both[0]}){both[1]}")
    ),
    max_leaves=6,
)


@given(st.sampled_from(["", "^"]), EXPRESSIONS, st.sampled_from(["", "$"]), st.lists(st.text("ab1-.c", max_size=7)))
def test_names_match_as_with_the_matcher_of_python(begin: str, expression: str, end: str, names: list[str]) -> None:
    text = f"{begin}{expression}{end}"
    pattern, same = Pattern(text), re.compile(text)
    for name in names:
        assert pattern.matches(name) is bool(same.search(name))
        assert name.startswith(pattern.prefix) or not pattern.matches(name)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [("^node-[0-9]+$", "node-"), ("^rack1-.*", "rack1-"), ("node-1", ""), ("^ab?", "a"), ("^ab|^c", ""), ("^a{2}", "")],
)
def test_the_beginning_of_all_names_is_known_if_it_is_literal(text: str, prefix: str) -> None:
    assert Pattern(text).prefix == prefix


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a|b|ab)*c", "a*a*a*a*a*a*b", "(a+)+$x"])
def test_what_takes_others_for_ever_takes_one_step_for_each_character(text: str) -> None:
    pattern = Pattern(text)
    assert not pattern.matches("a" * 250)
    assert len(pattern._known) <= 250


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a{1000}b{1000}", "too complex"),
        ("((a{9}){9}){99}", "too complex"),
        ("(" * 20, "groups are too deep"),
        ("[a", "ends too early"),
        ("a)", "unexpected"),
        ("(a", "not closed"),
        ("*a", "nothing is before"),
        ("(?i)a", "only"),
        (r"\bnode", "not known"),
        (r"\pL", "not known"),
        ("[[:alpha:]]", "not known"),
        ("[b-a]", "range"),
        ("a{2,1}", "wrong order"),
        ("a{x}", "repetition"),
        ("a{2", "repetition"),
        ("x" * 300, "256 characters"),
    ],
)
def test_what_can_not_be_read_has_a_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Pattern(text)


def test_an_expression_with_too_many_states_at_once_is_given_up() -> None:
    pattern = Pattern("(a|b)*a(a|b){100}$")
    names = (format(number, "b").replace("0", "a").replace("1", "b") * 20 for number in range(2000))
    with pytest.raises(ValueError, match="too complex"):
        list(map(pattern.matches, names))
