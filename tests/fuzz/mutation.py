"""Changes an input: JSON in its structure, also in strings that are JSON themselves; anything else in its bytes."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, TypeAlias

VALUES: Final[tuple[Any, ...]] = (
    None, True, 0, -1, 1, 7, 1 << 31, 1 << 63, 1 << 64, -(1 << 63), 1e308, 1.5, -0.0, "", "0", "-1", "8", "16", "1e3",
    "0x10", "1k", "1m", "\u0663", "\x00", "\x1b[2J", "\ud800", "\U0001f600", "a" * 300, "9" * 5000, "NaN", "true",
    "Ascend910-0", "Ascend910-0,Ascend910-1", "Ascend910-2c-100-0", "0-vir05_1c_16g", "huawei.com/Ascend910",
    "huawei.com/npu-core", "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2026-01-01T00:00:00.123456789+14:00",
    "[", "{}", "[]", "null", ",", ",,", "-", "=", [], {}, [[]], {"": ""}, [None], {"a": {"b": [1, 2]}},
)  # fmt: skip
"""What readers stumble over: limits, empty things, other types, other digits, dates, half a syntax."""

_PIECES: Final = [value for value in VALUES if isinstance(value, str) and len(value) < 30]
_DEPTHS: Final = (2, 5, 300)
_KEYS: Final = ("", "huawei.com/Ascend910", "predicate-time")
_ON_JSON: Final = 0.8

Slot: TypeAlias = tuple[Any, Any]
"""An object or a list, and a key or an index in it."""
ChangeBytes: TypeAlias = Callable[[bytes, int, Random], bytes]


class _Nested:
    """JSON inside a string."""

    def __init__(self, value: Any) -> None:
        self.root = [value]


def mutate(data: bytes, most: int, seed: int, change_bytes: ChangeBytes | None = None) -> bytes:
    """Return a changed input.

    Args:
        data: the input.
        most: the most bytes of the result.
        seed: the same seed makes the same of the same input.
        change_bytes: how an input that is no JSON is changed; a few bytes of it if not given.
    """
    random = Random(seed)
    changed = _change_json(data, random) if random.random() < _ON_JSON else None
    if changed is None or len(changed) > most:
        changed = (change_bytes or _change_bytes)(data, most, random)
    return changed[:most]


def _change_json(data: bytes, random: Random) -> bytes | None:
    try:
        root = [_opened(json.loads(data))]
        for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
            _change(root, random)
        return json.dumps(_closed(root[0]), separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return None


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _opened(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_opened(part) for part in value]
    if isinstance(value, str) and value.startswith(("{", "[")):
        try:
            return _Nested(_opened(json.loads(value)))
        except (ValueError, RecursionError):
            return value
    return value


def _closed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _closed(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_closed(part) for part in value]
    if isinstance(value, _Nested):
        return json.dumps(_closed(value.root[0]), separators=(",", ":"))
    return value


def _change(root: list[Any], random: Random) -> None:
    slots = [*_slots(root)]
    random.choice((_replace, _replace, _move, _remove, _repeat, _wrap, _edit, _edit))(slots, random)


def _slots(container: Any) -> Iterator[Slot]:
    if isinstance(container, _Nested):
        container = container.root
    if isinstance(container, dict | list):
        for key, value in [*(container.items() if isinstance(container, dict) else enumerate(container))]:
            yield container, key
            yield from _slots(value)


def _replace(slots: list[Slot], random: Random) -> None:
    container, key = random.choice(slots)
    container[key] = random.choice(VALUES)


def _move(slots: list[Slot], random: Random) -> None:
    (container, key), (other, place) = random.choice(slots), random.choice(slots)
    container[key] = _opened(_closed(other[place]))


def _remove(slots: list[Slot], random: Random) -> None:
    container, key = random.choice(slots)
    if isinstance(container, dict) or len(container) > 1:  # what has one value is the root, or may be
        del container[key]


def _repeat(slots: list[Slot], random: Random) -> None:
    container, key = random.choice(slots)
    if isinstance(container, dict):
        names = [name for _, name in slots if isinstance(name, str)]
        container[random.choice([*names, *_KEYS])] = container[key]
    elif len(container) > 1:
        container.insert(key, _opened(_closed(container[key])))


def _wrap(slots: list[Slot], random: Random) -> None:
    container, key = random.choice(slots)
    for _ in range(random.choice(_DEPTHS)):
        container[key] = random.choice(([container[key]], {"a": container[key]}))


def _edit(slots: list[Slot], random: Random) -> None:
    container, key = random.choice(slots)
    value = container[key]
    if isinstance(value, str):
        at = random.randrange(len(value) + 1)
        inserted = value[:at] + random.choice(_PIECES) + value[at:]
        container[key] = random.choice((inserted, value[:at], value[at:], value * 3))
    elif isinstance(value, int | float):
        container[key] = random.choice((value + 1, -value, value * 2, value * 1000, str(value)))
    else:
        container[key] = random.choice(VALUES)


def _change_bytes(data: bytes, _most: int, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 2, 8))):
        at = random.randrange(len(changed) + 1)
        end = random.choice((at, at + random.randrange(1, 40)))
        part = bytes(changed[at : at + random.randrange(1, 40)])
        syntax, anything = random.choice(b'{}[]",:\\\n 0-'), random.randrange(256)
        changed[at:end] = random.choice((b"", part, bytes([syntax]), bytes([anything])))
    return bytes(changed)
