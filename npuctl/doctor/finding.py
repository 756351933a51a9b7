"""A check and its findings."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, Unpack

import msgspec
from msgspec import structs


class Finding(msgspec.Struct, frozen=True):
    """What a check has found.

    Attributes:
        check: the name of the check; a check itself leaves it to its caller (``named``).
        severity: ``problem``: pods get no chips, or wrong ones; ``warning``: they do, but an operator should know.
        sentence: what was found.
        advice: what to do; empty if there is nothing to do.
        reason: why, as one of docs/reasons.md; empty where that says nothing.
        nodes: the nodes that it is about, all of them.
        pods: the pods (``namespace/name``) that it is about, all of them.
        codes: the fault codes that it is about.
    """

    check: str
    severity: Literal["ok", "warning", "problem"]
    sentence: str
    advice: str = ""
    reason: str = ""
    nodes: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()


class Facts(TypedDict, total=False):
    """What a finding is about, for programs; see ``Finding``."""

    reason: str
    nodes: tuple[str, ...]
    pods: tuple[str, ...]
    codes: tuple[str, ...]


def ok(sentence: str, advice: str = "", **facts: Unpack[Facts]) -> Finding:
    """Return a finding that is as it should be."""
    return Finding("", "ok", sentence, advice, **facts)


def warning(sentence: str, advice: str = "", **facts: Unpack[Facts]) -> Finding:
    """Return a finding that an operator should know."""
    return Finding("", "warning", sentence, advice, **facts)


def problem(sentence: str, advice: str = "", **facts: Unpack[Facts]) -> Finding:
    """Return a finding because of which pods get no chips, or wrong ones."""
    return Finding("", "problem", sentence, advice, **facts)


def named(check: str, findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with the name of their check."""
    return [structs.replace(finding, check=check) for finding in findings]


@dataclass(frozen=True, slots=True)
class Check:
    """A check.

    Attributes:
        name: the subject of the check.
        about: what it looks at, and what a problem or warning means; for the documentation.
        look: returns the findings.
        deadline_s: time limit in seconds.
    """

    name: str
    about: str
    look: Callable[[], Sequence[Finding] | Awaitable[Sequence[Finding]]]
    deadline_s: float = 10.0


async def run_check(check: Check) -> list[Finding]:
    """Return the findings of a check; a timeout or an exception is a finding too."""
    try:
        async with asyncio.timeout(check.deadline_s):
            found = check.look()
            return named(check.name, found if isinstance(found, Sequence) else await found)
    except TimeoutError:
        return [Finding(check.name, "problem", f"no answer within {check.deadline_s:g} s")]
    except Exception as error:  # noqa: BLE001 - a check that fails must not prevent the others
        return [Finding(check.name, "problem", f"the check itself failed: {type(error).__name__}: {error}")]
