"""Chips are kept for the first job that lacks nothing but chips, and for no other, whatever the jobs lack meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ascend.chips import ChipSet, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod, PodStatus, SchedulingGate
from tests.allocator.builders import World, pod
from tests.allocator.decision.test_earmarks import end, gang, holder, kept, world_of
from tests.allocator.decision.test_earmarks_alone import CHIPS, CPU, refused


class Lacks(Enum):
    """What a job lacks besides chips."""

    NOTHING = auto()
    CPU = auto()
    GATES_REMOVED = auto()
    NODES_THAT_MATCH = auto()
    A_POD = auto()
    ENOUGH_NODES = auto()


@dataclass
class Waiting:
    """A pod of a whole server or a gang of them, in order of their creation."""

    number: int
    size: int
    priority: int
    lacks: Lacks
    pods: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"job-{self.number}"

    @property
    def what(self) -> str:
        return f"pod default/{self.name}" if self.size == 1 else f"job default/{self.name}"

    def can_start(self) -> bool:
        """Whether it lacks nothing but chips. The only pod of a job exists, and fits on a node."""
        return self.lacks is Lacks.NOTHING or (self.size == 1 and self.lacks in {Lacks.A_POD, Lacks.ENOUGH_NODES})

    def made(self, nodes: int) -> Iterator[Pod]:
        """Its pods as they are now."""
        since = f"2026-01-01T00:00:{self.number:02}Z"
        more: dict[str, Any] = {"since": since, "priority": self.priority}
        if self.lacks is Lacks.NODES_THAT_MATCH:
            more["selector"] = {"no": "node"}
        needed = nodes + 1 if self.lacks is Lacks.ENOUGH_NODES else self.size
        pods = [pod(self.name, 8, **more)] if self.size == 1 else gang(self.name, needed, **more)
        for number, each in enumerate(pods[1:] if self.lacks is Lacks.A_POD and self.size > 1 else pods):
            if self.lacks is Lacks.GATES_REMOVED and not number:
                spec = replace(each.spec, scheduling_gates=(SchedulingGate("example.com/quota"),))
                yield replace(each, spec=spec, status=PodStatus(phase="Pending"))
            else:
                yield refused(each, CPU if self.lacks is Lacks.CPU and not number else CHIPS)

    def apply(self, world: World, nodes: int) -> None:
        """Make its pods anew."""
        for each in self.pods:
            world.cluster.pod_deleted(each)
        self.pods = list(self.made(nodes))
        world.add(*self.pods)

    def starts(self, world: World) -> bool:
        """Whether all of its pods have a place."""
        try:
            for each in self.pods:
                world.engine.place(each)
        except Refusal:
            return False
        return True


def is_free(world: World) -> bool:
    """Whether nobody has the chips that are kept, or has reserved them."""

    def taken(node: str) -> ChipSet:
        reserved = world.ledger.on(node).values()
        return world.cluster.nodes[node].held | chip_set(chip for take in reserved for chip in take.chips)

    return not any(taken(node) & chips for node, chips in kept(world).items())


@given(
    nodes=st.integers(2, 4),
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 1), st.sampled_from(Lacks)), min_size=1, max_size=6),
    steps=st.lists(st.tuples(st.integers(0, 5), st.none() | st.sampled_from(Lacks)), max_size=16),
)
def test_chips_are_kept_for_the_first_job_that_lacks_nothing_else(
    nodes: int, jobs: list[tuple[int, int, Lacks]], steps: list[tuple[int, Lacks | None]]
) -> None:
    world = world_of(nodes, *(holder(f"s{number}", f"n{number}", priority=2) for number in range(nodes)))
    running = [f"s{number}" for number in range(nodes)]
    waiting = [Waiting(number, size, priority, lacks) for number, (size, priority, lacks) in enumerate(jobs)]
    for job in waiting:
        job.apply(world, nodes)
    for number, lacks in steps:
        if lacks is not None and number < len(waiting):
            waiting[number].lacks = lacks
            waiting[number].apply(world, nodes)
        elif running:
            end(world, running.pop(number % len(running)))
        world.engine.filter(pod("any", 1, since="2027-01-01T00:00:00Z"))
        able = [job for job in waiting if job.can_start() and job.size <= nodes]
        first = min(able, key=lambda job: (-job.priority, job.number), default=None)
        assert [promise.what for promise in world.ledger.promises] == ([first.what] if first is not None else [])
        if first is not None and is_free(world):
            assert first.starts(world)
            waiting.remove(first)
            running += [each.name for each in first.pods]
