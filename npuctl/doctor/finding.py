"""A finding, and a check that tells some."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """What a check has found.

    Attributes:
        check: what was looked at.
        severity: ``problem``: pods can't get chips, or get wrong ones; ``warning``: something to know.
        sentence: what was found.
        advice: what to do; empty where nothing is to be done.
    """

    check: str
    severity: Severity
    sentence: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A look at one thing.

    Attributes:
        name: what is looked at.
        look: tells what is found.
        deadline_s: how long it may take.
    """

    name: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    deadline_s: float = 10.0


async def carry_out(check: Check) -> Sequence[Finding]:
    """The findings of a check; one that takes too long or breaks is a finding itself."""
    try:
        async with asyncio.timeout(check.deadline_s):
            return await check.look()
    except TimeoutError:
        return [Finding(check.name, "problem", f"no answer within {check.deadline_s:g} s")]
    except Exception as error:  # noqa: BLE001 - a check that breaks must not keep the others from being made
        return [Finding(check.name, "problem", f"the check itself failed: {type(error).__name__}: {error}")]
