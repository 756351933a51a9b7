"""Lines of the log have no control characters, whatever strangers have named."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from ascend.observe.logs import configure_logs
from tests.ascend.test_printable import TEXTS, obeyed

NASTY = "\x1b]0;owned\x07\x1b[2J\u202eabc\x9b31m\u2028\x7f\nforged line"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level, config = root.handlers[:], root.level, structlog.get_config()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.configure(**config)


def logged(stream: io.StringIO, text: str) -> str:
    configure_logs("test", stream=stream)
    structlog.get_logger().warning("refused", pod=text, names=[text], counts={text: 1})
    logging.getLogger("library").warning("%s", text, extra={"error": text})
    return stream.getvalue()


@given(TEXTS)
def test_lines_for_programs_are_json_without_control_characters(text: str) -> None:
    lines = logged(io.StringIO(), text).splitlines()
    assert len(lines) == 2
    assert not any(map(obeyed, lines))
    assert json.loads(lines[0])["pod"] == text
    assert json.loads(lines[1])["error"] == text


@given(st.just(NASTY) | TEXTS)
def test_lines_for_people_obey_nothing_of_a_strangers_text(text: str) -> None:
    plain, shown = logged(Terminal(), ""), logged(Terminal(), text)
    assert len(shown.splitlines()) == 2
    # structlog's own colours are the same in both.
    assert obeyed(shown) == obeyed(plain)


def test_a_traceback_keeps_its_lines_and_escapes_the_rest() -> None:
    stream = Terminal()
    configure_logs("test", stream=stream)
    try:
        raise ValueError(NASTY)
    except ValueError:
        structlog.get_logger().exception("failed")
    shown = stream.getvalue()
    assert "Traceback" in shown and "\x1b]0" not in shown and "\u202e" not in shown  # noqa: PT018 - one sentence
