"""How many whole chips stay free while parts of chips come and go: the allocator, simple rules, and an optimum.

The optimum packs the pods that run at a moment anew: on 910B4 chips that is exact, because a part with all media units
takes a chip of its own (nothing else fits beside it), and parts of 10 and 5 AI cores fill chips of 20 without rest.
"""

import heapq
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from allocator.decision.engine import DecisionEngine
from allocator.rules.asked import JobDefaults
from allocator.rules.cores import ChipLeft
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.templates import Media, VnpuTemplate
from npuctl.simulate.chart import Panel
from tests.allocator.cores import B4, core_node, core_pod
from tests.bench.outcome import Outcome, Run, save_chart, table
from tests.bench.trace import MEAN_LIFE_H

NODES: Final = 20
CHIPS_OF_NODE: Final = 8
CHIPS: Final = NODES * CHIPS_OF_NODE
KIND: Final = B4.kind
WHOLE: Final = VnpuTemplate("", KIND.cores, KIND.cpus, B4.memory_gb, Media.ALL)
"""A whole chip, as a part of which nothing is left."""

_MIX: Final = {
    (5, Media.SHARED): 9,
    (10, Media.SHARED): 6,
    (10, Media.NONE): 2,
    (10, Media.ALL): 1,
    (20, Media.SHARED): 2,
}
_DEMANDS: Final = (0.5, 0.7, 0.9)
_PODS: Final = (8_000, 4_000)
WARM_UP_H: Final = 3 * MEAN_LIFE_H
_STEP: Final = 5


class Part(NamedTuple):
    """A pod that takes a part of a chip, or a whole one."""

    number: int
    cores: int
    media: Media
    arrives_h: float
    lasts_h: float

    @property
    def size(self) -> VnpuTemplate:
        """What it takes of a chip."""
        return KIND.template(self.cores, self.media) or WHOLE


def parts(count: int, *, demand: float, seed: int) -> list[Part]:
    """Return pods with random sizes, arrivals and durations, which use this share of the AI cores if all fit."""
    rng = random.Random(seed)
    kinds, weights = list(_MIX), list(_MIX.values())
    mean = sum(cores * weight for (cores, _), weight in _MIX.items()) / sum(weights)
    per_hour = demand * CHIPS * KIND.cores / (mean * MEAN_LIFE_H)
    found, now_h = [], 0.0
    for number in range(count):
        now_h += rng.expovariate(per_hour)
        found.append(Part(number, *rng.choices(kinds, weights)[0], now_h, rng.expovariate(1 / MEAN_LIFE_H)))
    return found


class Rule(ABC):
    """Chooses chips."""

    @abstractmethod
    def place(self, part: Part) -> int | None:
        """The number of the chip, over all nodes; None if the pod fits on none."""

    @abstractmethod
    def end(self, part: Part) -> None:
        """The pod has ended."""


class Allocator(Rule):
    """The allocator's own engine, with pods applied as by its informers."""

    def __init__(self) -> None:
        ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
        self._cluster = Cluster(ledger)
        self._engine = DecisionEngine(self._cluster, ledger, defaults=JobDefaults(vnpus_per_job=0))
        self._numbers = {f"n{number:03}": number for number in range(NODES)}
        self._bound: dict[int, Pod] = {}
        for name in self._numbers:
            self._cluster.node_applied(core_node(name, B4))

    def place(self, part: Part) -> int | None:
        labels = {} if part.media is Media.SHARED else {"vnpu-dvpp": part.media.value}
        name = f"p{part.number}"
        try:
            made = self._engine.place(core_pod(name, part.cores, labels=labels))
        except Refusal:
            return None
        annotations = made.grant.annotations()
        bound = core_pod(name, part.cores, annotations=annotations, node=made.node, phase="Running")
        self._bound[part.number] = bound
        self._cluster.pod_applied(bound)
        chip = made.take.chips[0] if made.take.cut is None else made.take.cut.chip
        return self._numbers[made.node] * CHIPS_OF_NODE + chip

    def end(self, part: Part) -> None:
        self._cluster.pod_deleted(self._bound.pop(part.number))


class _Simple(Rule):
    """A rule that chooses among the chips on which a pod fits."""

    def __init__(self) -> None:
        self._on: list[list[VnpuTemplate]] = [[] for _ in range(CHIPS)]
        self._placed: dict[int, int] = {}

    def place(self, part: Part) -> int | None:
        fitting = [chip for chip in range(CHIPS) if left(self._on[chip]).fits(part.size)]
        if not fitting:
            return None
        chip = self._placed[part.number] = self.choose(fitting)
        self._on[chip].append(part.size)
        return chip

    def end(self, part: Part) -> None:
        self._on[self._placed.pop(part.number)].remove(part.size)

    @abstractmethod
    def choose(self, fitting: Sequence[int]) -> int:
        """One of the chips."""


class FirstFit(_Simple):
    """The first chip by number."""

    def choose(self, fitting: Sequence[int]) -> int:
        return fitting[0]


class AtRandom(_Simple):
    """Any chip."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def choose(self, fitting: Sequence[int]) -> int:
        return self._rng.choice(fitting)


def left(templates: Sequence[VnpuTemplate]) -> ChipLeft:
    """What is left of a chip beside these."""
    found = ChipLeft.whole(KIND, 0)
    for each in templates:
        found = found.without(each)
    return found


def optimum(sizes: Counter[VnpuTemplate]) -> int:
    """The fewest chips for pods of these sizes."""
    alone = sum(number for size, number in sizes.items() if size.media is Media.ALL)
    cores = sum(size.cores * number for size, number in sizes.items() if size.media is not Media.ALL)
    return alone + -(-cores // KIND.cores)


@dataclass(slots=True)
class Seen:
    """What was seen after the warm-up: of each state the hours, AI cores in use, chips in use, and fewest chips."""

    states: list[tuple[float, int, int, int]] = field(default_factory=list)
    refused: int = 0
    placed: int = 0

    def mean(self, at: int) -> float:
        """The mean of a column over time."""
        hours = sum(state[0] for state in self.states)
        return sum(state[0] * state[at] for state in self.states) / hours

    def beyond(self) -> list[tuple[float, float]]:
        """By AI cores in use, percent: chips in use beyond the fewest."""
        bins: dict[int, list[float]] = {}
        for hours, cores, chips, fewest in self.states:
            found = bins.setdefault(round(cores / (CHIPS * KIND.cores) * 100 / _STEP) * _STEP, [0.0, 0.0])
            found[0] += hours
            found[1] += hours * (chips - fewest)
        enough_h = 0.01 * sum(hours for hours, _ in bins.values())
        return [(float(use), extra / hours) for use, (hours, extra) in sorted(bins.items()) if hours >= enough_h]


def replay(rule: Rule, pods: Sequence[Part], *, from_h: float = 0.0) -> Seen:
    """Start and end pods; one that fits nowhere is lost."""
    seen, now_h = Seen(), 0.0
    running: list[tuple[float, int, Part, int]] = []
    sizes: Counter[VnpuTemplate] = Counter()
    on: Counter[int] = Counter()

    def advance(until_h: float) -> None:
        nonlocal now_h
        hours = until_h - max(now_h, from_h)
        if hours > 0:
            cores = sum(size.cores * number for size, number in sizes.items())
            seen.states.append((hours, cores, len(on), optimum(sizes)))
        now_h = until_h

    for part in pods:
        while running and running[0][0] <= part.arrives_h:
            ends_h, _, ended, chip = heapq.heappop(running)
            advance(ends_h)
            rule.end(ended)
            sizes[ended.size] -= 1
            on[chip] -= 1
            if not on[chip]:
                del on[chip]
        advance(part.arrives_h)
        placed = rule.place(part)
        if part.arrives_h >= from_h:
            seen.placed, seen.refused = seen.placed + (placed is not None), seen.refused + (placed is None)
        if placed is not None:
            sizes[part.size] += 1
            on[placed] += 1
            heapq.heappush(running, (part.arrives_h + part.lasts_h, part.number, part, placed))
    return seen


async def measure(run: Run) -> Outcome:
    outcome = Outcome()
    rules: dict[str, Callable[[], Rule]] = {
        "the allocator": Allocator,
        "first fit": FirstFit,
        "at random": lambda: AtRandom(random.Random(run.seed)),
    }
    count, names = _PODS[run.quick], list(rules)
    shown = table(
        "rule", "demand\n%", "cores in\nuse, %", "chips in\nuse", "fewest\npossible", "beyond\n%", "refused\n%"
    )
    all_seen: dict[str, Seen] = {name: Seen() for name in names}
    for step in run.steps(f"{count:,} parts of chips by {len(rules)} rules", len(_DEMANDS) * len(names)):
        demand, name = _DEMANDS[step // len(names)], names[step % len(names)]
        seen = replay(rules[name](), parts(count, demand=demand, seed=run.seed), from_h=WARM_UP_H)
        all_seen[name].states += seen.states
        chips, fewest = seen.mean(2), seen.mean(3)
        used, beyond = seen.mean(1) / (CHIPS * KIND.cores) * 100, (chips / fewest - 1) * 100
        refused = seen.refused / (seen.refused + seen.placed) * 100
        shown.add_row(
            *(name, f"{demand * 100:.0f}", f"{used:.1f}", f"{chips:.1f}", f"{fewest:.1f}"),
            *(f"{beyond:.1f}", f"{refused:.2f}"),
        )
        outcome.raw[f"{name}, demand {demand}: chips in use, fewest, refused"] = [chips, fewest, refused]
    path = run.plots / "slices.svg"
    beyond_by_use = {name: seen.beyond() for name, seen in all_seen.items()}
    panel = Panel("Chips in use beyond the fewest possible", "AI cores in use, %", "chips", beyond_by_use)
    save_chart(path, f"Parts of {CHIPS} chips of 20 AI cores, by placement rule", [panel])
    outcome.show(
        f"slices: {count:,} pods with 5 or 10 AI cores, or a whole chip, on {CHIPS} chips (910B4) of {NODES} nodes",
        shown,
        "fewest possible: if the pods that run at the moment were packed anew. Means over time.",
        "beyond: chips that are in use though they need not be; none of them can be given as a whole.",
        f"The plot by the share of used AI cores: {path}",
    )
    return outcome
