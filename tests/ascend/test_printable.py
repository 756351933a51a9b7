"""Text of strangers is shown without what a terminal, a log or a reader would obey."""

import json
import unicodedata

import yaml
from hypothesis import given
from hypothesis import strategies as st

from ascend.errors import ApiError, InvalidValue, Refusal
from ascend.printable import escaped_json, printable, printable_lines
from ascend.reasons import Reason

OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Controls, marks of direction and of no width, surrogates, separators of lines and paragraphs."""

TEXTS = st.text(st.characters(codec=None), max_size=60) | st.lists(
    st.sampled_from(["\x1b[2J", "\x1b]0;x\x07", "\x9b31m", "\x85", "\u202e", "\u200b", "\u2028", "\ufeff", "\x7f", "\n",
                     "\r", "\ud800", "\U000e0041", "a", "中", " "])
).map("".join)  # fmt: skip


def obeyed(text: str) -> list[str]:
    return [character for character in text if unicodedata.category(character) in OBEYED]


@given(TEXTS)
def test_printable_text_has_nothing_to_obey_and_is_escaped_once(text: str) -> None:
    assert not obeyed(printable(text))
    assert printable(printable(text)) == printable(text)
    assert set(obeyed(printable_lines(text))) <= {"\n"}
    assert printable_lines(text).count("\n") == text.count("\n")
    if text.isprintable():
        assert printable(text) == text


def test_characters_are_escaped_as_in_python() -> None:
    assert printable("a\x1b[2J\x9b\u202e\n\U000e0041\ud800é中") == r"a\x1b[2J\x9b\u202e\n\U000e0041\ud800é中"


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none()))
def test_escaped_json_means_the_same(answer: dict[str, object]) -> None:
    for indent in (None, 2):
        text = json.dumps(answer, ensure_ascii=False, indent=indent)
        assert set(obeyed(escaped_json(text))) <= {"\n"}
        assert json.loads(escaped_json(text)) == answer


@given(TEXTS)
def test_no_error_has_anything_to_obey(text: str) -> None:
    for error in (InvalidValue(text), Refusal(Reason.INVALID_REQUEST, text), ApiError(text, status=500)):
        assert not obeyed(str(error) + error.message + error.args[0])


def test_json_of_a_character_beyond_the_first_plane_is_a_pair() -> None:
    assert escaped_json('"\U000e0041"') == r'"\udb40\udc41"'
    assert yaml.safe_load(escaped_json('"\u202e\x9b"')) == "\u202e\x9b"
