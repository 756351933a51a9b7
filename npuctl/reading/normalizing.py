"""Normalizes an object as the API server would: without nulls, and with quantities as strings."""

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final, NamedTuple

from ascend.chips import RESOURCE
from ascend.errors import UNREADABLE, InvalidValue
from ascend.printable import shown

_QUANTITIES: Final = frozenset({"limits", "requests", "allocatable", "capacity"})
_STRINGS: Final = frozenset({"labels", "annotations", "nodeSelector", "data"})
"""Maps with strings as values. msgspec would not name the key of one that is not."""

_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
"""The grammar of k8s.io/apimachinery's ``resource.Quantity`` without the minus sign: resources are not negative."""

_CHIPS: Final = RESOURCE.partition("/")[0] + "/"

_LONGEST_QUANTITY: Final = 28
"""Characters. Decimal rounds numbers with more digits."""

_MOST_DIGITS: Final = 19
"""Digits of an integer of 64 bits, the API server's largest."""

_MOST_LEVELS: Final = 100
"""Nested objects and lists. No kind that is read has a fifth of it; an object that contains itself has more."""

_MOST_BITS: Final = 64
"""The API server has no larger integers."""


class Normalized(NamedTuple):
    """An object without nulls and with quantities as strings.

    Attributes:
        body: its fields. A wrong field is left as it is written, or left out where nothing can read it.
        wrong: the error of the first wrong field: objects of kinds that nobody reads may have fields of these names
            with other meanings, so only a reader of the object raises it.
    """

    body: Any
    wrong: InvalidValue | None


def normalize(manifest: dict[str, Any], error: Callable[[str, str], InvalidValue]) -> Normalized:
    """Return an object without nulls, and with quantities as strings. A whole quantity of chips is in digits.

    Args:
        manifest: the object.
        error: makes the error of a field, given its path and a sentence.
    """
    normalizer = _Normalizer(error)
    return Normalized(normalizer.normalize(manifest, "", 0), normalizer.wrong)


def is_plain(resource: str, text: str) -> bool:
    """Whether a quantity is in normal form already."""
    digits = text.isascii() and text.isdigit()
    return digits or (not resource.startswith(_CHIPS) and _QUANTITY.fullmatch(text) is not None)


class _Normalizer:
    def __init__(self, error: Callable[[str, str], InvalidValue]) -> None:
        self.wrong: InvalidValue | None = None
        self._error = error
        # By identity: aliases of YAML can make billions of references to a few objects.
        self._done: dict[int, Any] = {}

    def normalize(self, value: Any, path: str, level: int) -> Any:
        """Return a part of the object normalized; ``level`` is the number of objects and lists around it."""
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can express
                self._refuse(path, str(error))
                return ""
        if isinstance(value, int) and value.bit_length() > _MOST_BITS:
            self._refuse(path, f"an integer has at most {_MOST_BITS} bits, not {value.bit_length()}")
        if not isinstance(value, dict | list):
            return value
        if id(value) not in self._done:
            if level > _MOST_LEVELS:
                self._refuse(path, f"nested more than {_MOST_LEVELS} levels deep, or contains itself")
                return type(value)()
            self._done[id(value)] = self._collection(value, path, level + 1)
        return self._done[id(value)]

    def _refuse(self, path: str, what: str) -> None:
        self.wrong = self.wrong or self._error(path, what)

    def _collection(self, value: dict[str, Any] | list[Any], path: str, level: int) -> dict[str, Any] | list[Any]:
        if isinstance(value, list):
            return [self.normalize(element, f"{path}[{at}]", level) for at, element in enumerate(value)]
        entries = {}
        for key, field in value.items():
            if field is None:
                continue
            entry_path = f"{path}.{key}" if path else str(key)
            if key in _QUANTITIES and isinstance(field, dict):
                entries[key] = self._quantities(field, entry_path)
            else:
                entries[key] = self.normalize(field, entry_path, level)
            if key in _STRINGS and isinstance(entries[key], dict):
                self._check_strings(entries[key], entry_path)
        return entries

    def _quantities(self, quantities: dict[str, Any], path: str) -> dict[str, Any]:
        entries = {}
        for resource, quantity in quantities.items():
            if quantity is None:
                continue
            try:
                text = _read_quantity(resource, quantity)
                wrong = f"{shown(quantity)} is not a quantity"
            except UNREADABLE as error:  # an integer of thousands of digits
                text, wrong = None, str(error)
            if text is None:
                self._refuse(f'{path}["{resource}"]', wrong)
            entries[resource] = quantity if text is None else text
        return entries

    def _check_strings(self, entries: dict[Any, Any], path: str) -> None:
        for key, value in entries.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                wrong = value if isinstance(key, str) else key
                self._refuse(f'{path}["{key}"]', f"a string is expected, not {type(wrong).__name__}")


def _read_quantity(resource: str, written: object) -> str | None:
    """Return a quantity as a string; None if it is not a quantity.

    A whole quantity of chips becomes digits: ``8`` for ``8000m`` or ``8.0``. Any other stays as it is.

    Args:
        resource: the name of the resource.
        written: a string or a number.
    """
    text = str(written) if isinstance(written, int | float | str) and not isinstance(written, bool) else ""
    if not _QUANTITY.fullmatch(text):
        return None
    return text if text.isdigit() or not str(resource).startswith(_CHIPS) else _digits(text)


def _digits(text: str) -> str:
    if len(text) > _LONGEST_QUANTITY:
        return text
    # Imported here: it takes longer than a whole planning run, and few manifests need it.
    from kubernetes.utils.quantity import parse_quantity

    try:
        value: Decimal = parse_quantity(text)
    except ValueError:  # the exponent is too large
        return text
    # Checked before the number is written out: 1e999999999 would fill the memory.
    if value and not 0 <= value.adjusted() < _MOST_DIGITS:
        return text
    return str(int(value)) if value == value.to_integral_value() else text
