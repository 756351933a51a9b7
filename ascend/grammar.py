"""Number and article in the sentences that programs write."""


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: ``1 chip``, ``2 chips``.

    Args:
        number: the number.
        noun: the singular.
        plural: the plural, where it is not the singular with an ``s``.
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def a(noun: str) -> str:
    """A noun with its indefinite article, by how product names are spoken: ``an A3-16 server``, ``a 910A server``."""
    first = noun[:1]
    # A name in capitals is spelled ("an NPU"), and so is one like A3.
    is_spelled = noun[:2].isupper() or (noun[1:2].isdigit() and first.isupper())
    sounds_like_vowel = first in "AEFHILMNORSX" if is_spelled else first.lower() in "aeiou" or first == "8"
    return f"{'an' if sounds_like_vowel else 'a'} {noun}"
