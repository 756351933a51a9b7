"""The jobs of a simulation: from a CSV file, or at random by rates."""

import csv
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ascend.errors import InvalidValue
from ascend.grammar import some
from ascend.printable import shown

HOUR_S: Final = 3600.0
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": HOUR_S, "d": 24 * HOUR_S}
_TIME: Final = re.compile(r"(?:\d+(?:\.\d+)?[smhd])+")
_RATE: Final = re.compile(r"(?:([0-9]{1,4})x)?([0-9]{1,4})=([0-9.]{1,12})(?::([0-9.]{1,12}))?")
_ALIASES: Final = {"submit_s": "submitted", "duration_s": "duration"}
_TOGETHER: Final = {"gang": True, "alone": False}
_MOST: Final = 10_000
_MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A pod, or several pods that start together.

    Attributes:
        arrives_s: when it is submitted, in seconds.
        number: in order of arrival.
        chips: the number of chips of each pod.
        lasts_s: how long it runs once it has started, in seconds.
        pods: the number of its pods.
        priority: the priority of its pods.
        namespace: their namespace.
    """

    arrives_s: float
    number: int
    chips: int
    lasts_s: float
    pods: int = 1
    priority: int = 0
    namespace: str = "default"

    @property
    def size(self) -> int:
        """The number of its chips."""
        return self.chips * self.pods

    @property
    def turn(self) -> tuple[int, float, int]:
        """The place in the queue: the highest priority first, then the oldest."""
        return -self.priority, self.arrives_s, self.number


def read_jobs(path: Path, largest: int, warn: Callable[[str], None]) -> list[SimulatedJob]:
    """Return the jobs of a CSV file, in order of arrival; the first arrives at 0.

    Args:
        path: the file. Its columns, all optional but one: submitted, duration, chips, pods, priority, namespace, kind.
        largest: the chips of the largest server: a job of more chips takes whole servers, if no column says its pods.
        warn: called with a sentence about columns without a meaning.

    Raises:
        InvalidValue: the file can't be read, or a row is invalid.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.DictReader(lines, strict=True)
            columns = {name: _ALIASES.get(name.strip(), name.strip()) for name in rows.fieldnames or ()}
            unused = [name for name, column in columns.items() if column not in _READERS]
            if len(unused) == len(columns):
                raise InvalidValue(f"{shown(str(path))}: the first row names none of the columns {', '.join(_READERS)}")
            if unused:
                warn(f"{path}: {'columns' if len(unused) > 1 else 'column'} {some(unused)} not used")
            found = list[SimulatedJob]()
            for row in rows:
                where = f"{shown(str(path))}: row {rows.line_num}"
                if None in row or rows.line_num > _MOST_ROWS:
                    raise InvalidValue(f"{where} has more values than there are columns, or is beyond {_MOST_ROWS:,}")
                found += _jobs_of(_values(row, columns, where), largest, where)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidValue(f"{shown(str(path))}: {error}") from error
    if not found:
        raise InvalidValue(f"{shown(str(path))} has no jobs")
    first_s = min(job.arrives_s for job in found)
    return _numbered(replace(job, arrives_s=job.arrives_s - first_s) for job in found)


def _values(row: Mapping[str, str | None], columns: Mapping[str, str], where: str) -> dict[str, Any]:
    values = dict[str, Any]()
    for name, column in columns.items():
        text = (row[name] or "").strip()
        if column not in _READERS or not text:
            continue
        read, what = _READERS[column]
        try:
            values[column] = read(text)
        except (ValueError, KeyError, OverflowError):
            raise InvalidValue(f"{where}, column {name}: {shown(text)} is not {what}") from None
    return values


def _jobs_of(values: Mapping[str, Any], largest: int, where: str) -> list[SimulatedJob]:
    chips, pods = values.get("chips", 1), values.get("pods")
    if pods is None and chips > largest:
        if chips % largest:
            raise InvalidValue(
                f"{where}, column chips: {chips} is more than a server has, and not a multiple of {largest}: give the "
                "number of pods, and the chips of each"
            )
        pods, chips = chips // largest, largest
    job = SimulatedJob(
        values.get("submitted", 0.0),
        0,
        chips,
        values.get("duration", HOUR_S),
        pods or 1,
        values.get("priority", 0),
        values.get("namespace", "default"),
    )
    return [job] if values.get("kind", True) else [replace(job, pods=1)] * job.pods


def _numbered(jobs: Iterable[SimulatedJob]) -> list[SimulatedJob]:
    ordered = sorted(jobs, key=lambda job: job.arrives_s)
    return [replace(job, number=number) for number, job in enumerate(ordered)]


def read_seconds(text: str) -> float:
    """Return a time in seconds: a number of them, or as in ``90s``, ``1h30m``, ``2d``.

    Raises:
        ValueError: it is not a time, or is negative.
    """
    if _TIME.fullmatch(text):
        parts = re.findall(r"([0-9.]+)([smhd])", text)
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    seconds = float(text)
    if not 0 <= seconds < math.inf:
        raise ValueError(text)
    return seconds


def _read_moment(text: str) -> float:
    try:
        return read_seconds(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


def _read_count(text: str) -> int:
    if not 0 < (number := int(text)) <= _MOST:
        raise ValueError(text)
    return number


def _read_priority(text: str) -> int:
    if not -(1 << 31) <= (number := int(text)) < 1 << 31:
        raise ValueError(text)
    return number


_READERS: Final[Mapping[str, tuple[Callable[[str], Any], str]]] = {
    "submitted": (_read_moment, "a time: seconds, 1h30m, or RFC 3339"),
    "duration": (read_seconds, "a time: seconds, 90s, 1h30m or 2d"),
    "chips": (_read_count, f"a number from 1 to {_MOST:,}"),
    "pods": (_read_count, f"a number from 1 to {_MOST:,}"),
    "priority": (_read_priority, "a priority"),
    "namespace": (str, "a namespace"),
    "kind": (_TOGETHER.__getitem__, f"a kind: {' (pods that start together) or '.join(_TOGETHER)}"),
}
"""How each column is read, and what it has to be."""


def random_jobs(rates: Sequence[str], for_s: float, seed: int) -> list[SimulatedJob]:
    """Return jobs that arrive at random for a time, and last for random times, both exponentially distributed.

    Args:
        rates: ``[PODSx]CHIPS=JOBS[:HOURS]``: so many jobs an hour, which last so many hours in the mean, or 1.
        for_s: how long they arrive.
        seed: of all random choices.

    Raises:
        InvalidValue: a rate is malformed.
    """
    rng, jobs = random.Random(seed), list[SimulatedJob]()  # noqa: S311 - not for secrets
    for text in rates:
        found = _RATE.fullmatch(text)
        try:
            pods, chips, per_hour, hours = found.groups() if found else ("", "", "", "")
            mean_s, rate = float(hours or 1) * HOUR_S, float(per_hour) / HOUR_S
            count, each_chips = _read_count(pods or "1"), _read_count(chips)
            if not (rate > 0 and mean_s > 0) or rate * for_s > _MOST_ROWS:
                raise ValueError(text)
        except ValueError:
            raise InvalidValue(
                f"--rate: {shown(text)} is not [PODSx]CHIPS=JOBS_AN_HOUR[:HOURS], as in 1=40 or 4x8=0.5:6"
            ) from None
        now_s = rng.expovariate(rate)
        while now_s < for_s:
            jobs.append(SimulatedJob(now_s, 0, each_chips, rng.expovariate(1 / mean_s), count))
            now_s += rng.expovariate(rate)
    return _numbered(jobs)


def at_load(jobs: Sequence[SimulatedJob], chips: int, load: float) -> list[SimulatedJob]:
    """Return the jobs with arrivals stretched until they would use this share of the chips if none waited."""
    work_s, last_s = sum(job.size * job.lasts_s for job in jobs), max((job.arrives_s for job in jobs), default=0.0)
    stretch = work_s / (chips * load * last_s) if last_s else 1.0
    return [replace(job, arrives_s=job.arrives_s * stretch) for job in jobs]
