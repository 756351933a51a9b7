"""Packing gives the same seats as placing one pod after the other, only faster."""

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from allocator.gangs import board
from allocator.gangs.packing import PACKING, pack
from allocator.gangs.policy import GangRequest, Member
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.turn import at_once
from tests.allocator.builders import World, node, pod
from tests.allocator.gangs.builders import gang, of_pool


def test_members_with_equal_requests_are_packed_at_once() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number % 2]}) for number in range(8)))
    pods = [of_pool(each, "ab"[at % 2]) for at, each in enumerate(gang("train", 8))]
    world.add(*pods)
    with mock.patch.object(board.Board, "take", autospec=True, side_effect=board.Board.take) as take:
        world.engine.place(pods[0])
    assert take.call_count == 2


requests = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=12)
idle = st.lists(st.integers(0, 255), min_size=1, max_size=6)


@given(
    sizes=requests, idle=idle, allowed=st.none() | st.sets(st.integers(0, 5), min_size=2), few=st.sampled_from([0, 16])
)
def test_packing_equals_placing_one_after_the_other(
    sizes: list[int], idle: list[int], allowed: set[int] | None, few: int
) -> None:
    world = World()
    for number, free in enumerate(idle):
        world.occupy(f"n{number}", free=[chip for chip in range(8) if free >> chip & 1])
    names = None if allowed is None else [f"n{number}" for number in sorted(allowed)]
    members = tuple(Member(f"u{n}", f"default/p{n}", n, ChipRequest(chips)) for n, chips in enumerate(sizes))
    before = world.cluster.index.version
    with mock.patch.object(board, "_FEW", few):
        request = GangRequest(JobKey("default", "train", VOLCANO), members, PACKING, candidates=names)
        found = at_once(pack(request, world.cluster.index))
    assert world.cluster.index.version == before
    one_by_one: list[tuple[int, str, int]] = []
    for chips in sorted(sizes, reverse=True):
        try:
            held = world.engine.place(pod(f"single-{len(one_by_one)}", chips), names)
        except Refusal:
            assert isinstance(found, Refusal)
            reasons = world.cluster.index.reasons(ChipRequest(chips), names)
            counts = sorted(f"{count} {reason}" for reason, count in reasons.items())
            assert sorted(found.message.rpartition("the nodes refuse: ")[2].split(", ")) == counts
            return
        one_by_one.append((chips, held.node, chip_set(held.take.chips)))
    assert not isinstance(found, Refusal)
    assert [seat.uid for seat in found] == [member.uid for member in members]
    assert sorted((len(seat.take.chips), seat.node, chip_set(seat.take.chips)) for seat in found) == sorted(one_by_one)
