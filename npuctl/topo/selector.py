"""Label selectors as kubectl takes them, for objects that may come from files."""

import re
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from ascend.errors import InvalidValue

Selector: TypeAlias = Callable[[Mapping[str, str]], bool]

_REQUIREMENTS_END: Final = re.compile(r",(?![^(]*\))")
_KEY: Final = r"(?P<key>[A-Za-z0-9][A-Za-z0-9._/-]*)"
_VALUE: Final = r"(?P<value>[A-Za-z0-9._-]*)"
_EQUALITY: Final = re.compile(rf"{_KEY}\s*(?P<operator>==?|!=)\s*{_VALUE}")
_SET: Final = re.compile(rf"{_KEY}\s+(?P<operator>in|notin)\s*\((?P<values>[A-Za-z0-9._,\s-]+)\)")
_EXISTENCE: Final = re.compile(rf"(?P<operator>!?)\s*{_KEY}")


def parse_selector(text: str) -> Selector:
    """Return a predicate on labels. As in Kubernetes, ``!=`` and ``notin`` match objects without the label too.

    Raises:
        InvalidValue: it is not a label selector.
    """
    requirements = [_requirement(part.strip()) for part in _REQUIREMENTS_END.split(text)]
    return lambda labels: all(matches(labels) for matches in requirements)


def _requirement(text: str) -> Selector:
    if found := _EQUALITY.fullmatch(text):
        key, values, wanted = found["key"], {found["value"]}, found["operator"] != "!="
    elif found := _SET.fullmatch(text):
        key, wanted = found["key"], found["operator"] == "in"
        values = {value.strip() for value in found["values"].split(",")}
    elif found := _EXISTENCE.fullmatch(text):
        key, wanted = found["key"], not found["operator"]
        return lambda labels: (key in labels) == wanted
    else:
        raise InvalidValue(
            f"--selector: {text!r} is not a requirement like a=b, a!=b, a in (b,c), a notin (b,c), a or !a"
        )
    return lambda labels: (labels.get(key) in values) == wanted
