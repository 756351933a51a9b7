"""Admission calls are matched with pods and answered; timers run on a virtual clock."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import pytest

from ascend.chips import chip_name
from ascend.daemon.observable import Observable
from ascend.errors import Refusal, TimedOut, Unreachable
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.driver import ChipFacts
from device_plugin.health.snapshot import Chip, Snapshot
from device_plugin.kubelet.pods_api import DEADLINE_S
from device_plugin.ledger.allocations import Allocation, Allocations, DeviceLedger
from device_plugin.ledger.node_pods import NodePods
from device_plugin.pods.admission_matcher import CAP_S, LIST_AFTER_S, PREFER_CAP_S, REFRESH_S, AdmissionMatcher
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.container_edits import ContainerEdits, make_edits
from device_plugin.pods.devices import ChipDevices
from tests.device_plugin.builders import pod, server, snapshot, vnpu_pod

pytestmark = pytest.mark.looptime

ALL = [chip_name(chip_id) for chip_id in range(8)]


class ShownPods(NodePods):
    """The pods that the watch shows, and their objects."""

    def __init__(self, on_gone: Callable[[str], None], device_type: DeviceType) -> None:
        super().__init__(on_gone, device_type)
        self.objects: dict[str, Pod] = {}

    def on_apply(self, obj: Pod) -> None:
        self.objects[obj.uid] = obj
        super().on_apply(obj)

    def on_delete(self, obj: Pod) -> None:
        self.objects.pop(obj.uid, None)
        super().on_delete(obj)


class Node:
    """A matcher; the kubelet and the API server answer what the test says.

    Attributes:
        kubelet: the kubelet's list of pods; by default those that the watch shows. None: it does not answer.
        api: the API server's list of pods.
        asked: who was asked.
    """

    def __init__(self, device_type: DeviceType = WHOLE_CHIPS) -> None:
        self.snapshots: Observable[Snapshot | None] = Observable(snapshot())
        self.allocations = Allocations()
        self.pods = ShownPods(self.allocations.drop, device_type)
        self.kubelet: Iterable[Pod] | None = self.pods.objects.values()
        self.api: Iterable[Pod] = ()
        self.asked: list[str] = []
        self.claimed: list[Allocation] = []
        self.finder = AdmittedPodFinder(
            self.pods, self.allocations, kubelet_pods=self._lister("kubelet"), api_pods=self._lister("api")
        )
        self.devices = ChipDevices(
            DeviceLedger(self.pods, self.allocations),
            lambda chips, _type: make_edits(chips, "runtime", Path("/dev"), lambda _folder: ()),
        )
        self.matcher = AdmissionMatcher(
            snapshots=self.snapshots,
            devices=self.devices,
            finder=self.finder,
            refresh=self._catch_up,
            on_allocation=self.claimed.append,
        )

    def _lister(self, who: str) -> Callable[[], Awaitable[Sequence[Pod]]]:
        async def answer() -> Sequence[Pod]:
            self.asked.append(who)
            listed: Iterable[Pod] | None = getattr(self, who)
            if listed is None:
                raise Unreachable(f"{who} does not answer")
            return list(listed)

        return answer

    async def _catch_up(self) -> None:
        """Do what a watch does that lists again: report every pod that was created, changed or deleted."""
        self.asked.append("refresh")
        for uid in {each.uid for each in self.pods} - {each.uid for each in self.api}:
            self.pods.on_delete(self.pods.objects[uid])
        for each in self.api:
            self.pods.on_apply(each)

    @property
    def asked_of_api(self) -> list[str]:
        """What was asked of the API server."""
        return [who for who in self.asked if who != "kubelet"]

    async def admit(self, count: int, available: Sequence[str] = ALL) -> Allocation:
        """Admit as a kubelet does: get the preferred ids, use them or else the first ones, and allocate."""
        ids = await self.matcher.prefer(available, [], count) or list(available)[:count]
        return (await self.matcher.allocate(ids)).allocation


async def test_the_kubelet_is_asked_once_for_each_container() -> None:
    node = Node()
    node.pods.on_apply(pod("one", 2, 5, 4, time=1))
    allocation = await node.admit(2)
    assert (allocation.pod, allocation.chips, sorted(allocation.kubelet_ids)) == ("default/one", (5, 4), [4, 5])
    assert allocation.matches_kubelet
    assert node.claimed == [allocation]
    assert node.asked == ["kubelet"]


async def test_of_several_candidates_the_one_the_kubelet_lists_is_under_admission() -> None:
    node = Node()
    early, late = pod("early", 2, 0, 1, time=1), pod("late", 2, 2, 3, time=2)
    node.pods.on_apply(early)
    node.pods.on_apply(late)
    node.kubelet = [late]
    assert (await node.admit(2)).pod == "default/late"
    node.kubelet = [late, early]
    assert (await node.admit(2)).pod == "default/early"


async def test_a_pod_only_the_kubelet_lists_can_be_under_admission() -> None:
    node = Node()
    unseen = pod("unseen", 2, 4, 5, time=3)
    node.pods.on_apply(pod("early", 2, 0, 1, time=1))
    node.pods.on_apply(pod("late", 2, 2, 3, time=2))
    node.kubelet = [unseen]
    assert (await node.admit(2)).chips == (4, 5)


async def test_without_the_kubelets_list_the_smallest_predicate_time_decides() -> None:
    node = Node()
    node.kubelet = None
    node.pods.on_apply(pod("seven", 2, 2, 3, time=7))
    node.pods.on_apply(pod("five", 2, 0, 1, time=5))
    assert (await node.admit(2)).pod == "default/five"
    assert (await node.admit(2)).pod == "default/seven"


async def test_a_waiting_call_gets_a_pod_whose_hand_over_was_another_pods() -> None:
    node = Node()
    node.pods.on_apply(pod("one", 1, 3, time=1))
    await node.admit(1)
    answer = asyncio.ensure_future(node.matcher.allocate(["Ascend910-0"]))
    asyncio.get_running_loop().call_later(0.7, node.allocations.drop, "uid-one")
    assert (await answer).part.chips == (3,)


async def test_a_guessed_preference_is_checked_with_the_kubelet_at_allocate() -> None:
    node = Node()
    node.kubelet = None
    early, late = pod("early", 2, 0, 1, time=1), pod("late", 2, 2, 3, time=2)
    node.pods.on_apply(early)
    node.pods.on_apply(late)
    preferred = await node.matcher.prefer(ALL, [], 2)
    assert preferred == ["Ascend910-0", "Ascend910-1"]
    node.kubelet = [late]
    given = (await node.matcher.allocate(preferred)).allocation
    assert (given.pod, given.chips) == ("default/late", (2, 3))


async def test_a_vnpu_is_given_under_its_own_id_only() -> None:
    two = DeviceType("2c")
    node = Node(two)
    names = [f"Ascend910-2c-{vdev_id}-1" for vdev_id in (100, 101)]
    written, other = map(two.parse, names)
    node.snapshots.set(Snapshot(server(), tuple(Chip(ChipFacts(number)) for number in (written, other))))
    # A pod of another plugin has "other", and the kubelet counts the written one for it.
    node.allocations.add(Allocation("uid-foreign", "default/foreign", (other,), (written,)))
    node.pods.on_apply(vnpu_pod("one", names[0]))
    assert await node.matcher.prefer([names[1]], [], 1) == []
    with pytest.raises(Refusal, match=f"{names[0]} is written on the pod, but the kubelet has chosen {names[1]}") as it:
        await node.matcher.allocate([names[1]])
    assert it.value.reason is Reason.CHIP_NOT_FREED
    assert node.claimed == []


async def test_other_ids_of_the_kubelet_give_the_written_chips_and_are_recorded() -> None:
    node = Node()
    node.pods.on_apply(pod("one", 2, 0, 1, time=1))
    allocation = (await node.matcher.allocate(["Ascend910-7", "Ascend910-0"])).allocation
    assert (allocation.chips, allocation.kubelet_ids) == ((0, 1), (7, 0))
    assert not allocation.matches_kubelet


async def test_a_repeated_call_gets_the_same_answer() -> None:
    node = Node()
    node.pods.on_apply(pod("one", 2, 0, 1, time=1))
    first = await node.admit(2)
    again = await node.matcher.allocate([chip_name(chip_id) for chip_id in reversed(first.kubelet_ids)])
    assert again.allocation is first
    assert node.claimed == [first]


@pytest.mark.parametrize("led", [True, False])
async def test_a_pod_the_watch_shows_late_gets_its_chips_at_once(*, led: bool) -> None:
    node = Node()
    node.kubelet = [pod("late", 2, 3, 5, time=1)]
    started_s = asyncio.get_running_loop().time()
    allocation = await node.admit(2) if led else (await node.matcher.allocate(ids(0, 1))).allocation
    assert (allocation.chips, allocation.matches_kubelet) == ((3, 5), led)
    assert asyncio.get_running_loop().time() == started_s
    assert node.asked_of_api == []


async def test_a_pod_the_watch_shows_late_is_waited_for_if_the_kubelet_is_silent() -> None:
    node = Node()
    node.kubelet = None
    answer = asyncio.ensure_future(node.matcher.allocate(["Ascend910-0"]))
    asyncio.get_running_loop().call_later(0.7, node.pods.on_apply, pod("late", 1, 3, time=1))
    assert (await answer).part.chips == (3,)
    assert node.asked_of_api == []


async def test_a_pod_nobody_shows_is_listed_once() -> None:
    node = Node()
    node.kubelet, node.api = None, [pod("unwatched", 1, 3, time=1)]
    assert (await node.matcher.allocate(["Ascend910-0"])).part.chips == (3,)
    assert node.asked == ["kubelet", "api"]


async def test_a_preference_for_a_pod_nobody_shows_lists_it_in_time() -> None:
    node = Node()
    node.kubelet, node.api = None, [pod("unwatched", 2, 3, 5, time=1)]
    started_s = asyncio.get_running_loop().time()
    assert await node.matcher.prefer(ALL, [], 2) == ids(3, 5)
    assert asyncio.get_running_loop().time() - started_s < PREFER_CAP_S
    assert node.asked == ["kubelet", "api"]


@pytest.mark.parametrize("end", ["deleted", "Succeeded"])
@pytest.mark.parametrize("led", [True, False])
async def test_a_pod_the_watch_never_shows_gets_chips_whose_release_it_missed(
    end: str,
    led: bool,  # noqa: FBT001 - a parameter
) -> None:
    node = Node()
    node.pods.on_apply(pod("first", 2, 3, 5, time=1))
    await node.admit(2)
    second = pod("second", 2, 3, 5, time=2)
    node.kubelet = None
    node.api = [second] if end == "deleted" else [pod("first", 2, 3, 5, time=1, phase=end), second]
    started_s = asyncio.get_running_loop().time()
    allocation = await node.admit(2) if led else (await node.matcher.allocate(ids(0, 1))).allocation
    assert (allocation.pod, allocation.chips, allocation.matches_kubelet) == ("default/second", (3, 5), led)
    assert [each.pod for each in node.allocations] == ["default/second"]
    assert node.asked_of_api == ["api", "refresh"]
    assert asyncio.get_running_loop().time() - started_s < PREFER_CAP_S + CAP_S


async def test_a_pod_the_watch_missed_entirely_leaves_its_chips_to_the_next() -> None:
    node = Node()
    node.kubelet = None
    node.api = [pod("first", 2, 3, 5, time=1)]
    await node.admit(2)
    node.api = [pod("second", 2, 3, 5, time=2)]
    assert (await node.admit(2)).pod == "default/second"
    assert [each.pod for each in node.allocations] == ["default/second"]


async def test_a_pod_created_and_deleted_unseen_leaves_its_chips_to_one_that_the_watch_shows() -> None:
    node = Node()
    node.kubelet = [ghost := pod("ghost", 2, 3, 5, time=1)]
    assert (await node.admit(2)).pod == "default/ghost"
    second = pod("second", 2, 3, 5, time=2)
    node.pods.on_apply(second)
    node.kubelet, node.api = [ghost, second], [second]
    assert (await node.admit(2)).pod == "default/second"
    assert [each.pod for each in node.allocations] == ["default/second"]
    assert node.asked_of_api == ["refresh"]


async def test_a_pod_found_deleted_at_the_preference_gets_nothing_at_once() -> None:
    node = Node()
    node.pods.on_apply(holder := pod("holder", 2, 3, 5, time=1))
    await node.admit(2)
    node.kubelet, node.api = [holder, pod("ghost", 2, 3, 5, time=2)], [holder]
    assert await node.matcher.prefer(ALL, [], 2) == []
    node.pods.on_delete(holder)
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Refusal, match="no pod bound to this node waits for 2 chips"):
        await node.matcher.allocate(ids(0, 1))
    assert asyncio.get_running_loop().time() == started_s
    assert list(node.allocations) == []


async def test_a_pod_only_the_kubelet_lists_gets_chips_whose_release_was_missed() -> None:
    node = Node()
    node.pods.on_apply(pod("first", 2, 3, 5, time=1))
    await node.admit(2)
    one, two, second = pod("one", 2, 0, 1, time=2), pod("two", 2, 6, 7, time=3), pod("second", 2, 3, 5, time=4)
    node.pods.on_apply(one)
    node.pods.on_apply(two)
    node.kubelet = node.api = [one, two, second]
    assert (await node.admit(2)).pod == "default/second"
    assert "api" not in node.asked


async def test_a_holder_the_api_server_still_has_keeps_its_chips() -> None:
    node = Node()
    node.kubelet = None
    node.pods.on_apply(holder := pod("holder", 2, 3, 5, time=1))
    await node.admit(2)
    node.api = [holder, pod("unwatched", 2, 3, 5, time=2)]
    with pytest.raises(Refusal, match="Ascend910-3,Ascend910-5 are held by pod default/holder"):
        await node.matcher.allocate(ids(0, 1))
    assert [each.pod for each in node.allocations] == ["default/holder"]


async def test_a_pod_that_ends_while_the_watch_catches_up_gets_nothing() -> None:
    node = Node()
    node.pods.on_apply(pod("first", 2, 3, 5, time=1))
    await node.admit(2)
    node.api = [pod("one", 2, 0, 1, time=2), pod("two", 2, 6, 7, time=3)]
    for each in node.api:
        node.pods.on_apply(each)
    node.kubelet = [pod("over", 2, 3, 5, time=3)]
    with pytest.raises(Refusal, match="pod default/over has ended before it got its chips"):
        await node.matcher.allocate(ids(0, 7))


async def test_a_watch_that_does_not_catch_up_is_not_waited_for_beyond_the_cap() -> None:
    node = Node()
    node.kubelet = None
    node.pods.on_apply(pod("first", 2, 3, 5, time=1))
    await node.admit(2)
    node.api = [pod("second", 2, 3, 5, time=2)]
    node.matcher._refresh = asyncio.Event().wait  # type: ignore[assignment]  # never returns
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(Refusal, match="are held by pod default/first"):
        await node.matcher.allocate(ids(0, 1))
    assert loop.time() - started_s == pytest.approx(LIST_AFTER_S + REFRESH_S)


async def test_a_pod_refused_at_the_time_limit_is_not_a_candidate_again() -> None:
    node = Node()
    node.kubelet = None
    node.pods.on_apply(pod("first", 2, 3, 5, time=1))
    await node.admit(2)
    late, real = pod("late", 2, 3, 5, time=2), pod("real", 2, 0, 1, time=3)
    node.api = [pod("first", 2, 3, 5, time=1, phase="Succeeded"), late]
    listed = node.finder._api_pods

    async def slowly() -> Sequence[Pod]:
        await asyncio.sleep(CAP_S - LIST_AFTER_S - REFRESH_S / 2)
        return await listed()

    node.finder._api_pods = slowly
    node.matcher._refresh = asyncio.Event().wait  # type: ignore[assignment]  # never returns
    with pytest.raises(Refusal, match="no decision within"):
        await node.matcher.allocate(ids(0, 1))
    await node._catch_up()
    node.pods.on_apply(real)
    assert (await node.matcher.allocate(ids(2, 6))).allocation.pod == "default/real"


async def test_a_forged_pod_in_the_watch_causes_no_request() -> None:
    node = Node()
    node.pods.on_apply(pod("holder", 2, 0, 1, time=5))
    await node.admit(2)
    node.pods.on_apply(pod("forged", 2, 0, 1, time=1))
    with pytest.raises(Refusal, match="are held by pod default/holder"):
        await node.matcher.allocate(ids(2, 3))
    assert node.asked_of_api == []


async def test_a_listed_pod_that_is_deleted_before_allocate_gets_nothing() -> None:
    node = Node()
    gone = pod("unwatched", 1, 3, time=1)
    node.kubelet = [gone]
    ids = await node.matcher.prefer(ALL, [], 1)
    assert ids == ["Ascend910-3"]
    node.pods.on_delete(gone)
    with pytest.raises(Refusal, match="no pod bound to this node waits for 1 chip"):
        await node.matcher.allocate(ids)


async def test_without_any_pod_the_call_is_refused_within_the_cap() -> None:
    node = Node()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await node.matcher.prefer(ALL, [], 2) == []
    with pytest.raises(Refusal, match="no pod bound to this node waits for 2 chips"):
        await node.matcher.allocate(["Ascend910-0", "Ascend910-1"])
    assert loop.time() - started_s <= CAP_S


async def test_a_kubelet_that_is_late_is_asked_again_before_a_pod_is_guessed() -> None:
    node = Node()
    node.pods.on_apply(pod("early", 2, 0, 1, time=1))
    node.pods.on_apply(late := pod("late", 2, 2, 3, time=2))
    answers_from_s = asyncio.get_running_loop().time() + 1.5

    async def busy() -> Sequence[Pod]:
        await asyncio.sleep(DEADLINE_S)
        if asyncio.get_running_loop().time() < answers_from_s:
            raise TimedOut("the kubelet has not answered within 0.8 s")
        return [late]

    node.finder._kubelet_pods = busy
    assert (await node.matcher.allocate(["Ascend910-2", "Ascend910-3"])).allocation.pod == "default/late"


async def test_a_kubelet_that_stays_silent_leaves_time_for_a_guess() -> None:
    node = Node()
    node.pods.on_apply(pod("early", 2, 0, 1, time=1))
    node.pods.on_apply(pod("late", 2, 2, 3, time=2))

    async def silent() -> Sequence[Pod]:
        await asyncio.sleep(DEADLINE_S)
        raise TimedOut("the kubelet has not answered within 0.8 s")

    node.finder._kubelet_pods = silent
    started_s = asyncio.get_running_loop().time()
    assert (await node.matcher.allocate(["Ascend910-0", "Ascend910-1"])).allocation.pod == "default/early"
    guessed_s = asyncio.get_running_loop().time()
    assert guessed_s - started_s == pytest.approx(3 * DEADLINE_S)
    assert (await node.matcher.allocate(["Ascend910-2", "Ascend910-3"])).allocation.pod == "default/late"
    assert asyncio.get_running_loop().time() - guessed_s == pytest.approx(DEADLINE_S)


async def test_a_kubelet_that_hangs_is_not_waited_for_beyond_the_cap() -> None:
    node = Node()

    async def hang() -> Sequence[Pod]:
        return await loop.create_future()  # type: ignore[no-any-return]  # never returns

    loop = asyncio.get_running_loop()
    node.finder._kubelet_pods = hang
    node.pods.on_apply(pod("one", 1, 0, time=1))
    node.pods.on_apply(pod("two", 1, 1, time=2))
    started_s = loop.time()
    with pytest.raises(Refusal, match="no decision within 4 s"):
        await node.matcher.allocate(["Ascend910-0"])
    assert loop.time() - started_s == pytest.approx(CAP_S)
    assert not list(node.allocations)


async def test_a_forged_pod_gets_nothing_and_the_holder_keeps_its_chips() -> None:
    node = Node()
    node.pods.on_apply(pod("holder", 2, 0, 1, time=5))
    await node.admit(2)
    node.pods.on_apply(pod("forged", 2, 0, 1, time=1))
    with pytest.raises(Refusal, match="Ascend910-0,Ascend910-1 are held by pod default/holder"):
        await node.admit(2, ALL[2:])
    assert [each.pod for each in node.allocations] == ["default/holder"]


async def test_a_pod_bound_by_hand_does_not_get_the_chips_of_a_candidate() -> None:
    node = Node()
    by_hand, placed = pod("by-hand", 2), pod("placed", 2, 0, 1, time=1)
    node.pods.on_apply(placed)
    node.pods.on_apply(by_hand)
    node.kubelet = [by_hand]
    with pytest.raises(Refusal, match="was not placed by the allocator"):
        await node.admit(2)
    node.kubelet = [by_hand, placed]
    node.pods.on_apply(pod("by-hand", 2, phase="Failed"))
    assert (await node.admit(2)).pod == "default/placed"


async def test_a_refused_pod_that_still_looks_pending_is_not_a_candidate() -> None:
    node = Node()
    by_hand, placed = pod("by-hand", 2), pod("placed", 2, 0, 1, time=1)
    node.pods.on_apply(by_hand)
    with pytest.raises(Refusal, match="was not placed by the allocator"):
        await node.admit(2)
    node.pods.on_apply(placed)
    node.kubelet = [by_hand, placed]
    assert (await node.admit(2)).pod == "default/placed"


async def test_a_chip_whose_id_is_counted_for_another_pod_is_given_under_the_id_of_a_held_chip() -> None:
    # Another device plugin gave the other pod its chips.
    node = Node()
    node.pods.on_apply(pod("other", 2, 0, 1, started=True))
    node.allocations.add(Allocation("uid-other", "default/other", (0, 1), (7, 0)))
    node.pods.on_apply(pod("one", 2, 6, 7, time=1))
    assert await node.matcher.prefer(ids(1, 2, 3, 4, 5, 6), [], 2) == ids(6, 1)
    given = (await node.matcher.allocate(ids(6, 1))).allocation
    assert (given.chips, given.kubelet_ids) == ((6, 7), (6, 1))
    node.pods.on_apply(pod("two", 1, 0, time=2))
    with pytest.raises(Refusal, match="Ascend910-0 is held by pod default/other"):
        await node.admit(1, ids(2, 3, 4, 5))


async def test_a_pod_found_by_the_kubelet_waits_for_no_id_that_a_running_pod_has() -> None:
    node = found_by_the_kubelet(pod("one", 2, 2, 3, time=1))
    node.allocations.add(Allocation("uid-other", "default/other", (0, 1), (2, 3)))
    given = await node.admit(2, ids(0, 1, 4, 5, 6, 7))
    assert (given.chips, given.kubelet_ids) == ((2, 3), (0, 1))


async def test_chips_are_free_again_when_their_pod_has_ended() -> None:
    node = Node()
    node.pods.on_apply(pod("first", 8, *range(8), time=1))
    await node.admit(8)
    node.pods.on_apply(pod("first", 8, *range(8), time=1, phase="Succeeded"))
    node.pods.on_apply(pod("second", 8, *range(8), time=2))
    assert (await node.admit(8)).pod == "default/second"


async def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(Refusal, match="'npu-0' is not a chip name"):
        await Node().matcher.allocate(["npu-0"])


@pytest.mark.parametrize("end", ["deleted", "failed", "started"])
async def test_a_pod_that_ended_does_not_return_by_an_older_kubelet_list(end: str) -> None:
    node = Node()
    gone, one, two = pod("gone", 2, 0, 1, time=1), pod("one", 2, 2, 3, time=2), pod("two", 2, 4, 5, time=3)
    node.pods.on_apply(gone)
    await node.admit(2)
    match end:
        case "deleted":
            node.pods.on_delete(gone)
        case "failed":
            node.pods.on_apply(pod("gone", 2, 0, 1, time=1, phase="Failed"))
        case "started":
            node.pods.on_apply(pod("gone", 2, 0, 1, time=1, started=True))
            node.allocations.drop(gone.uid)
    node.pods.on_apply(one)
    node.pods.on_apply(two)
    node.kubelet = [gone, one]
    assert (await node.admit(2)).pod == "default/one"


async def test_a_pod_deleted_during_the_kubelets_list_gets_nothing() -> None:
    node = Node()
    early, late = pod("early", 2, 0, 1, time=1), pod("late", 2, 2, 3, time=2)
    node.pods.on_apply(early)
    node.pods.on_apply(late)

    async def slow() -> Sequence[Pod]:
        await asyncio.sleep(0.1)
        node.pods.on_delete(early)
        raise Unreachable("the kubelet does not answer")

    node.finder._kubelet_pods = slow
    assert (await node.matcher.allocate(["Ascend910-0", "Ascend910-1"])).allocation.pod == "default/late"


async def test_a_pod_deleted_under_admission_does_not_get_another_ones_chips() -> None:
    node = Node()
    torn, left = pod("torn", 2, 0, 1, time=1), pod("left", 2, 2, 3, time=2)
    node.pods.on_apply(torn)
    node.pods.on_apply(left)
    node.pods.on_delete(torn)
    node.kubelet = [torn]
    with pytest.raises(Refusal, match="no pod bound to this node waits for 2 chips"):
        await node.admit(2)
    node.kubelet = [torn, left]
    assert (await node.admit(2)).pod == "default/left"


def crowded(name: str, *chips: int, time: int = 1, **more: str) -> Pod:
    """An init container with 4 chips, then two app containers with 2 each."""
    return pod(name, 0, *chips, time=time, init={"prepare": 4}, asks={"left": 2, "right": 2}, **more)  # type: ignore[arg-type]  # fields of a pod


def ids(*chips: int) -> list[str]:
    return [chip_name(chip_id) for chip_id in chips]


async def test_each_container_gets_its_slice_and_the_first_claim_has_all_chips() -> None:
    node = Node()
    node.kubelet = [one := pod("one", 0, 5, 4, 7, 6, time=1, asks={"left": 2, "right": 2})]
    node.pods.on_apply(one)
    first = await node.admit(2)
    assert [(part.container, part.chips) for part in first.parts] == [("left", (5, 4))]
    assert (first.chips, set(first.kubelet_ids)) == ((5, 4, 7, 6), {4, 5, 6, 7})
    second = await node.admit(2, ids(0, 1, 2, 3, 6, 7))
    assert [(part.container, part.chips) for part in second.parts] == [("left", (5, 4)), ("right", (7, 6))]
    assert node.claimed == [first]
    assert second.matches_kubelet


@pytest.mark.parametrize("written", [(6, 7), (0, 1, 2, 3, 4, 5, 6, 7), ()], ids=["others", "all", "none"])
async def test_what_is_written_between_the_calls_for_its_containers_gives_a_pod_nothing(
    written: tuple[int, ...],
) -> None:
    node = Node()
    node.pods.on_apply(pod("one", 0, 0, 1, time=1, asks={"left": 1, "right": 1}))
    await node.admit(1)
    node.pods.on_apply(pod("one", 0, *written, time=1, asks={"left": 1, "right": 1}))
    second = await node.admit(1, ids(*range(1, 8)))
    assert [part.chips for part in second.parts] == [(0,), (1,)]


async def test_chips_the_kubelet_reuses_for_a_container_are_given_as_they_are() -> None:
    node = Node()
    node.kubelet = [one := crowded("one", 0, 1, 2, 3)]
    node.pods.on_apply(one)
    await node.admit(4)
    left = await node.matcher.allocate(ids(3, 1))
    assert (left.part.container, left.part.chips) == ("left", (1, 3))
    right = await node.matcher.allocate(ids(2, 0))
    assert (right.part.container, right.part.chips) == ("right", (0, 2))
    assert right.allocation.matches_kubelet
    assert len(node.claimed) == 1


async def test_foreign_ids_are_answered_with_the_slice_and_claimed_again() -> None:
    node = Node()
    node.kubelet = [one := pod("one", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2})]
    node.pods.on_apply(one)
    first = await node.matcher.allocate(ids(0, 7))
    assert (first.part.chips, set(first.allocation.kubelet_ids)) == ((0, 1), {0, 7, 2, 3})
    second = await node.matcher.allocate(ids(2, 6))
    assert (second.part.chips, set(second.allocation.kubelet_ids)) == ((2, 3), {0, 7, 2, 6})
    assert node.claimed == [first.allocation, second.allocation]
    assert not second.allocation.matches_kubelet


async def test_a_repeated_call_for_one_of_several_containers_gets_the_same_answer() -> None:
    node = Node()
    node.kubelet = [one := pod("one", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2})]
    node.pods.on_apply(one)
    first = await node.matcher.allocate(ids(1, 0))
    again = await node.matcher.allocate(ids(0, 1))
    assert again == first
    right = await node.matcher.allocate(ids(3, 2))
    assert right.part.container == "right"
    assert (await node.matcher.allocate(ids(0, 1))).part == first.part
    assert (await node.matcher.allocate(ids(2, 3))).part == right.part


async def test_the_preference_of_a_later_container_keeps_the_kubelets_ids() -> None:
    node = Node()
    node.kubelet = [one := pod("one", 0, 0, 1, 2, 3, time=1, init={"prepare": 3}, asks={"left": 2, "right": 2})]
    node.pods.on_apply(one)
    await node.admit(3)
    await node.matcher.allocate(ids(1, 2))
    assert await node.matcher.prefer(ids(0, 3, 4, 5), ids(0), 2) == ids(0, 3)
    assert await node.matcher.prefer(ids(0, 3, 4, 5), ids(4), 2) == []
    assert await node.matcher.prefer(["npu-0", *ids(0, 3)], ["npu-0"], 2) == []


async def test_a_partly_admitted_pod_is_skipped_if_the_kubelet_has_a_newer_one() -> None:
    # Another resource refused the rest of it; the kubelet rejects it, which the watch does not show yet.
    node = Node()
    begun, later = pod("begun", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2}), pod("later", 2, 4, 5, time=2)
    node.pods.on_apply(begun)
    node.kubelet = [begun]
    await node.admit(2)
    node.pods.on_apply(later)
    node.kubelet = [begun, later]
    assert (await node.admit(2, ALL[2:])).pod == "default/later"


async def test_the_kubelet_is_asked_about_a_partly_admitted_pod() -> None:
    node = Node()
    begun = pod("begun", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2})
    node.pods.on_apply(begun)
    node.kubelet = [begun]
    await node.admit(2)
    node.kubelet = [begun, pod("unseen", 2, 4, 5, time=2)]
    assert (await node.admit(2, ALL[2:])).pod == "default/unseen"


async def test_without_the_kubelets_list_a_partly_admitted_pod_goes_first() -> None:
    node = Node()
    node.kubelet = None
    node.pods.on_apply(pod("begun", 0, 0, 1, 2, 3, time=9, asks={"left": 2, "right": 2}))
    await node.admit(2)
    node.pods.on_apply(pod("other", 2, 4, 5, time=1))
    assert (await node.admit(2, ALL[2:])).pod == "default/begun"
    assert (await node.admit(2, ALL[4:])).pod == "default/other"


async def test_a_pod_the_kubelet_rejects_by_itself_does_not_get_the_next_call() -> None:
    # For example out of CPU: until its status arrives it looks pending, and the kubelet lists it as well.
    node = Node()
    rejected, next_one = pod("rejected", 2, 0, 1, time=1), pod("next", 2, 2, 3, time=2)
    node.pods.on_apply(rejected)
    node.pods.on_apply(next_one)
    node.kubelet = [next_one, rejected]
    assert (await node.admit(2)).pod == "default/next"


@pytest.mark.parametrize("rejected", ["Pending", "Failed"])
async def test_a_pod_the_watch_has_not_shown_does_not_get_the_chips_of_the_only_one_it_shows(rejected: str) -> None:
    # The kubelet has just rejected the other one without a call, or will admit it later.
    node = Node()
    other, unseen = pod("other", 2, 0, 1, time=1), pod("unseen", 2, 2, 3, time=2)
    node.pods.on_apply(other)
    node.kubelet = [unseen] if rejected == "Pending" else [pod("other", 2, 0, 1, time=1, phase=rejected), unseen]
    allocation = await node.admit(2)
    assert (allocation.pod, allocation.chips, allocation.matches_kubelet) == ("default/unseen", (2, 3), True)


async def test_pods_are_admitted_in_the_order_in_which_the_kubelet_lists_them() -> None:
    # A kubelet that starts admits the pods that it finds in the order of their creation.
    node = Node()
    last, middle, first = pod("last", 1, 0, time=3), pod("by-hand", 1), pod("first", 1, 2, time=1)
    for each in (last, middle, first):
        node.pods.on_apply(each)
    node.kubelet = [first]
    assert (await node.admit(1)).pod == "default/first"
    node.kubelet = [first, middle]
    with pytest.raises(Refusal, match="was not placed by the allocator"):
        await node.admit(1)
    node.kubelet = [first, middle, last]
    assert (await node.admit(1)).pod == "default/last"


async def test_a_call_that_fits_no_pod_in_the_kubelets_list_is_refused_in_time() -> None:
    node = Node()
    node.pods.on_apply(pod("queued", 2, 0, 1, time=1))
    node.kubelet = []
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    assert await node.matcher.prefer(ALL, [], 2) == []
    assert loop.time() - started_s < PREFER_CAP_S
    started_s = loop.time()
    with pytest.raises(Refusal, match="no pod bound to this node waits for 2 chips"):
        await node.matcher.allocate(ids(0, 1))
    assert loop.time() - started_s < CAP_S
    assert list(node.allocations) == []


async def test_the_kubelet_is_asked_again_while_its_list_has_no_pod_that_the_call_fits() -> None:
    node = Node()
    node.kubelet = []
    late = pod("late", 2, 0, 1, time=1)
    node.pods.on_apply(late)
    asyncio.get_running_loop().call_later(0.7, setattr, node, "kubelet", [late])
    assert (await node.matcher.allocate(ids(0, 1))).allocation.pod == "default/late"


async def test_the_pod_that_the_kubelet_admits_may_continue_at_any_container() -> None:
    # An earlier instance of the plugin answered for the others.
    node = Node()
    node.pods.on_apply(crowded("one", 0, 1, 2, 3))
    assert (await node.matcher.allocate(ids(0, 1))).part.container == "left"
    assert (await node.matcher.allocate(ids(3, 2))).part.container == "right"


async def test_a_refused_container_adds_nothing_to_the_ledger() -> None:
    node = Node()

    def refuse(_chips: tuple[int, ...], _type: DeviceType) -> ContainerEdits:
        raise Refusal(Reason.DEVICE_NODE_MISSING, "/dev/davinci_manager is missing")

    node.devices._inject = refuse
    node.pods.on_apply(pod("one", 2, 0, 1, time=1))
    with pytest.raises(Refusal, match="davinci_manager is missing"):
        await node.admit(2)
    assert list(node.allocations) == []
    assert node.claimed == []


async def test_a_call_for_no_device_is_refused_at_once() -> None:
    node = Node()
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Refusal, match="names no device"):
        await node.matcher.allocate([])
    assert await node.matcher.prefer(ALL, [], 0) == []
    assert asyncio.get_running_loop().time() == started_s


def found_by_the_kubelet(*found: Pod) -> Node:
    """A node whose kubelet started after these pods were bound to it."""
    node = Node()
    node.kubelet = list(found)
    for each in found:
        node.pods.on_apply(each)
    node.matcher.begin()
    return node


async def test_a_pod_from_before_the_kubelets_start_is_refused_unoffered_chips() -> None:
    found = pod("found", 2, 0, 1, time=1)
    node = found_by_the_kubelet(found)
    with pytest.raises(Refusal, match="the kubelet does not offer Ascend910-1 yet") as refused:
        await node.admit(2, ids(0, 2, 3, 4, 5, 6, 7))
    assert refused.value.reason == "ChipNotFreed"
    assert (list(node.allocations), node.claimed) == ([], [])
    node.pods.on_delete(found)
    node.kubelet = [again := pod("again", 2, 0, 1, time=2)]
    node.pods.on_apply(again)
    assert (await node.admit(2)).matches_kubelet


@pytest.mark.parametrize("begun", [True, False], ids=["after", "before any"])
async def test_a_pod_from_after_the_kubelets_start_gets_unoffered_chips(*, begun: bool) -> None:
    node = Node()
    if begun:
        node = found_by_the_kubelet(pod("earlier", 1, 7, time=1))
    node.kubelet = [late := pod("late", 2, 0, 1, time=1)]
    node.pods.on_apply(late)
    allocation = await node.admit(2, ids(0, 2, 3, 4, 5, 6, 7))
    assert (allocation.chips, allocation.kubelet_ids) == ((0, 1), (0, 2))


async def test_chips_not_offered_to_one_pod_are_not_refused_to_another() -> None:
    one, other = pod("one", 2, 0, 1, time=1), pod("other", 2, 2, 3, time=2)
    node = found_by_the_kubelet(one, other)
    node.kubelet = [one]
    assert await node.matcher.prefer(ids(0, 2, 3, 4), [], 2) == []
    node.kubelet = [one, other]
    assert (await node.matcher.allocate(ids(2, 4))).part.chips == (2, 3)


@pytest.mark.parametrize("then", ["asked again", "another kubelet"])
async def test_unoffered_chips_are_refused_until_they_are_offered_or_a_new_kubelet(then: str) -> None:
    node = found_by_the_kubelet(pod("one", 2, 0, 1, time=1))
    with pytest.raises(Refusal, match="does not offer Ascend910-1 yet"):
        await node.admit(2, ids(0, 2))
    with pytest.raises(Refusal, match="does not offer Ascend910-1 yet"):
        await node.matcher.allocate(ids(0, 2))
    if then == "asked again":
        assert await node.matcher.prefer(ids(0, 1, 2), ids(2), 2) == []
    else:
        node.matcher.begin()
    assert (await node.matcher.allocate(ids(0, 2))).part.chips == (0, 1)


async def test_an_unoffered_chip_that_the_kubelet_chose_is_given() -> None:
    node = found_by_the_kubelet(pod("one", 2, 0, 1, time=1))
    assert await node.matcher.prefer(ids(0, 2), [], 2) == []
    assert (await node.matcher.allocate(ids(1, 2))).part.chips == (0, 1)


async def test_after_a_preference_that_took_too_long_the_pod_gets_its_chips() -> None:
    node = found_by_the_kubelet(one := pod("one", 2, 0, 1, time=1), pod("two", 2, 2, 3, time=2))
    answer, node.finder._kubelet_pods = node.finder._kubelet_pods, asyncio.Event().wait  # type: ignore[assignment]  # hangs
    assert await node.matcher.prefer(ids(0, 4, 5), [], 2) == []
    node.finder._kubelet_pods, node.kubelet = answer, [one]
    assert (await node.matcher.allocate(ids(0, 4))).part.chips == (0, 1)


async def test_only_a_container_without_other_chips_of_its_pod_is_refused() -> None:
    node = found_by_the_kubelet(pod("one", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2}))
    left = await node.admit(2, ids(0, 2, 3))
    assert [part.chips for part in left.parts] == [(0, 2)]
    with pytest.raises(Refusal, match="does not offer Ascend910-1 yet"):
        await node.admit(2, ids(3, 4, 5))


async def test_foreign_ids_chosen_already_are_not_refused() -> None:
    node = found_by_the_kubelet(crowded("one", 0, 1, 2, 3))
    await node.admit(4)
    assert await node.matcher.prefer(ids(2, 3, 4), ids(4), 2) == []
    given = await node.matcher.allocate(ids(4, 3))
    assert (given.part.container, given.part.matches_kubelet) == ("left", False)


def static(name: str, count: int, *chips: int, phase: str = "Pending") -> Pod:
    """A static pod in the kubelet's own list."""
    return pod(name, count, *chips, time=9, phase=phase, annotations={"kubernetes.io/config.source": "file"})


@pytest.mark.parametrize("others", [0, 1, 2])
@pytest.mark.parametrize("written", [(), (6, 7)])
async def test_a_static_pod_is_refused_whoever_else_waits(others: int, written: tuple[int, ...]) -> None:
    node = Node()
    waiting = [pod(f"waits-{number}", 2, 2 * number, 2 * number + 1, time=1) for number in range(others)]
    for each in waiting:
        node.pods.on_apply(each)
    node.kubelet = [static("static", 2, *written)]
    with pytest.raises(Refusal, match="pod default/static is a static pod") as refused:
        await node.admit(2)
    assert refused.value.reason is Reason.STATIC_POD
    listed = [static("static", 2, *written, phase="Failed")]
    node.kubelet = listed
    for each in waiting:
        listed.append(each)
        assert (await node.admit(2)).pod == f"default/{each.name}"
    assert len(node.claimed) == others


async def test_a_pod_bound_while_a_static_pod_is_admitted_keeps_its_chips() -> None:
    node = Node()
    node.kubelet = [static("static", 2)]
    bound = pod("bound", 2, 4, 5, time=1)
    asyncio.get_running_loop().call_later(0.3, node.pods.on_apply, bound)
    with pytest.raises(Refusal, match="static pod"):
        await node.admit(2)
    assert node.claimed == []
    node.kubelet = [static("static", 2, phase="Failed"), bound]
    assert (await node.admit(2)).pod == "default/bound"


async def test_an_annotation_of_its_author_does_not_make_a_pod_static() -> None:
    node = Node()
    node.kubelet = [pod("forged", 2, 4, 5, time=9, annotations={"kubernetes.io/config.source": "api"})]
    node.pods.on_apply(static("forged", 2, 4, 5))
    assert (await node.admit(2)).chips == (4, 5)


async def test_the_object_that_shows_a_static_pod_is_never_under_admission() -> None:
    node = Node()
    node.pods.on_apply(pod("mirror", 2, 4, 5, time=1, annotations={"kubernetes.io/config.mirror": "abc"}))
    node.pods.on_apply(pod("bound", 2, 4, 5, time=2))
    assert (await node.admit(2)).pod == "default/bound"
