"""The history as intervals, in which something of a job or a node did not change."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

OPEN: Final = 1 << 62
"""The end of an interval that has not ended."""

MOST_TEXT: Final = 400
"""Characters of a text that are kept: users can write thousands."""

MOST_BEHIND: Final = 5
"""Jobs before a job that are kept by name."""


class IntervalKind(StrEnum):
    """What an interval is about."""

    WAITS = "waits"
    """A job, or its pods of one priority, waits for chips."""

    RUNS = "runs"
    """A pod holds chips of a node."""

    FAULT = "fault"
    """A chip can't be allocated."""

    NODE = "node"
    """A node is there, with so many chips, used or not."""

    LIMIT = "limit"
    """Of a job or node more changes than ``MOST_ROWS`` came on one day: the others are not recorded."""


class Key(NamedTuple):
    """What stays the same over the changes of something.

    Attributes:
        kind: what it is.
        job: the job (``namespace/name``); empty of nodes and their faults.
        node: the node; empty of what waits.
        name: the pod (``namespace/name``), the chip, or the priority of pods that wait.
    """

    kind: IntervalKind
    job: str = ""
    node: str = ""
    name: str = ""


class KeyState(NamedTuple):
    """What may change.

    Attributes:
        state: a new interval begins when this changes: the numbers of chips, what is wrong with a chip, or
            ``WaitReason`` or a tile of the page without its chips as JSON.
        detail: what is shown with it, as of its begin: ``WaitDetail`` as JSON.
    """

    state: str
    detail: str = ""


Observed: TypeAlias = Mapping[str, Mapping[Key, KeyState]]
"""All that is true now, by node; what waits is below an empty name."""

WAITING: Final = ""


class WaitReason(msgspec.Struct, frozen=True, array_like=True):
    """Why a job waits: what happens next, the reason (a word), and the jobs before it."""

    next: str
    reason: str = ""
    behind: tuple[str, ...] = ()


class WaitDetail(msgspec.Struct, frozen=True, array_like=True):
    """A job in the queue: the place, the requests, the time since when (RFC 3339), and why, a sentence."""

    position: int
    requests: str = ""
    since: str = ""
    message: str = ""


class Interval(NamedTuple):
    """An interval of the store, in Unix seconds; ``ended`` is ``OPEN`` while it goes on."""

    key: Key
    state: KeyState
    began: int
    ended: int


def cut(text: str, most: int = MOST_TEXT) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
