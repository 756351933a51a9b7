r"""Text of strangers without what terminals, logs and readers would obey: control characters are escaped.

Escaped are all characters that Unicode counts as not printable: C0 and C1 controls (so every escape sequence), marks
that turn the direction of text, characters of no width, separators of lines and paragraphs, lone surrogates. They are
written as in Python (``\x1b``, ``\u202e``), which neither YAML, nor JSON, nor a shell takes for the character.
"""

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = 100


def shown(value: object) -> str:
    """Return a value as in Python for an error message, shortened: one of YAML may have a thousand million parts."""
    return _SHORT.repr(value)


def printable(text: str) -> str:
    """One line of text without control characters; line ends are escaped, too: a name must not begin a new line."""
    if text.isprintable():  # nearly always
        return text
    return "".join(character if character.isprintable() else _escaped(character) for character in text)


def printable_lines(text: str) -> str:
    """Text of several lines without control characters, other than the line ends."""
    if text.isprintable():
        return text
    return "\n".join(map(printable, text.split("\n")))


def escaped_json(text: str) -> str:
    """JSON, or YAML with its strings in double quotes, of the same meaning without control characters in its strings.

    Such a character stands only within strings, and encoders leave those above U+007F as they are.
    """
    lines = text.split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_in_json, line)) for line in lines)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _in_json(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
