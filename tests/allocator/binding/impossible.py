"""A cluster on which gangs wait that can't start, whatever the reason."""

from collections.abc import Sequence

from allocator.rules.job import JobKey
from allocator.rules.vacancy import Vacancy
from allocator.state.node import NodeRecord
from ascend.annotations import MIN_AVAILABLE
from tests.allocator.binding.simulation import CHIPS, LABELS, Case, Demand, Simulation
from tests.allocator.builders import GROUP, gated, node, pod

CPU = 8
TAKEN = 3
"""The CPU of each node that pods without chips have taken, where there are running pods."""
FULL = "full"
"""The node whose chips a pod has taken."""
NOWHERE = frozenset[str]()


def demand(
    gang: str, rank: int, size: int, chips: int, nodes: frozenset[str], *, since: str = "2026-01-01T00:00:00Z"
) -> Demand:
    annotations = {GROUP: gang, MIN_AVAILABLE: str(size)} if size > 1 else {}
    return Demand(pod(f"{gang}-{rank}", chips, annotations=annotations, since=since), chips, 1, nodes)


def impossible(kind: str, number: int, nodes: frozenset[str], chips: int = 4) -> list[Demand]:
    """A gang of two of which the second can't start, or of pods that can't start together."""
    name = f"{kind}-{number}"
    if kind in {"exclusive", "various", "mixed"}:  # one more than there are nodes
        pods = [demand(name, rank, len(nodes) + 1, chips // 2, nodes) for rank in range(len(nodes) + 1)]
        for rank, each in enumerate(pods):
            each.cpu = CPU // 2 + 1 + (rank % 3 if kind == "mixed" else 0)
            each.other = name if kind == "various" else ""
        return pods
    chips = CHIPS if kind == "last-elsewhere" else chips
    first, second = (demand(name, rank, 2, chips, nodes) for rank in range(2))
    match kind:
        case "cpu":
            second.cpu = CPU + 1
        case "taint" | "claim":
            second.tolerated = NOWHERE
        case "gate":
            second.pod = gated(second.pod, "kueue.x-k8s.io/admission")
        case "scheduler":
            second.is_tried = False
        case "both":
            only = frozenset([min(nodes)])
            first.cpu = second.cpu = CPU // 2 + 1
            first.tolerated = second.tolerated = only
        case "elsewhere":
            first.cpu = second.cpu = CPU - TAKEN + 1
            first.tolerated = second.tolerated = nodes | {FULL}
        case "last-elsewhere":
            first.tolerated, second.tolerated = nodes | {FULL}, frozenset([FULL])
        case _:
            raise AssertionError(kind)
    return [first, second]


IDLE_KINDS = ["cpu", "taint", "claim", "gate", "scheduler", "both", "exclusive", "various", "mixed"]
"""The kinds on a cluster without running pods."""
ELSEWHERE = ["elsewhere", "last-elsewhere"]
KINDS = [*IDLE_KINDS, *ELSEWHERE]
"""And two that lack chips where a pod runs, and elsewhere something else: each pod of a gang, or one of them."""
EXCLUDING = ["both", "exclusive", "various", "mixed"]
"""The kinds of which nothing tells that they can't start but that they have tried. No two various ones are alike; the
pods of a mixed one differ."""


class Queue:
    """A cluster on which gangs wait that can't start; without running pods, unless a kind is about them."""

    def __init__(
        self,
        kinds: Sequence[str],
        nodes: int,
        *,
        cycles: int = 40,
        is_eager: bool = True,
        counts_bindings: bool = False,
    ) -> None:
        self.names = frozenset(f"n{number}" for number in range(nodes))
        gangs = [impossible(kind, number, self.names) for number, kind in enumerate(kinds)]
        self.simulation = Simulation(
            Case(dict.fromkeys(self.names, CPU), gangs),
            cycles=cycles,
            is_eager=is_eager,
            counts_bindings=counts_bindings,
            earmark_share=0.5,
        )
        if not set(ELSEWHERE).isdisjoint(kinds):
            self._run_pods()

    def _run_pods(self) -> None:
        """Pods run already: one on all chips of a further node, and one without chips on each node."""
        self.simulation.case.cpu[FULL] = CPU
        self.simulation.rig.world.add(node(FULL, labels=LABELS))
        self.simulation.settle(demand("runs", 0, 1, CHIPS, frozenset([FULL])), FULL)
        for name in sorted(self.names):
            self.simulation.settle(Demand(pod(f"plain-{name}", None), 0, TAKEN, self.names), name)

    def add(self, kinds: Sequence[str]) -> None:
        """Further gangs that can't start are created."""
        for number, kind in enumerate(kinds):
            self.simulation.add(impossible(kind, number, self.names))

    async def seconds_until_start(self, pods: list[Demand], limit_s: int = 120) -> float:
        """How long pods wait that fit on what is free; they end at once."""
        self.simulation.add(pods)
        begin_s = self.simulation.now_s
        while self.simulation.started(pods) < len(pods):
            await self.simulation.run(0.25)
            if self.simulation.now_s - begin_s > limit_s:
                break
        waited_s = self.simulation.now_s - begin_s
        if waited_s <= limit_s:
            self.simulation.end(pods)
        return waited_s

    def end_pod(self) -> None:
        """A pod without chips ends, as on a cluster in use."""
        ended, world = pod("plain", None, node=min(self.names), phase="Running"), self.simulation.rig.world
        world.add(ended)
        world.cluster.pod_deleted(ended)
        self.simulation.wake()

    @property
    def kept(self) -> int:
        """The number of chips that nobody may use although no pod runs."""
        world = self.simulation.rig.world
        used = -sum(running.chips for running in self.simulation.bound.values())
        for name, record in world.cluster.nodes.items():
            used += CHIPS - free(record)
            for seat in filter(None, map(world.ledger.get, world.ledger.on(name))):
                job = world.cluster.jobs.by_key.get(JobKey.of_plan(seat.plan)) if seat.plan else None
                if job is not None and world.engine.gangs.yields(job):
                    used -= seat.take.occupied.bit_count()
        return used


def free(record: NodeRecord) -> int:
    assert isinstance(record.offer, Vacancy)
    return record.offer.free.bit_count()


def good(number: int, size: int, chips: int, nodes: frozenset[str]) -> list[Demand]:
    """A gang that fits, created after those that can't start."""
    since = f"2026-01-02T00:00:{number:02}Z"
    return [demand(f"good-{number}", rank, size, chips, nodes, since=since) for rank in range(size)]
