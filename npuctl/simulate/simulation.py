"""Runs jobs on servers, on a virtual clock: arrivals, starts, ends, faults and repairs.

Whenever a job ends all waiting jobs are tried: the highest priority first, then the oldest; of jobs that request alike
none is tried after one that did not start. A job that arrives is tried alone. Nobody is preempted.
"""

import heapq
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ascend.errors import InvalidValue
from npuctl.simulate.jobs import HOUR_S, SimulatedJob
from npuctl.simulate.measures import Measures
from npuctl.simulate.servers import Fleet, PodPlace

_AGAIN_S: Final = (0.0, 60.0, 600.0, HOUR_S)
"""After these times jobs are tried again while nothing runs: an allocator may keep chips for a job for some time."""

_MOST_FAULTS: Final = 100_000


class VirtualScheduler:
    """Decides where jobs run; by default it needs not know of anything but jobs to start.

    Attributes:
        keeps: whether pods only get chips that are linked as they have to be.
    """

    keeps = True

    def submit(self, job: SimulatedJob) -> None:
        """See a job arrive."""

    def start(self, job: SimulatedJob, candidates: Collection[str] | None = None) -> Sequence[PodPlace] | None:
        """Take the chips for all pods of a job, or for none of them.

        Args:
            job: a job that was submitted.
            candidates: the names of nodes; None for all.
        """
        raise NotImplementedError

    def end(self, job: SimulatedJob) -> None:
        """See a job that runs end; its chips are given back already."""

    def end_pod(self, uid: str) -> None:
        """See a pod end that ran from the beginning on."""

    def set_health(self, name: str) -> None:
        """See a chip of a node break, or become healthy."""

    @property
    def kept(self) -> int:
        """The number of free chips that are kept for a job that waits."""
        return 0


class Faults:
    """Faults of chips, at random; the same for every scheduler.

    Args:
        per_chip_s: how many there are of each chip in a second, in the mean.
        repair_s: how long a repair takes, in the mean.
        checkpoint_s: how often jobs save their work; what they did since is lost.
        seed: of all random choices.
    """

    def __init__(
        self, per_chip_s: float = 0.0, *, repair_s: float = 24 * HOUR_S, checkpoint_s: float = HOUR_S, seed: int = 0
    ) -> None:
        self._per_chip_s = per_chip_s
        self._repair_s = repair_s
        self.checkpoint_s = checkpoint_s
        self._seed = seed

    def stream(self, servers: Fleet) -> Iterator[tuple[float, str, int, float]]:
        """When the next fault comes, on which chip, and when it is repaired."""
        rng, now_s, names = random.Random(self._seed), 0.0, list(servers)  # noqa: S311 - not for secrets
        chips = [(name, chip) for name in names for chip in range(servers.product(name).chips)]
        while self._per_chip_s and chips:
            now_s += rng.expovariate(self._per_chip_s * len(chips))
            name, chip = chips[int(rng.random() * len(chips))]
            yield now_s, name, chip, now_s + rng.expovariate(1 / self._repair_s)


class Simulation:
    """Servers, a scheduler and a clock.

    Args:
        servers: the servers.
        schedule: makes the scheduler; called with the servers and the clock.
        faults: of chips.
        residents: what the pods hold that run at the beginning, with their ends, by uid.
        measures: counts what happens.

    Attributes:
        now_s: the time.
        scheduler: the scheduler.
        waiting: the jobs that wait, and what is left of the time they run.
    """

    tries_all = False
    """Whether all waiting jobs are tried when one arrives; else only that one."""

    def __init__(
        self,
        servers: Fleet,
        schedule: Callable[[Fleet, Callable[[], float]], VirtualScheduler],
        *,
        faults: Faults | None = None,
        residents: Mapping[str, tuple[PodPlace, float]] | None = None,
        measures: Measures | None = None,
    ) -> None:
        self.now_s = 0.0
        self.servers = servers
        self.measures = measures or Measures(servers)
        self.scheduler = schedule(servers, lambda: self.now_s)
        self.waiting: dict[SimulatedJob, float] = {}
        self.running: dict[SimulatedJob, tuple[float, float, Sequence[PodPlace]]] = {}
        self._faults = faults or Faults()
        self._coming = self._faults.stream(servers)
        self._holders: dict[tuple[str, int], SimulatedJob] = {}
        self._residents = dict(residents or {})
        # Ends, repairs and faults: the time, a number that tells equal ones apart, what happens, and to what.
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._count = 0  # of faults
        self._relief = 0  # how many repairs and ends of residents are to come
        for uid, (_, ends_s) in self._residents.items():
            self._relief += ends_s < float("inf")
            self._at(ends_s, self._end_resident, uid)
        self._next_fault()

    def run(self, jobs: Iterable[SimulatedJob], until_s: float | None = None) -> Measures:
        """Run jobs, in order of arrival, until a time, or until all of them have ended.

        Raises:
            ValueError: the scheduler takes chips that are in use, or that are not linked as it promises.
            InvalidValue: a job does not end at the rate of faults.
        """
        for job in jobs:
            self._advance(job.arrives_s)
            self.submit(job, job.lasts_s)
            self._try(self._in_turn(self.waiting) if self.tries_all else [job])
        if until_s is not None:
            self._advance(until_s)
        else:
            self._finish()
        self.measures.finish(self.now_s, self.waiting)
        return self.measures

    def submit(self, job: SimulatedJob, lasts_s: float) -> None:
        """Let a job wait that has so much left to do."""
        self.waiting[job] = lasts_s
        self.scheduler.submit(job)
        self.measures.submit(job, self.now_s)

    def _finish(self) -> None:
        while self.waiting or self.running:
            if self.running or self._relief:
                self._next_event()
            elif not any(self._tried_after(wait_s) for wait_s in _AGAIN_S):
                return

    def _tried_after(self, wait_s: float) -> bool:
        self._pass(self.now_s + wait_s)
        self._try(self._in_turn(self.waiting))
        return bool(self.running)

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            self._next_event()
        self._pass(until_s)

    def _next_event(self) -> None:
        at_s, _, happens, arguments = heapq.heappop(self._events)
        self._pass(at_s)
        happens(*arguments)

    def _pass(self, until_s: float) -> None:
        if until_s < self.now_s:
            raise ValueError(f"the time is {self.now_s} s, and can't be {until_s} s")
        kept = self.scheduler.kept if self.waiting else 0
        self.measures.pass_time(self.now_s, until_s, self.waiting, kept)
        self.now_s = until_s

    def _at(self, at_s: float, happens: Callable[..., None], *arguments: Any) -> None:
        if at_s < float("inf"):
            self._number += 1
            heapq.heappush(self._events, (at_s, self._number, happens, arguments))

    def _in_turn(self, jobs: Iterable[SimulatedJob]) -> list[SimulatedJob]:
        """The jobs in the order in which they are tried."""
        return sorted(jobs, key=lambda job: job.turn)

    def _try(self, jobs: Iterable[SimulatedJob]) -> None:
        refused = set[tuple[int, int, int]]()
        for job in jobs:
            kind = job.pods, job.chips, job.priority
            if kind not in refused and not self.start(job):
                refused.add(kind)

    def start(self, job: SimulatedJob, candidates: Collection[str] | None = None) -> bool:
        """Start a waiting job, if the scheduler finds chips; returns whether it did."""
        places = self.scheduler.start(job, candidates)
        if places is None:
            return False
        lasts_s = self.waiting.pop(job)
        ends_s = self.now_s + lasts_s
        self.running[job] = self.now_s, ends_s, places
        self._holders |= {(place.node, chip): job for place in places for chip in place.chips}
        self.measures.start(job, self.now_s, places, keeps=self.scheduler.keeps)
        self._at(ends_s, self._end, job, ends_s)
        return True

    def _end(self, job: SimulatedJob, ends_s: float) -> None:
        if job not in self.running or self.running[job][1] != ends_s:
            return  # a fault has ended it before
        self._free(job)
        self.measures.end(job, self.now_s)
        self._try(self._in_turn(self.waiting))

    def _free(self, job: SimulatedJob) -> None:
        _, _, places = self.running.pop(job)
        for place in places:
            self.servers.give_back(place)
            for chip in place.chips:
                del self._holders[place.node, chip]
        self.scheduler.end(job)

    def _end_resident(self, uid: str) -> None:
        self._relief -= 1
        if (resident := self._residents.pop(uid, None)) is not None:
            self.servers.give_back(resident[0])
            self.scheduler.end_pod(uid)
            self._try(self._in_turn(self.waiting))

    def _next_fault(self) -> None:
        if (fault := next(self._coming, None)) is not None:
            self._at(fault[0], self._break, *fault[1:])

    def _break(self, name: str, chip: int, repaired_s: float) -> None:
        self._next_fault()
        self._count += 1
        if self._count > _MOST_FAULTS:
            raise InvalidValue(f"at this rate jobs have not ended after {_MOST_FAULTS:,} faults of chips")
        if self.servers.state(name).broken >> chip & 1:
            return
        job = self._holders.get((name, chip))
        started_s = self.running[job][0] if job is not None else 0.0
        left_s = self.running[job][1] - self.now_s if job is not None else 0.0
        if job is not None:
            self._free(job)
        for uid, (place, _) in list(self._residents.items()):
            if place.node == name and chip in place.chips:
                del self._residents[uid]
                self.servers.give_back(place)
                self.scheduler.end_pod(uid)
        self.servers.break_chip(name, chip)
        self.scheduler.set_health(name)
        self._relief += 1
        self._at(repaired_s, self._repair, name, chip)
        if job is not None:
            self._restart(job, started_s, left_s)
        self._try(self._in_turn(self.waiting))

    def _restart(self, job: SimulatedJob, started_s: float, left_s: float) -> None:
        lost_s = (self.now_s - started_s) % self._faults.checkpoint_s if self._faults.checkpoint_s else 0.0
        self.measures.interrupt(job, lost_s)
        self.submit(job, left_s + lost_s)

    def _repair(self, name: str, chip: int) -> None:
        self._relief -= 1
        self.servers.repair(name, chip)
        self.scheduler.set_health(name)
        self._try(self._in_turn(self.waiting))
