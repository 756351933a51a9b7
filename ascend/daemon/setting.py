"""A setting of a program: the declaration, and the check of values."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import msgspec
from msgspec import Meta

from ascend.errors import InvalidValue
from ascend.grammar import count
from ascend.printable import shown


def setting(
    *,
    default: Any = MISSING,
    description: str = "",
    gt: float | None = None,
    ge: float | None = None,
    le: float | None = None,
    min_length: int | None = None,
    parse: Callable[[str], str] | None = None,
    reloaded: bool = False,
) -> Any:
    """Return the field of a dataclass that is a setting.

    Args:
        default: the value if none is given; without it one must be given.
        description: what it means, for the help text and the documentation.
        gt: a number must be greater.
        ge: a number must be this at least.
        le: a number must be this at most.
        min_length: the least number of characters, or of items of a list.
        parse: what is done with a text, or each of a list, before all else; raises InvalidValue with a sentence.
        reloaded: a change applies while the program runs; other changes need a restart.
    """
    bounds: dict[str, Any] = {"gt": gt, "ge": ge, "le": le, "min_length": min_length}
    found = {_KEY: _Details(Meta(**bounds, description=description), parse, is_reloaded=reloaded)}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=found)
    return dataclasses.field(default=default, metadata=found)


@dataclass(frozen=True, slots=True)
class _Details:
    meta: Meta
    parse: Callable[[str], str] | None
    is_reloaded: bool


_KEY: Final = "setting"
"""Of the metadata of a field."""

_KINDS: Final[dict[Any, tuple[str, str]]] = {
    bool: ("true or false", "{true,false}"),
    int: ("an integer", "INTEGER"),
    float: ("a number", "NUMBER"),
    str: ("a string", "TEXT"),
    Path: ("a path", "PATH"),
    list: ("a list", "LIST"),
}
"""By type: what a value must be, and how the help shows it."""

_JSON: Final = ("an object", "JSON")

_BOUNDS: Final = {"gt": "greater than", "ge": "at least", "le": "at most"}

_FIELD: Final = re.compile(r" - at `\$(?P<path>\[\d+\].*)`$", re.DOTALL)
"""The place within an item that has fields of its own."""

_PLACE: Final = re.compile(r" - at `\$\[(?P<index>\d+)\]`$")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it is declared.

    Attributes:
        name: its field.
        kind: the type; without None, which stands for a setting that is not given.
        item: the type of the items if the kind is a list, else the kind.
        default: MISSING if it must be given.
        meta: description and bounds.
        parse: what is done with texts; None if nothing.
        is_reloaded: a change applies while the program runs.
        annotation: the type with its bounds.
    """

    name: str
    kind: Any
    item: Any
    default: object
    meta: Meta
    parse: Callable[[str], str] | None
    is_reloaded: bool
    annotation: Any

    @property
    def is_list(self) -> bool:
        """Whether it has any number of values."""
        return self.item is not self.kind

    @property
    def shown_kind(self) -> str:
        """What can be given, for the help text."""
        is_choice = get_origin(self.item) is Literal
        shown = f"{{{','.join(get_args(self.item))}}}" if is_choice else _KINDS.get(self.item, _JSON)[1]
        return f"{shown},…" if self.is_list else shown

    @property
    def help(self) -> str:
        """The description and the default."""
        default = ",".join(self.default) if isinstance(self.default, list) else self.default
        if default is MISSING:
            return f"{self.meta.description} (required)"
        shown = str(default).lower() if isinstance(default, bool) else default
        return f"{self.meta.description}{'' if shown in (None, '') else f' (default: {shown})'}"

    def convert(self, given: object) -> object:
        """Return the value for what is given, which may be text or of the right type.

        Raises:
            InvalidValue: it is wrong; the sentence has the name of the setting and what is given.
        """
        if isinstance(given, InvalidValue):
            raise InvalidValue(f"{self.name}: {given}")
        try:
            given = self._parse(given)
        except InvalidValue as error:
            raise InvalidValue(f"{self.name}: {error} (got {shown(given)})") from error
        try:
            return msgspec.convert(given, self.annotation, strict=False, dec_hook=_convert_path)
        except UnicodeEncodeError as error:
            raise InvalidValue(f"{self.name}: must be text in UTF-8 (got {shown(given)})") from error
        except msgspec.ValidationError as error:
            message = str(error)
        if _has_fields(self.item) and (field := _FIELD.search(message)) is not None:
            place = field["path"].replace("[", ".").replace("]", "")
            raise InvalidValue(f"{self.name}{place}: {message[0].lower()}{message[1 : field.start()]}")
        if isinstance(given, list) and (found := _PLACE.search(message)) is not None:
            wrong = given[int(found["index"])]
            raise InvalidValue(f"{self.name}.{found['index']}: {self._must(self.item, message)} (got {shown(wrong)})")
        raise InvalidValue(f"{self.name}: {self._must(self.kind, message)} (got {shown(given)})")

    def _parse(self, given: object) -> object:
        if self.parse is None:
            return given
        if isinstance(given, list):
            return [self.parse(element) if isinstance(element, str) else element for element in given]
        return self.parse(given) if isinstance(given, str) else given

    def _must(self, kind: Any, message: str) -> str:
        """Return the end of the sentence on a value of which msgspec has said this."""
        if get_origin(kind) is Literal:
            *others, last = map(repr, get_args(kind))
            return f"must be {' or '.join(filter(None, (', '.join(others), last)))}"
        is_of_type = ", got `" not in message
        if is_of_type and self.meta.min_length is not None:
            return f"must have at least {count(self.meta.min_length, 'item' if self.is_list else 'character')}"
        bounds = [
            f"{word} {bound}" for name, word in _BOUNDS.items() if (bound := getattr(self.meta, name)) is not None
        ]
        if is_of_type and bounds:
            return f"must be {' and '.join(bounds)}"
        return f"must be {_KINDS[get_origin(kind) or kind][0]}"


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a program by name, in the order of their declaration."""
    return {field.name: _setting(field) for field in dataclasses.fields(kind)}


def _setting(field: dataclasses.Field[Any]) -> Setting:
    details = field.metadata.get(_KEY, _Details(Meta(), None, is_reloaded=False))
    kind = get_args(field.type)[0] if NoneType in get_args(field.type) else field.type
    return Setting(
        name=field.name,
        kind=kind,
        item=get_args(kind)[0] if get_origin(kind) is list else kind,
        default=field.default if field.default_factory is MISSING else field.default_factory(),
        meta=details.meta,
        parse=details.parse,
        is_reloaded=details.is_reloaded,
        annotation=Annotated[field.type, details.meta],
    )


def _convert_path(kind: type, given: object) -> object:
    if kind is Path and isinstance(given, str | Path):
        return Path(given)
    raise ValueError("not a path")
