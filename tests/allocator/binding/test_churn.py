"""Jobs and nodes come and go: what the allocator knows of them goes with them."""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from types import FunctionType, MethodType, ModuleType
from typing import Any

import pytest

from allocator.decision import occupants
from allocator.gangs import pending
from allocator.state import changes, cluster, index
from tests.allocator.binding.simulation import CHIPS, LABELS, Case, Demand, Simulation
from tests.allocator.builders import node, pod, report
from tests.allocator.gangs.builders import gang

NODES = frozenset(f"m{number}" for number in range(3))
ROUNDS = 8
SPARE = 24
"""Of a leak of one entry for each job of one kind, more than these come up."""
LIMITS = (
    (changes, "_LIMIT"),
    (cluster, "REMEMBERED_GONE"),
    (index, "_SPARE_BUCKETS"),
    (index, "_SPARE_JOURNAL"),
    (index, "MAX_RANKINGS"),
    (occupants, "_MOST_JOBS"),
    (pending, "_MOST_GANGS"),
)
"""How much is kept at most of what is gone; these are large, so that nothing that is there is ever forgotten."""
CONTAINERS = (Mapping, AbstractSet, list, tuple, deque)
LEAVES = (str, bytes, int, float, type, ModuleType, asyncio.AbstractEventLoop, asyncio.Future)


def parts(value: object) -> Iterator[tuple[str, object]]:
    """What an object refers to, with the name of each."""
    if isinstance(value, FunctionType):
        yield from (("<closure>", cell.cell_contents) for cell in value.__closure__ or ())
    elif isinstance(value, MethodType):
        yield "<self>", value.__self__
    else:
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = {*vars(value)} if hasattr(value, "__dict__") else set()
        for name in sorted({*names, *slots, *getattr(value, "__struct_fields__", ())}):
            if name != "__weakref__" and hasattr(value, name):
                yield name, getattr(value, name)


def sizes(root: object) -> Counter[str]:
    """The number of entries in the containers that an object refers to, by the class and the field that has them."""
    seen, found, left = set[int](), Counter[str](), [(root, "")]
    kept: list[Any] = []  # so that no id is used twice
    while left:
        value, path = left.pop()
        if id(value) in seen or value is None or isinstance(value, LEAVES):
            continue
        seen.add(id(value))
        kept.append(value)
        if isinstance(value, CONTAINERS):
            found[path] += len(value)
            entries = list(value.values()) if isinstance(value, Mapping) else list(value)
            left += ((entry, path) for entry in [*entries, *(value if isinstance(value, Mapping) else ())])
        else:
            left += ((part, f"{type(value).__name__}.{name}") for name, part in parts(value))
    return found


class Churn:
    """Jobs of each kind on a few nodes; all of them end, whether they have started or not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.simulation = Simulation(Case(dict.fromkeys(NODES, 64), []), earmark_share=0.5)
        self.count = 0
        self.started = 0

    async def round(self) -> None:
        """Some jobs come, run for a while, and end; a node comes and goes."""
        simulation, jobs = self.simulation, [self._job() for _ in range(4)]
        for job in jobs:
            simulation.add(job)
        added = node(f"passing-{self.count}", labels={**LABELS, "number": str(self.count)})
        simulation.rig.world.add(added, report(added.name))
        await simulation.run(12)
        self.started += sum(simulation.started(job) == len(job) for job in jobs)
        for demand in [demand for job in jobs for demand in job]:
            self._delete(demand)
        simulation.rig.world.cluster.node_deleted(added)
        simulation.rig.world.cluster.reports.delete(report(added.name))
        await simulation.run(2)
        simulation.rig.world.engine.earmarks.update()
        simulation.rig.outcomes.clear()
        simulation.rig.server.bindings.clear()

    def _job(self) -> list[Demand]:
        self.count += 1
        name, kind = f"job-{self.count}", self.random.choice(["alone", "gang", "too large", "without a peer", "no CPU"])
        if kind == "alone":
            return [Demand(pod(name, chips := self.random.choice([1, 2, 4, 8])), chips, 1, NODES)]
        size, minimum = {"too large": (5, 5), "without a peer": (2, 3)}.get(kind, (2, 2))
        pods = gang(name, size, minimum=minimum)
        return [Demand(member, CHIPS, 65 if kind == "no CPU" else 1, NODES) for member in pods]

    def _delete(self, demand: Demand) -> None:
        simulation, uid = self.simulation, demand.pod.uid
        if (task := simulation.bindings.pop(uid, None)) is not None:
            task.cancel()
        simulation.rig.world.cluster.pod_deleted(simulation.rig.world.cluster.pods[uid])
        simulation.rig.server.pods.pop(demand.pod.name, None)
        for known in (simulation.demands, simulation.assumed, simulation.queue, simulation.nominated):
            known.pop(uid, None)


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_kept_of_jobs_and_nodes_that_are_gone_does_not_grow(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for module, limit in LIMITS:
        monkeypatch.setattr(module, limit, 5)
    churn = Churn(seed)
    for _ in range(ROUNDS):
        await churn.round()
    before = sizes(churn.simulation.rig)
    for _ in range(5 * ROUNDS):
        await churn.round()
    after = sizes(churn.simulation.rig)
    assert churn.started > ROUNDS  # each kind of job comes several times
    grown = {path: (before[path], number) for path, number in after.items() if number > before[path] + SPARE}
    assert grown == {}
    await churn.simulation.close()
