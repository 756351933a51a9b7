"""Splits files into the documents they hold: YAML or JSON, whatever their end says."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

from ascend.errors import UNREADABLE, InvalidValue

STDIN = "-"

_MOST_LEVELS = 1000
"""Of collections within each other, in any document; what an object may have is less."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # C where it was built in
    """YAML as Kubernetes reads it: a time is text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_documents(file: str) -> Iterator[object]:
    """The documents of a file; ``-`` is standard input.

    Raises:
        InvalidValue: it can't be read, or is neither; the message has the file and the document's number.
    """
    name = "standard input" if file == STDIN else file
    try:
        text = sys.stdin.buffer.read().decode() if file == STDIN else Path(file).read_bytes().decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue(f"{name}: it can't be read: {reason}") from error
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        # JSON is YAML too, but what a large cluster prints would take minutes to read as that.
        documents: list[object] = []
        try:
            for document in _json_documents(text):
                documents += (document,)
        except UNREADABLE as error:
            if file.endswith(".json"):
                raise InvalidValue(f"{name}: document {len(documents) + 1}: it is no JSON: {error}") from error
        else:
            yield from documents
            return
    number = 0
    try:
        _check_depth(name, text)
        for document in yaml.load_all(text, Loader=_Loader):
            number += 1
            yield document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise InvalidValue(f"{name}: document {number + 1}: it is no YAML: {error.problem}{place}") from error
    except (*UNREADABLE, yaml.YAMLError) as error:
        raise InvalidValue(f"{name}: document {number + 1}: it is no YAML: {error}") from error


def _json_documents(text: str) -> Iterator[object]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        yield document


def _check_depth(name: str, text: str) -> None:
    """See that no document is nested so deep that the loader, in C, would run out of stack and end the process."""
    depth = number = 0
    with contextlib.suppress(yaml.YAMLError):  # the loader comes to the same place, and says it
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _MOST_LEVELS:
                    raise InvalidValue(f"{name}: document {number}: it is nested over {_MOST_LEVELS} deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.DocumentStartEvent):
                number += 1
