"""A scheduler that chooses nodes asks about each in turn: what it is told does not depend on what it has asked."""

import gc
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.decision.tentative import Tentative
from allocator.gangs import switch_affinity
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.switches.world import bind, job, switches

STEPS = ("seat", "seat", "seat", "release", "start", "end", "occupy")


class Asking:
    """Two jobs below three switches, and a scheduler that asks about all their pods on all nodes."""

    def __init__(self, version: str) -> None:
        self.world = switches(range(4), range(3), range(2), version=version)
        self.pods = [*job(3, "large-model-schema", name="large"), *job(2, name="normal")]
        self.world.add(*self.pods)
        self._tentative = Tentative(self.world.cluster, self.world.ledger, self.world.engine)

    def verdicts(self, *, forgetting: bool = False) -> dict[tuple[str, str], str]:
        """What is said of each pod that has no seat, on each node; with nothing in its memory before each question."""
        waiting = [each for each in self.pods if self.world.ledger.get(each.uid) is None]
        told = {}
        for each in waiting:
            for name in self.world.cluster.nodes:
                if forgetting:
                    switch_affinity.RECENT.clear()
                told[each.name, name] = self._verdict(each, name)
        return told

    def _verdict(self, each: Pod, name: str) -> str:
        try:
            return str(self._tentative.fit(each, self.world.engine.resolve(each), name, ()).take)
        except Refusal as refusal:
            return str(refusal)

    def seat(self, number: int) -> None:
        """Place a pod on a node, as far as that is possible."""
        engine, each = self.world.engine, self.pods[number % len(self.pods)]
        names = list(self.world.cluster.nodes)
        resolved = engine.resolve(each)
        if resolved.gang is not None and self.world.ledger.get(each.uid) is None:
            try:
                engine.gangs.place_on(each, resolved.chips, resolved.gang, names[number % len(names)])
            except Refusal:
                return

    def release(self, number: int) -> None:
        """Take back the seat of a pod."""
        self.world.ledger.release(self.pods[number % len(self.pods)].uid)

    def start(self, number: int) -> None:
        """Bind and show another job, as far as it fits."""
        made = job(1 + number % 3, name=f"other-{number}")
        self.world.add(*made)
        try:
            bind(self.world, made)
        except Refusal:
            return

    def end(self, number: int) -> None:
        """End a pod of another job."""
        others = [each for each in self.world.cluster.pods.values() if each.name.startswith("other")]
        if others:
            self.world.cluster.pod_deleted(others[number % len(others)])

    def occupy(self, number: int) -> None:
        """Let another pod have a chip."""
        names = sorted(self.world.cluster.nodes)
        self.world.occupy(names[number % len(names)], range(number % 9))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@settings(max_examples=25)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), min_size=1, max_size=12))
def test_verdicts_are_those_of_an_allocator_that_was_asked_nothing_before(
    version: str, steps: list[tuple[str, int]]
) -> None:
    asking = Asking(version)
    asking.verdicts()
    for step, number in steps:
        do: Callable[[int], None] = getattr(asking, step)
        do(number)
        assert asking.verdicts() == asking.verdicts(forgetting=True)


def test_what_was_found_in_an_index_ends_with_it() -> None:
    asking = Asking("1.0")
    asking.verdicts()
    index = weakref.ref(asking.world.cluster.index)
    assert asking.world.cluster.index in switch_affinity.RECENT
    del asking
    gc.collect()
    assert index() is None
