"""Quantities of resources in manifests, with those of chips as the API server would print them.

The grammar is that of k8s.io/apimachinery's ``resource.Quantity``, without a minus: a resource can't be negative.
"""

import re
from decimal import Decimal

from ascend.chips import RESOURCE

_QUANTITY = re.compile(r"\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?", re.ASCII)
_OURS = RESOURCE.partition("/")[0] + "/"

_LONGEST = 28
"""Characters; decimal numbers of more digits are rounded."""

_MOST_DIGITS = 19
"""Of a whole number; the API server counts in 64 bits."""


def read_quantity(resource: str, written: object) -> str | None:
    """A quantity as text; None where it is none.

    One of chips that is whole is in digits alone, as ``8`` for ``8000m`` or ``8.0``; any other is as it was written.

    Args:
        resource: of what.
        written: text or a number.
    """
    text = str(written) if isinstance(written, int | float | str) and not isinstance(written, bool) else ""
    if not _QUANTITY.fullmatch(text):
        return None
    return text if text.isdigit() or not str(resource).startswith(_OURS) else _plain(text)


def _plain(text: str) -> str:
    if len(text) > _LONGEST:
        return text
    # Importing it takes longer than all the rest of a plan, and few manifests need it.
    from kubernetes.utils.quantity import parse_quantity

    try:
        value: Decimal = parse_quantity(text)
    except ValueError:  # an exponent beyond all bounds
        return text
    # Only now: written out, a number such as 1e999999999 fills the memory.
    if value and not 0 <= value.adjusted() < _MOST_DIGITS:
        return text
    return str(int(value)) if value == value.to_integral_value() else text
