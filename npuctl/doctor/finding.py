"""A check and its findings."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

Severity: TypeAlias = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """What a check has found.

    Attributes:
        check: the name of the check.
        severity: ``problem``: pods get no chips, or wrong ones; ``warning``: they do, but an operator should know.
        sentence: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    check: str
    severity: Severity
    sentence: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        name: the subject of the check.
        look: returns the findings.
        deadline_s: time limit in seconds.
    """

    name: str
    look: Callable[[], Awaitable[Sequence[Finding]]]
    deadline_s: float = 10.0


async def run_check(check: Check) -> Sequence[Finding]:
    """Return the findings of a check; a timeout or an exception is a finding too."""
    try:
        async with asyncio.timeout(check.deadline_s):
            return await check.look()
    except TimeoutError:
        return [Finding(check.name, "problem", f"no answer within {check.deadline_s:g} s")]
    except Exception as error:  # noqa: BLE001 - a check that fails must not prevent the others
        return [Finding(check.name, "problem", f"the check itself failed: {type(error).__name__}: {error}")]
