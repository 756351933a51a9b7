"""Over a device plugin that swaps the chips of pods, as MindCluster's does, no chip is given twice.

The scripted plugin does what was seen of MindCluster's: pods that it admits together get AscendReal in another order
than the allocator has written, and what their containers really have is the one or the other.
"""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL, read_grant
from ascend.chips import ChipSet, chip_ids, join_names_sorted
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod


class SwappingPlugin:
    """A node with eight chips whose device plugin swaps, and the allocator that places pods on it.

    Attributes:
        world: the allocator.
        has: the chips that the containers of each live pod really have, by uid.
        swapped: the uids of the live pods whose AscendReal is not what was written on them.
    """

    def __init__(self) -> None:
        self.world = World()
        self.world.add(node("n1"))
        self.has: dict[str, ChipSet] = {}
        self.swapped: set[str] = set()
        self._waiting: list[Pod] = []
        self._live: list[Pod] = []
        self._made = 0

    def place(self, count: int) -> None:
        """Create a pod and bind it, if it fits."""
        self._made += 1
        each = pod(f"p{self._made}", count)
        self.world.add(each)
        try:
            held = self.world.engine.place(each)
        except Refusal:
            self.world.cluster.pod_deleted(each)
            return
        bound = pod(each.name, count, node=held.node, chips=held.take.chips, phase="Pending")
        self.world.add(bound)
        self._waiting.append(bound)

    def admit(self, orders: st.DataObject) -> None:
        """Admit the pods that wait at the kubelet: pods of one size get each other's chips."""
        for count in {len(_written(each)) for each in self._waiting}:
            group = [each for each in self._waiting if len(_written(each)) == count]
            reals = orders.draw(st.permutations([_written(each) for each in group]), label="AscendReal")
            truthful = orders.draw(st.booleans(), label="AscendReal is true")
            for each, real in zip(group, reals, strict=True):
                annotations = {**each.metadata.annotations, REAL: join_names_sorted(real), PREDICATE_TIME: str(CLAIMED)}
                running = replace(each, metadata=replace(each.metadata, annotations=annotations))
                self.has[each.uid] = sum(1 << chip for chip in (real if truthful else _written(each)))
                if set(real) != set(_written(each)):
                    self.swapped.add(each.uid)
                self.world.add(running)
                self._live.append(running)
        self._waiting.clear()

    def end(self, number: int) -> None:
        """End a running pod."""
        if self._live:
            gone = self._live.pop(number % len(self._live))
            del self.has[gone.uid]
            self.swapped.discard(gone.uid)
            self.world.cluster.pod_deleted(gone)

    def check(self) -> None:
        """No chip is held twice, and only the partners of a swap keep chips from others."""
        held = [chip for chips in self.has.values() for chip in chip_ids(chips)]
        assert len(held) == len(set(held)), self.has
        blocked = self.world.cluster.nodes["n1"].disputed
        assert blocked <= sum(self.has[uid].bit_count() for uid in self.swapped)


def _written(each: Pod) -> tuple[int, ...]:
    grant = read_grant(each.metadata.annotations)
    assert grant is not None
    return grant.chips


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 2), min_size=1, max_size=4), st.lists(st.integers(0, 7), max_size=3)),
        min_size=2,
        max_size=8,
    ),
    st.data(),
)
def test_a_plugin_that_swaps_chips_never_gives_one_twice(
    rounds: list[tuple[list[int], list[int]]], orders: st.DataObject
) -> None:
    plugin = SwappingPlugin()
    for placed, ended in rounds:
        for count in placed:
            plugin.place(count)
        plugin.admit(orders)
        plugin.check()
        for number in ended:
            plugin.end(number)
            plugin.check()
    for _ in range(8):
        plugin.end(0)
        plugin.check()
    assert plugin.world.vacancy().free == 0xFF


def test_a_chip_stays_blocked_until_the_partner_of_the_swap_ends() -> None:
    world = World()
    world.add(node("n1"))
    swapped = [
        pod(f"p{chip}", 1, node="n1", chips=[chip], time=CLAIMED, annotations={REAL: f"Ascend910-{1 - chip}"})
        for chip in range(2)
    ]
    world.add(*swapped)
    record = world.cluster.nodes["n1"]
    assert (world.vacancy().free, record.disputed) == (0b11111100, 0)  # each is held by one of the two
    world.cluster.pod_deleted(swapped[0])
    assert (world.vacancy().free, record.disputed) == (0b11111100, 1)
    world.cluster.pod_deleted(swapped[1])
    assert (world.vacancy().free, record.disputed) == (0b11111111, 0)
