"""A random trace of jobs with a seed, the same for every rule that is compared."""

import random
from dataclasses import dataclass
from typing import Final

REQUESTS: Final = (1, 2, 4, 8)
MEAN_LIFE_H: Final = 1.0


@dataclass(frozen=True, slots=True)
class Job:
    """A job of one pod.

    Attributes:
        number: in order of arrival.
        chips: the number of requested chips.
        arrives_h: when it is submitted, hours.
        lasts_h: how long it runs once it is placed, hours.
    """

    number: int
    chips: int
    arrives_h: float
    lasts_h: float


def trace(count: int, *, chips: int, demand: float, seed: int) -> list[Job]:
    """Return jobs of 1, 2, 4 and 8 chips, equally likely; arrivals and durations are exponentially distributed.

    Args:
        count: the number of jobs.
        chips: the number of chips of the cluster.
        demand: the share of these chips that the jobs would use on average if none had to wait.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    per_hour = demand * chips / (sum(REQUESTS) / len(REQUESTS) * MEAN_LIFE_H)
    jobs, now_h = [], 0.0
    for number in range(count):
        now_h += rng.expovariate(per_hour)
        jobs.append(Job(number, rng.choice(REQUESTS), now_h, rng.expovariate(1 / MEAN_LIFE_H)))
    return jobs


def in_turn(count: int) -> list[Job]:
    """Return jobs of 1, 2, 4 and 8 chips in turn that never end: the input of docs/spec/measurements.md#throughput."""
    return [Job(number, REQUESTS[number % len(REQUESTS)], 0.0, float("inf")) for number in range(count)]
