"""English for messages: singular or plural after a number, the article before a name, and lists of names."""

import re
from collections.abc import Sequence
from typing import Final

_AN_LETTERS: Final = frozenset("AEFHILMNORSX")
"""Letters whose own name begins with a vowel: an NPU, an A3-16 server."""

_AN_NUMBERS: Final = ("11", "18")
"""Eleven and eighteen; of the other numbers those that begin with 8."""

_LIKE_YOU: Final = ("one", "uid", "uni", "use", "usu")
"""Beginnings of words that are pronounced with a consonant: a uid, a unit, a user, a one."""


def count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: ``1 chip``, ``2 chips``; the plural is the singular with an ``s`` by default."""
    return f"{number} {singular if number == 1 else plural or f'{singular}s'}"


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, and the number of the others: ``a, b, c and 2 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def every(names: Sequence[str]) -> str:
    """Return all names: ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def several(noun: str, names: Sequence[str]) -> str:
    """Return named objects with their noun: ``node a``, or ``4 nodes (a, b, c and 1 more)``."""
    return f"{noun} {names[0]}" if len(names) == 1 else f"{count(len(names), noun)} ({some(names)})"


def a(name: str) -> str:
    """Return a name after its indefinite article: ``an A3-16 server``, ``a 910B-8 server``.

    The article depends on how the first word is pronounced: a number as a number, capitals and digits letter by
    letter, any other word as it is written.
    """
    word = re.split(r"[\W_]", name, maxsplit=1)[0]
    return f"{'an' if _begins_with_vowel(word) else 'a'} {name}"


def _begins_with_vowel(word: str) -> bool:
    digits = word[: len(word) - len(word.lstrip("0123456789"))]
    if digits:
        return digits.startswith("8") or digits in _AN_NUMBERS
    if word.isupper():
        return word[0] in _AN_LETTERS
    return word[:1].lower() in set("aeiou") and not word.lower().startswith(_LIKE_YOU)
