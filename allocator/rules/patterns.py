"""Matches names against regular expressions of others in linear time, whatever the expression.

Python's own matcher tries one way after the other, so an expression as ``(a*)*b`` would stop the allocator; Go's, which
Volcano uses, does not (RE2). Here the ways are followed all at once, and the set of them at each place is kept. What is
understood is what names of nodes need: literals, classes, groups, alternatives, repetitions, and both anchors.
"""

from collections.abc import Callable, Iterator
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final, TypeAlias

_BEGIN: Final = "\x02"
_END: Final = "\x03"
_ALPHABET: Final = frozenset(f"{ascii_lowercase}{digits}-.")
"""The characters of names in Kubernetes; others in an expression match nothing."""
_ESCAPES: Final = {
    "d": frozenset(digits), "w": frozenset(f"{ascii_lowercase}{digits}"), "s": frozenset[str](),
    "D": _ALPHABET - set(digits), "W": frozenset("-."), "S": _ALPHABET,
}  # fmt: skip
_LONGEST: Final = 256
_DEEPEST: Final = 16
_MOST_STATES: Final = 1000
_MOST_STEPS: Final = 200_000
"""The most states that are followed anew, together: beyond it an expression can't be read."""

_Build: TypeAlias = Callable[[int], int]
"""Adds the states of a part of an expression before a state; returns the first of them."""


class Pattern:
    """A regular expression, which may match any part of a name.

    Args:
        text: the expression.

    Attributes:
        prefix: how every name begins that it matches; empty if that is unknown.

    Raises:
        ValueError: it can't be read; with the reason, a part of a sentence.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError(f"it has more than {_LONGEST} characters")
        self._text, self._at, self._depth = text, 0, 0
        self._sets: list[tuple[frozenset[str], int]] = []
        self._free: dict[int, list[int]] = {}
        self._known: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._steps = 0
        self._accepts = self._state(frozenset(), 0)
        build = self._alternatives()
        if self._at < len(text):
            raise ValueError(f"unexpected {text[self._at]!r}")
        self._first = self._reach([build(self._accepts)])
        self.prefix = self._literal_prefix()

    def matches(self, name: str) -> bool:
        """Whether it matches a name.

        Raises:
            ValueError: that takes too long.
        """
        states = self._first
        for char in (_BEGIN, *name, _END):
            if self._accepts in states:
                return True
            after = self._known.get((states, char))
            states = after if after is not None else self._follow(states, char)
        return self._accepts in states

    def _literal_prefix(self) -> str:
        begun, found = self._text.startswith("^") and "|" not in self._text, ""
        for at, char in enumerate(self._text[1:], start=1) if begun else ():
            if char not in _ALPHABET - {"."} or self._text[at + 1 : at + 2] in {"*", "?", "{"}:
                break
            found += char
        return found

    def _follow(self, states: frozenset[int], char: str) -> frozenset[int]:
        self._steps += len(states)
        if self._steps > _MOST_STEPS:
            raise ValueError("it is too complex")
        reached = (after for state in states for chars, after in (self._sets[state],) if char in chars)
        found = self._known[states, char] = self._reach(reached) | self._first
        return found

    def _reach(self, states: "Iterator[int] | list[int]") -> frozenset[int]:
        found, waiting = set[int](), list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                waiting += self._free.get(state, ())
        return frozenset(found)

    def _state(self, chars: frozenset[str], after: int) -> int:
        if len(self._sets) >= _MOST_STATES:
            raise ValueError("it is too complex")
        self._sets.append((chars, after))
        return len(self._sets) - 1

    def _fork(self, *ways: int) -> int:
        state = self._state(frozenset(), 0)
        self._free[state] = list(ways)
        return state

    def _alternatives(self) -> _Build:
        options = [self._sequence()]
        while self._takes("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else lambda after: self._fork(*(option(after) for option in options))

    def _sequence(self) -> _Build:
        parts: list[_Build] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repetition(self._atom()))

        def build(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return build

    def _repetition(self, atom: _Build) -> _Build:
        while (char := self._text[self._at : self._at + 1]) and char in "*+?{":
            self._at += 1
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char) or self._bounds()
            self._takes("?")  # a lazy one matches the same names
            atom = self._times(atom, least, most)
        return atom

    def _times(self, atom: _Build, least: int, most: int | None) -> _Build:
        def build(after: int) -> int:
            if most is None:
                loop = self._fork(after)
                self._free[loop].append(atom(loop))
                after = loop
            for _ in range((most or least) - least):
                after = self._fork(after, atom(after))
            for _ in range(least):
                after = atom(after)
            return after

        return build

    def _bounds(self) -> tuple[int, int | None]:
        text, closed, _ = self._text[self._at :].partition("}")
        self._at += len(text) + 1
        first, comma, last = text.partition(",")
        bounds = [first, last or first] if comma else [first, first]
        if not closed or not all(bound.isascii() and bound.isdigit() for bound in bounds):
            raise ValueError("a repetition is not {number} or {number,number}")
        least, most = map(int, bounds)
        if not least <= most <= _MOST_STATES:
            raise ValueError("the numbers of a repetition are too large, or in the wrong order")
        return least, None if comma and not last else most

    def _atom(self) -> _Build:
        char = self._next()
        if char == "(":
            return self._group()
        if char in "*+?{":
            raise ValueError(f"nothing is before {char!r}")
        chars = {
            "^": lambda: frozenset(_BEGIN), "$": lambda: frozenset(_END), ".": lambda: _ALPHABET,
            "[": self._class, "\\": self._escape,
        }.get(char, lambda: frozenset(char))()  # fmt: skip
        return lambda after: self._state(chars, after)

    def _group(self) -> _Build:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("its groups are too deep")
        if self._takes("?") and not self._takes(":"):
            raise ValueError("of groups with ? only (?:…) is known")
        inner = self._alternatives()
        if not self._takes(")"):
            raise ValueError("a group is not closed")
        self._depth -= 1
        return inner

    def _escape(self) -> frozenset[str]:
        char = self._next()
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char in ascii_lowercase or char in ascii_uppercase or char in digits:
            raise ValueError(f"\\{char} is not known")
        return frozenset(char)

    def _class(self) -> frozenset[str]:
        is_negated, found, is_first = self._takes("^"), set[str](), True
        while is_first or not self._takes("]"):
            is_first, char = False, self._next()
            if char == "[" and self._text[self._at : self._at + 1] == ":":
                raise ValueError("named classes are not known")
            chars = self._escape() if char == "\\" else frozenset(char)
            if self._text[self._at : self._at + 1] == "-" and self._text[self._at + 1 : self._at + 2] not in {"", "]"}:
                self._at += 1
                last = self._next()
                if len(chars) != 1 or last == "\\" or min(chars) > last:
                    raise ValueError("a range of a class is wrong")
                chars = frozenset(char for char in _ALPHABET if min(chars) <= char <= last)
            found |= chars
        return _ALPHABET - found if is_negated else frozenset(found)

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise ValueError("it ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, char: str) -> bool:
        if self._text[self._at : self._at + 1] != char:
            return False
        self._at += 1
        return True
