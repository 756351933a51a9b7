"""Nominated pods of some namespaces can't keep those of another out of the window."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.metrics import AllocatorMetrics
from allocator.nomination.ahead import AHEAD, Window
from allocator.nomination.entry import Entry, State
from allocator.nomination.gates import Gates
from allocator.nomination.nominator import Nominator
from allocator.nomination.writes import Writes
from allocator.settings import Settings
from ascend.annotations import PLACEMENT_GATE
from ascend.errors import Refusal
from ascend.kube.objects import Pod, SchedulingGate
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod


def nominate(window: Window, namespace: str) -> bool:
    if not window.has_room_for(namespace):
        return False
    window.add(Entry(f"{namespace}-{len(window)}", namespace, State.ORDERED, 0.0, node="n1"))
    return True


@given(st.integers(1, 300))
def test_one_namespace_alone_has_most_of_the_window(size: int) -> None:
    window = Window(size)
    while nominate(window, "only"):
        pass
    assert min(size, AHEAD) <= len(window) <= size
    assert len(window) >= size * 3 // 4
    assert len(window) < size or size < 2 * AHEAD


@given(st.integers(1, 8), st.lists(st.integers(0, 7), max_size=400))
def test_there_is_a_place_for_another_namespace(busy: int, order: list[int]) -> None:
    window = Window(128)
    for number in [*order, *(list(range(busy)) * 128)]:
        nominate(window, f"busy-{number % busy}")
    assert nominate(window, "quiet")


def test_pods_with_seats_take_no_place() -> None:
    window = Window(2)
    for number in range(8):
        window.add(Entry(f"seated-{number}", "only", State.ORDERED, 0.0, node="n1", has_seat=True))
    assert nominate(window, "only")
    for uid in list(window):
        window.remove(uid)
    while nominate(window, "only"):
        pass
    assert len(window) == 2


def test_a_place_is_free_again_once_a_pod_was_filtered() -> None:
    window = Window(4)
    while nominate(window, "only"):
        pass
    for uid in list(window):
        window.remove(uid)
    assert not len(window)
    assert nominate(window, "only")


def test_gated_pods_of_one_namespace_leave_events_for_those_of_another() -> None:
    world, told = World(), []
    world.add(node("n1"))

    def waits(each: Pod, _refusal: Refusal) -> bool:
        told.append(each.key)
        return each.metadata.namespace != "busy"  # its Events are used up

    gates = Gates(
        engine=world.engine,
        nominator=cast("Nominator", None),
        writes=cast("Writes", None),
        metrics=AllocatorMetrics(world.ledger, lambda: None, world.cluster.index),
        waits=waits,
        settings=Settings(nominate="gated", scheduler_names=[pod("p").spec.scheduler_name]),
        monotonic=lambda: 0.0,
        now_s=lambda: 0.0,
    )
    pods = [pod(f"p{number}") for number in range(100)]
    for number, each in enumerate(pods):
        own = replace(each.metadata, namespace="quiet" if number >= 90 else "busy")
        gate = (SchedulingGate(PLACEMENT_GATE),)
        pods[number] = replace(each, metadata=own, spec=replace(each.spec, scheduling_gates=gate))
        world.add(pods[number])
        gates.pod_applied(pods[number])
    (group,) = gates._groups.values()
    gates._on_refusal(group, pods[0], Refusal(Reason.GANG_INCOMPLETE, "no room"))
    assert told == ["busy/p0", *(f"quiet/p{number}" for number in range(90, 100))]
