"""The settings that a simulation compares: each is a side with its own servers, policy, load or settings."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue
from ascend.printable import shown
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects
from npuctl.simulate.engine import Engine, in_simulation, residents_of, servers_of
from npuctl.simulate.jobs import HOUR_S, SimulatedJob, at_load
from npuctl.simulate.measures import Measures
from npuctl.simulate.policies import POLICIES
from npuctl.simulate.servers import Fleet, described_nodes
from npuctl.simulate.simulation import Faults, Simulation, VirtualScheduler

ALLOCATOR: Final = "allocator"
_MOST: Final = 1e6
_PER_DAY: Final = 24 * HOUR_S * 1_000


@dataclass(frozen=True, slots=True)
class Side:
    """What is simulated.

    Attributes:
        name: its name in tables.
        objects: the cluster.
        settings: the allocator's settings.
        now_ns: the time at which it begins.
        policy: who places pods.
        load: the share of the chips that the jobs would use if none waited; None to leave their arrivals as they are.
        faults: faults of 1,000 chips in a day.
        repair_s: how long a repair takes, in the mean.
        checkpoint_s: how often jobs save their work.
        running_s: how long the pods of the cluster still run, in the mean; None: as long as the simulation.
        seed: of all random choices.
    """

    name: str
    objects: ClusterObjects
    settings: Settings
    now_ns: int
    policy: str = ALLOCATOR
    load: float | None = None
    faults: float = 0.0
    repair_s: float = 24 * HOUR_S
    checkpoint_s: float = HOUR_S
    running_s: float | None = None
    seed: int = 0

    def with_changes(self, text: str) -> "Side":
        """Return a side with changes: ``policy``, ``servers``, ``load``, ``faults``, or settings of the allocator.

        Args:
            text: the changes, as in ``earmark_share=0,policy=tables``.

        Raises:
            InvalidValue: a change is malformed or unknown.
        """
        side, changes = replace(self, name=text), dict[str, object]()
        for change in _parts(text):
            key, equals, value = change.partition("=")
            if not equals:
                raise InvalidValue(
                    f"--compare: {shown(change)} is not KEY=VALUE, as in policy=tables or earmark_share=0"
                )
            if key == "policy":
                if value not in {ALLOCATOR, *POLICIES}:
                    known = ", ".join((ALLOCATOR, *POLICIES))
                    raise InvalidValue(f"--compare: there is no policy {shown(value)}; the policies are {known}")
                side = replace(side, policy=value)
            elif key == "servers":
                side = replace(side, objects=ClusterObjects.of(described_nodes(value)))
            elif key in {"load", "faults"}:
                number = read_load(f"--compare: {key}", value)
                side = replace(side, load=number) if key == "load" else replace(side, faults=number)
            else:
                changes[key.replace("-", "_")] = value
        read = fixed_settings(Settings, None, changes)
        return replace(side, settings=replace(self.settings, **{key: getattr(read, key) for key in changes}))

    def servers(self) -> Fleet:
        """Return its servers at the beginning."""
        return servers_of(self._allocator())

    def _allocator(self) -> OfflineAllocator:
        return OfflineAllocator(self.objects, in_simulation(self.settings), self.now_ns)

    def never(self, jobs: Iterable[SimulatedJob]) -> set[tuple[int, int]]:
        """Return the jobs, as numbers of pods and chips, that don't fit on idle servers."""
        idle = replace(self, objects=self.objects.with_pods(()))
        servers = idle.servers()
        scheduler = idle.schedule(())(servers, lambda: 0.0)
        kinds = {(job.pods, job.chips): job for job in jobs}
        found = set[tuple[int, int]]()
        for kind, job in sorted(kinds.items()):
            scheduler.submit(job)
            places = scheduler.start(job)
            if places is None:
                found.add(kind)
                continue
            for place in places:
                servers.give_back(place)
            scheduler.end(job)
        return found

    def arriving(self, jobs: Sequence[SimulatedJob], servers: Fleet) -> Sequence[SimulatedJob]:
        """Return the jobs as they arrive at its load."""
        return jobs if self.load is None else at_load(jobs, servers.chips, self.load)

    def run(
        self,
        jobs: Sequence[SimulatedJob],
        progress: Callable[[Sequence[SimulatedJob]], Iterable[SimulatedJob]] = lambda jobs: jobs,
    ) -> Measures:
        """Return what happens until all jobs have ended.

        Args:
            jobs: the jobs, in order of arrival.
            progress: passes the jobs on, and shows how far they are.
        """
        allocator = self._allocator()
        servers = servers_of(allocator)
        arriving = self.arriving(jobs, servers)
        rng = Random(self.seed)  # noqa: S311 - not for secrets
        residents = {
            uid: (place, rng.expovariate(1 / self.running_s) if self.running_s else float("inf"))
            for uid, place in residents_of(allocator, servers).items()
        }
        faults = Faults(self.faults / _PER_DAY, repair_s=self.repair_s, checkpoint_s=self.checkpoint_s, seed=self.seed)
        simulation = Simulation(servers, self.schedule(arriving), faults=faults, residents=residents)
        return simulation.run(progress(arriving))

    def faults_of(self) -> Faults:
        """Return its faults."""
        return Faults(self.faults / _PER_DAY, repair_s=self.repair_s, checkpoint_s=self.checkpoint_s, seed=self.seed)

    def schedule(self, jobs: Sequence[SimulatedJob]) -> Callable[[Fleet, Callable[[], float]], VirtualScheduler]:
        """Return what makes the scheduler, given its servers and the clock."""

        def schedule(servers: Fleet, elapsed_s: Callable[[], float]) -> VirtualScheduler:
            if self.policy == ALLOCATOR:
                return Engine(self.objects, self.settings, self.now_ns, elapsed_s, servers)
            made: VirtualScheduler = POLICIES[self.policy](servers, self.seed, jobs)
            return made

        return schedule


def _parts(text: str) -> list[str]:
    """The changes of a text; a comma without a key after it belongs to the value before it."""
    parts = list[str]()
    for part in text.split(","):
        if "=" in part or not parts:
            parts.append(part)
        else:
            parts[-1] += f",{part}"
    return parts


def read_load(what: str, text: str) -> float:
    """Return a load, or a number of faults.

    Raises:
        InvalidValue: it is nothing of that kind.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= _MOST:
        raise InvalidValue(f"{what}: {shown(text)} is not a number above 0")
    return number
