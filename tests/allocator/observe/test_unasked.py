"""What is said of pods that no scheduler asks for."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.binding.binding import PodRef
from allocator.gangs.obstacles import UNTRIED_S
from allocator.observe.refusal_events import REMIND_S, REMIND_UNASKED_S, RefusalEvents
from allocator.observe.unasked import AT_ONCE, BEHIND_S, PERIOD_S, UnaskedPods
from ascend.annotations import MIN_AVAILABLE, PLACEMENT_GATE
from ascend.errors import Refusal
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, gated, node, pod, selecting
from tests.allocator.gangs.test_obstacles import CHIPS, CPU, saying

TAINTED = "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}."


class Scene:
    """A cluster, and what was told of its pods; a recorder takes so many Events in each look."""

    def __init__(self, most: int = 1000) -> None:
        self.world = World()
        self.told: list[tuple[str, Reason, str]] = []
        self.most = self.left = most
        self.unasked = UnaskedPods(
            self.world.engine,
            self._tell,
            schedulers=["default-scheduler"],
            monotonic=lambda: self.world.now_s,
        )

    def _tell(self, each: Pod, refusal: Refusal) -> bool:
        self.left -= 1
        if self.left < 0:
            return False
        self.told.append((each.name, refusal.reason, refusal.message))
        return True

    def look(self, *, after_s: float = 0.0) -> None:
        """Look, and look again after some time."""

        async def twice() -> None:
            await self.unasked.look()
            self.world.now_s += after_s
            self.left = self.most
            await self.unasked.look()

        asyncio.run(twice())

    @property
    def last(self) -> tuple[str, Reason, str]:
        """What was told last."""
        return self.told[-1]


def full(*pods: Pod) -> Scene:
    """A scene of these pods and a server without a free chip."""
    scene = Scene()
    scene.world.add(node("n1"), *pods)
    scene.world.fill("n1")
    return scene


def test_a_pod_refused_by_number_is_told_which_nodes_lack_what() -> None:
    scene = full(saying(pod("a", 8), CHIPS))
    scene.world.add(node("n2", ready=False))
    scene.look(after_s=PERIOD_S)
    said = (
        "pod default/a: 8 chips fit on none of 2 nodes: 1 NodeNotReady, 1 NotEnoughChips; it waits until other pods end"
    )
    assert scene.told == [("a", Reason.NO_NODE_FITS, said)]


def test_a_pod_whose_request_no_server_takes_is_told_that() -> None:
    scene = full(saying(pod("a", 16), CHIPS))
    scene.look(after_s=PERIOD_S)
    assert [(name, reason) for name, reason, _ in scene.told] == [("a", Reason.INVALID_REQUEST)]


def test_a_pod_that_its_scheduler_refuses_beside_free_chips_is_told_why() -> None:
    scene = Scene()
    scene.world.add(node("n1"), saying(pod("a", 8), CPU))
    scene.look(after_s=BEHIND_S)
    name, reason, said = scene.last
    assert (name, reason) == ("a", Reason.REFUSED_BY_SCHEDULER)
    assert said.startswith("pod default/a: 8 chips can be had on 1 node, but pod default/a was refused: 0/4 nodes")
    assert "Insufficient cpu" in said


def test_a_pod_refused_for_chips_that_are_free_by_now_is_tried_again_first() -> None:
    scene = Scene()
    scene.world.add(node("n1"), saying(pod("a", 8), CHIPS))
    scene.look(after_s=BEHIND_S - 1)
    assert scene.told == []
    scene.look(after_s=1)
    assert scene.last[1] is Reason.REFUSED_BY_SCHEDULER


def test_a_node_outside_the_selector_of_a_pod_is_no_place_for_it() -> None:
    scene = Scene()
    scene.world.add(node("n1"), saying(selecting(pod("a", 8), {"pool": "none"}), TAINTED))
    scene.look(after_s=BEHIND_S)
    name, reason, said = scene.last
    assert (name, reason) == ("a", Reason.NODE_SELECTOR_MISMATCH)
    assert "pool=none" in said


def test_a_pod_that_nobody_tries_is_told_after_some_time() -> None:
    scene = Scene()
    scene.world.add(node("n1"), pod("a", 8))
    scene.look(after_s=UNTRIED_S - 1)
    assert scene.told == []
    scene.look(after_s=1)
    assert "no scheduler tries pod default/a: default-scheduler does not run" in scene.last[2]


@pytest.mark.parametrize(
    "each",
    [
        replace(pod("a", 8), spec=replace(pod("a", 8).spec, scheduler_name="another")),
        gated(pod("a", 8), "kueue.x-k8s.io/admission"),
        saying(gated(pod("a", 8), PLACEMENT_GATE), "held", "SchedulingGated"),
        saying(pod("a", 8), "0/1 nodes are available: 1 NotEnoughChips: 0 free of 8."),
        saying(pod("a", 8), "0/2 nodes are available: 1 WrongProduct: it is for 910B, 1 Insufficient cpu."),
        saying(pod("a", None), CPU),
        saying(pod("a", 8, terminating=True), CHIPS),
    ],
    ids=["another scheduler", "gate", "own gate", "asked", "asked for some", "no chips", "ends"],
)
def test_nothing_is_said_of_a_pod_that_is_asked_for_or_not_served(each: Pod) -> None:
    scene = full(each)
    scene.look(after_s=10 * UNTRIED_S)
    assert scene.told == []


def test_the_pods_of_a_gang_are_told_alike() -> None:
    annotations = {GROUP: "train", MIN_AVAILABLE: "2"}
    scene = full(*(saying(pod(f"train-{number}", 8, annotations=annotations), CHIPS) for number in range(2)))
    scene.look(after_s=PERIOD_S)
    assert [(name, reason) for name, reason, _ in scene.told] == [
        ("train-0", Reason.GANG_DOES_NOT_FIT),
        ("train-1", Reason.GANG_DOES_NOT_FIT),
    ]


def test_each_pod_of_a_kind_is_told_by_its_own_name() -> None:
    scene = full(saying(pod("a", 8), CHIPS), saying(pod("b", 8), CHIPS))
    scene.world.add(node("n2", ready=False))
    scene.look(after_s=PERIOD_S)
    assert [said.partition(":")[0] for _, _, said in scene.told] == ["pod default/a", "pod default/b"]


@given(st.integers(1, 20), st.integers(1, 7))
def test_every_pod_has_its_turn_though_few_events_are_taken_at_a_time(pods: int, most: int) -> None:
    scene = Scene(most)
    scene.world.add(node("n1"), *(saying(pod(f"p{number}", 8), CHIPS) for number in range(pods)))
    scene.world.fill("n1")
    scene.look(after_s=PERIOD_S)
    for _ in range(-(-pods // most) - 1):
        scene.left = most
        scene.world.now_s += PERIOD_S
        asyncio.run(scene.unasked.look())
    assert {name for name, _, _ in scene.told} == {f"p{number}" for number in range(pods)}


def test_more_kinds_than_are_judged_at_once_come_one_after_the_other() -> None:
    number = AT_ONCE + 5
    scene = full(*(saying(pod(f"p{at}", 8, priority=at), CHIPS) for at in range(number)))
    scene.look(after_s=PERIOD_S)
    assert len(scene.told) == AT_ONCE
    scene.world.now_s += PERIOD_S
    asyncio.run(scene.unasked.look())
    assert {name for name, _, _ in scene.told} == {f"p{at}" for at in range(number)}


def test_a_pod_is_forgotten_once_it_is_asked_for() -> None:
    scene = full(saying(pod("a", 8), CHIPS))
    asyncio.run(scene.unasked.look())
    scene.world.add(saying(pod("a", 8), "0/1 nodes are available: 1 NotEnoughChips: 0 free of 8."))
    scene.look(after_s=PERIOD_S)
    scene.world.add(saying(pod("a", 8), CHIPS))
    asyncio.run(scene.unasked.look())
    assert scene.told == []


def test_an_unchanged_verdict_is_not_repeated_before_half_an_hour() -> None:
    posted: list[str] = []

    def publish(regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        assert (regarding.name, note, action) == ("a", "why", "Wait")
        posted.append(reason)
        return True

    now_s = 0.0
    events = RefusalEvents(publish, lambda: now_s)

    def tell(reason: Reason, at_s: float) -> None:
        nonlocal now_s
        now_s = at_s
        events.on_refusal(PodRef("d", "a", "a"), Refusal(reason, "why"), action="Wait", remind_s=REMIND_UNASKED_S)

    for at_s in (0.0, REMIND_S, REMIND_UNASKED_S - 1):
        tell(Reason.NOT_ENOUGH_CHIPS, at_s)
    assert posted == [Reason.NOT_ENOUGH_CHIPS]
    tell(Reason.NODE_NOT_READY, REMIND_UNASKED_S - 1)
    tell(Reason.NODE_NOT_READY, 2 * REMIND_UNASKED_S)
    assert posted == [Reason.NOT_ENOUGH_CHIPS, Reason.NODE_NOT_READY, Reason.NODE_NOT_READY]
