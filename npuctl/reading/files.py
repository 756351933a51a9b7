"""Splits files into documents: YAML or JSON, whatever the file's extension is."""

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import yaml

from ascend.errors import UNREADABLE, InvalidValue

STDIN: Final = "-"

_MOST_LEVELS: Final = 1000
"""Nested collections in a document. libyaml overflows the C stack at some tens of thousands."""


class RawList(msgspec.Struct, rename="camel"):
    """A list of objects in JSON, as kubectl prints it; its items are not decoded yet."""

    kind: str
    items: list[msgspec.Raw]
    api_version: str | None = None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # libyaml is optional in PyYAML
    """YAML as Kubernetes reads it: a timestamp is a string."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def read_documents(file: str) -> Iterator[object]:
    """Yield the documents of a file; ``-`` is standard input. A list in JSON is a ``RawList``.

    Raises:
        InvalidValue: the file can't be read, or is neither YAML nor JSON; the message has the names of file and
            document.
    """
    name = "standard input" if file == STDIN else file
    try:
        text = sys.stdin.buffer.read().decode() if file == STDIN else Path(file).read_bytes().decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidValue(f"{name}: can't be read: {reason}") from error
    yield from documents_in(name, text.removeprefix("\ufeff"), is_json=file.endswith(".json"))


def documents_in(name: str, text: str, *, is_json: bool = False) -> Iterator[object]:
    """Yield the documents of a text; a list in JSON is a ``RawList``.

    Args:
        name: what it is called in errors.
        text: YAML or JSON.
        is_json: whether it has to be JSON.

    Raises:
        InvalidValue: it is neither; the message has the number of the document.
    """
    if text.lstrip().startswith("{"):
        # JSON is also YAML, but the YAML loader takes minutes for the objects of a large cluster.
        documents: list[object] = []
        try:
            documents.extend(_json_documents(text))
        except UNREADABLE as error:
            if is_json:
                raise InvalidValue(f"{name}: document {len(documents) + 1}: not valid JSON: {error}") from error
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
        raise InvalidValue(f"{name}: document {number + 1}: not valid YAML: {error.problem}{place}") from error
    except (*UNREADABLE, yaml.YAMLError) as error:
        sentence = " ".join(str(error).split())
        raise InvalidValue(f"{name}: document {number + 1}: not valid YAML: {sentence}") from error


def _json_documents(text: str) -> Iterator[object]:
    with contextlib.suppress(*UNREADABLE):  # another object, several documents, or malformed
        listed = msgspec.json.decode(text, type=RawList)
        if listed.kind.endswith("List"):
            yield listed
            return
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        yield document


def _check_depth(name: str, text: str) -> None:
    depth = number = 0
    with contextlib.suppress(yaml.YAMLError):  # the loader finds the same error, and reports it
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                if depth > _MOST_LEVELS:
                    raise InvalidValue(f"{name}: document {number}: nested more than {_MOST_LEVELS} levels deep")
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.DocumentStartEvent):
                number += 1
