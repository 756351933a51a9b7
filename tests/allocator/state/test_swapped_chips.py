"""Over a device plugin that swaps the chips of pods, as MindCluster's does, no chip is given twice.

The scripted plugin does what was seen of MindCluster's: pods that it admits together get AscendReal in another order
than the allocator has written, and what their containers really have is the one or the other.
"""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.chips import ChipSet, chip_ids, chip_set, join_names_sorted
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.pod_devices import read_grant
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
        self._live: dict[str, Pod] = {}
        self._claimed: set[str] = set()
        self._reals: dict[str, tuple[int, ...]] = {}  # what AscendReal will be, of pods that are admitted
        self._made = 0

    def place(self, number: int) -> None:
        """Create a pod of one chip or two, and bind it if it fits."""
        self._made += 1
        count = 1 + number % 2
        each = pod(f"p{self._made}", count)
        self.world.add(each)
        try:
            held = self.world.engine.place(each)
        except Refusal:
            self.world.cluster.pod_deleted(each)
            return
        # On pods of operators the allocator writes AscendReal, and the plugin does not.
        written = {REAL: join_names_sorted(held.take.chips)} if number % 4 > 1 else {}
        self._apply(pod(each.name, count, node=held.node, chips=held.take.chips, annotations=written, phase="Pending"))

    def allocate(self, number: int) -> None:
        """Admit a pod with the chips of one with as many that it takes for it; or its AscendReal will be false."""
        waiting = [each for uid, each in self._live.items() if uid not in self.has]
        if not waiting:
            return
        admitted = waiting[number % len(waiting)]
        unclaimed = [
            each
            for uid, each in self._live.items()
            if len(_written(each)) == len(_written(admitted)) and uid not in self._claimed
        ]
        if not unclaimed:
            return  # the one that was meant has ended: it fails at admission
        found = unclaimed[number // 8 % len(unclaimed)]
        self._claimed.add(found.uid)
        self._apply(with_annotations(found, {PREDICATE_TIME: str(CLAIMED)}))
        self.has[admitted.uid] = chip_set(_written(found))
        others = [_written(each) for each in self._live.values() if len(_written(each)) == len(_written(found))]
        is_false = found.uid == admitted.uid and number >= 48
        self._reals[admitted.uid] = others[number % len(others)] if is_false else _written(found)

    def report(self, number: int) -> None:
        """Write AscendReal on a pod that is admitted."""
        if self._reals:
            uid = list(self._reals)[number % len(self._reals)]
            real = self._reals.pop(uid)
            if REAL in self._live[uid].metadata.annotations:
                return
            if set(real) != set(_written(self._live[uid])):
                self.swapped.add(uid)
            self._apply(with_annotations(self._live[uid], {REAL: join_names_sorted(real), KUBELET_IDS: "x"}))

    def restart(self, _number: int) -> None:
        """Forget what was handed over: the pods stay without AscendReal."""
        self._reals.clear()

    def end(self, number: int) -> None:
        """End a pod, admitted or not."""
        if self._live:
            gone = self._live.pop(list(self._live)[number % len(self._live)])
            self.has.pop(gone.uid, None)
            self._reals.pop(gone.uid, None)
            self.swapped.discard(gone.uid)
            self.world.cluster.pod_deleted(gone)

    def check(self) -> None:
        """No chip is held twice, and only the partners of a swap keep chips from others."""
        held = [chip for chips in self.has.values() for chip in chip_ids(chips)]
        assert len(held) == len(set(held)), self.has
        blocked = self.world.cluster.nodes["n1"].disputed
        assert blocked <= sum(self.has[uid].bit_count() for uid in self.swapped)

    def _apply(self, each: Pod) -> None:
        self._live[each.uid] = each
        self.world.add(each)


def with_annotations(each: Pod, annotations: dict[str, str]) -> Pod:
    return replace(each, metadata=replace(each.metadata, annotations={**each.metadata.annotations, **annotations}))


def _written(each: Pod) -> tuple[int, ...]:
    grant = read_grant(each.metadata.annotations)
    assert grant is not None
    return grant.chips


STEPS = ("allocate", "allocate", "report", "restart", "end", "place")


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=8),
    st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 63)), min_size=8, max_size=60),
)
def test_a_plugin_that_swaps_chips_never_gives_one_twice(first: list[int], steps: list[tuple[str, int]]) -> None:
    plugin = SwappingPlugin()
    for count in first:
        plugin.place(count)
    for step, number in steps:
        getattr(plugin, step)(number)
        plugin.check()
    for _ in steps:
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


def swapping(*written: int, **annotations: dict[str, str]) -> tuple[World, list[Pod]]:
    """A node with a pod of one chip for each that is written, and what the plugin has written on some of them."""
    world = World()
    world.add(node("n1"))
    pods = [
        pod(f"p{chip}", 1, node="n1", chips=[chip], annotations=annotations.get(f"p{chip}", {})) for chip in written
    ]
    world.add(*pods)
    return world, pods


HANDED_OVER = {PREDICATE_TIME: str(CLAIMED)}


def test_chips_of_a_pod_that_has_ended_wait_until_it_is_known_who_has_them() -> None:
    world, (first, second, _) = swapping(0, 1, 2, p1=HANDED_OVER)
    world.cluster.pod_deleted(first)
    assert world.vacancy().free == 0b11111000  # the second one may have it
    world.add(with_annotations(second, {REAL: "Ascend910-1", KUBELET_IDS: "x"}))
    assert world.vacancy().free == 0b11111001


def test_chips_of_a_pod_that_has_ended_are_free_once_those_that_may_have_them_have_ended() -> None:
    world, pods = swapping(0, 1, 2, p0=HANDED_OVER)
    for each, free in zip(pods, (0b11111000, 0b11111010, 0b11111111), strict=True):
        world.cluster.pod_deleted(each)
        assert world.vacancy().free == free


def test_over_this_projects_plugin_the_chips_of_a_pod_that_has_ended_are_free_at_once() -> None:
    """It never writes that it has handed chips over without saying which."""
    world, (first, _) = swapping(0, 1, p0={**HANDED_OVER, REAL: "Ascend910-0", KUBELET_IDS: "x"})
    world.cluster.pod_deleted(first)
    assert world.vacancy().free == 0b11111101


def test_a_pod_whose_chips_stay_unknown_keeps_none_of_pods_that_had_their_own() -> None:
    world, (_, *others) = swapping(0, 1, 2, p0=HANDED_OVER)
    for each in others:
        reported = with_annotations(each, {**HANDED_OVER, REAL: each.metadata.annotations[ALLOCATED], KUBELET_IDS: "x"})
        world.add(reported)
        world.cluster.pod_deleted(reported)
    assert world.vacancy().free == 0b11111110


def test_pods_of_operators_may_have_each_others_chips_until_both_have_ended() -> None:
    """The allocator has written AscendReal on them, so the plugin never does."""
    world, pods = swapping(0, 1, 2)
    world.cluster.pod_deleted(pods.pop())
    written = [with_annotations(each, {REAL: each.metadata.annotations[ALLOCATED]}) for each in pods]
    world.add(*written)
    claimed = [with_annotations(each, HANDED_OVER) for each in written]
    for each in claimed:
        world.add(each)
    later = pod("later", 1, node="n1", chips=[4], annotations={REAL: "Ascend910-4"})
    world.add(later)
    world.add(with_annotations(later, HANDED_OVER))
    world.cluster.pod_deleted(claimed[1])
    assert world.vacancy().free == 0b11101100  # the first one may have it
    world.cluster.pod_deleted(later)  # it was alone when its chips were handed over
    assert world.vacancy().free == 0b11111100
    world.cluster.pod_deleted(claimed[0])
    assert world.vacancy().free == 0b11111111
    assert not world.cluster.nodes["n1"].partners


def test_chips_of_a_pod_that_had_its_own_are_free_also_beside_one_that_waited_with_it() -> None:
    world, pods = swapping(0, 1)
    own = {**HANDED_OVER, REAL: "Ascend910-1", KUBELET_IDS: "x"}
    world.add(with_annotations(pods[0], HANDED_OVER), with_annotations(pods[1], own))
    world.cluster.pod_deleted(with_annotations(pods[1], own))
    assert world.vacancy().free == 0b11111110
