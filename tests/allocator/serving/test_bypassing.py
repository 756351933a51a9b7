"""Schedulers that bind pods without calling: which pods are denied, from when, and until when."""

import asyncio
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.serving import bypassing
from allocator.serving.bypassing import TRIAL_S, Bypasses
from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Metadata, OwnerReference, Pod, PodSpec, PodStatus
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES

pytestmark = pytest.mark.asyncio

VNPU: Final = f"{RESOURCE}-2c"
REFUSAL: Final = "Pod was rejected: Allocate failed due to rpc error: code = FailedPrecondition desc = NotPlaced: {}"
START: Final = 1_767_225_600  # 2026-01-01T00:00:00Z


def at(second: int) -> str:
    return f"2026-01-01T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"


class World:
    """Pods of controllers, and the clock; the second is also that of the API server."""

    def __init__(self) -> None:
        self.second = 0
        self.bypasses = Bypasses(lambda: float(self.second), lambda: START + self.second + 0.5)
        self.number = 0
        self.reasons: set[Reason] = set()

    def pod(
        self,
        controller: str = "web",
        *,
        resource: str = RESOURCE,
        scheduler: str = "default-scheduler",
        count: str = "1",
    ) -> Pod:
        self.number += 1
        owners = (OwnerReference("apps/v1", "ReplicaSet", controller, controller, controller=True),)
        return Pod(
            metadata=Metadata(
                name=f"p{self.number}",
                namespace="default",
                uid=f"uid-{self.number}",
                creation_timestamp=at(self.second),
                owner_references=owners if controller else (),
            ),
            spec=PodSpec(
                scheduler_name=scheduler, containers=(Container("main", Resources(limits={resource: count})),)
            ),
            status=PodStatus(phase="Pending"),
        )

    async def creates(self, pod: Pod) -> bool:
        """Whether the pod is created."""
        try:
            await self.bypasses.require_called(pod)
        except Refusal as refusal:
            self.reasons.add(refusal.reason)
            return False
        self.bypasses.pod_applied(pod)
        return True

    def bound(self, pod: Pod, **annotations: str) -> Pod:
        return self._seen(pod, "Pending", annotations=annotations)

    def refused(self, pod: Pod, message: str = REFUSAL) -> Pod:
        return self._seen(pod, "Failed", reason="UnexpectedAdmissionError", message=message)

    def placed(self, pod: Pod, resource: str = RESOURCE) -> Pod:
        time = (START + self.second) * 10**9 + 1
        return self._seen(pod, "Running", annotations={resource: "Ascend910-0", PREDICATE_TIME: str(time)})

    def _seen(
        self, pod: Pod, phase: str, reason: str = "", message: str = "", annotations: dict[str, str] | None = None
    ) -> Pod:
        written = pod.metadata.annotations | (annotations or {})
        known = Metadata(
            **{name: getattr(pod.metadata, name) for name in Metadata.__struct_fields__} | {"annotations": written}
        )
        spec = PodSpec(node_name="n1", scheduler_name=pod.spec.scheduler_name, containers=pod.spec.containers)
        status = PodStatus(phase=phase, reason=reason, message=message, start_time=at(self.second))
        seen = Pod(metadata=known, spec=spec, status=status)
        self.bypasses.pod_applied(seen)
        return seen

    async def fails(self, pod: Pod) -> Pod:
        """Bind a pod without a call; its node refuses it."""
        self.bound(pod)
        return self.refused(pod)


@pytest.fixture
def world() -> World:
    return World()


async def test_one_pod_of_a_controller_fails_and_no_other_is_created(world: World) -> None:
    first = world.pod()
    assert await world.creates(first)
    await world.fails(first)
    for _ in range(252):
        assert not await world.creates(world.pod())
    assert not await world.creates(world.pod("another"))
    assert world.reasons == {Reason.SCHEDULER_NOT_CONNECTED}
    with pytest.raises(Refusal, match="bound pod default/p1 without calling the allocator, so node n1 refused it"):
        await world.bypasses.require_called(world.pod())


async def test_the_sentence_names_a_scheduler_that_calls(world: World) -> None:
    world.bypasses.on_call(world.pod("", scheduler="ascend-scheduler"))
    world.bypasses.on_call(world.pod("", scheduler="for-parts", resource=VNPU))
    await world.fails(world.pod())
    with pytest.raises(Refusal, match=r"or give the pods the schedulerName of one that calls it \(ascend-scheduler\)"):
        await world.bypasses.require_called(world.pod())


async def test_the_first_call_ends_the_denial(world: World) -> None:
    first = world.pod()
    await world.creates(first)
    failed = await world.fails(first)
    alone = world.pod("")
    assert await world.creates(alone)
    world.bypasses.on_call(alone)
    assert await world.creates(world.pod())
    world.bypasses.pod_applied(failed)  # it is still there, and seen again
    assert await world.creates(world.pod())


async def test_a_configuration_that_is_lost_later_is_noticed_by_the_next_pod(world: World) -> None:
    works = world.pod()
    await world.creates(works)
    world.bypasses.on_call(works)
    world.placed(works)
    world.second += 1
    last = world.pod()
    assert await world.creates(last)
    await world.fails(last)
    assert not await world.creates(world.pod())


async def test_the_second_pod_waits_until_the_first_one_has_shown_what_its_scheduler_does(world: World) -> None:
    for called in (True, False):
        world = World()
        first, second = world.pod(), world.pod()
        assert await world.creates(first)
        waiting = asyncio.create_task(world.creates(second))
        other = asyncio.create_task(world.creates(world.pod()))
        await asyncio.sleep(0)
        assert not waiting.done()
        if called:
            world.bypasses.on_call(first)
        else:
            await world.fails(first)
        assert [await waiting, await other] == [called, called]


async def test_a_pod_that_is_bound_without_chips_is_awaited_before_the_next_is_created(world: World) -> None:
    works, last = world.pod(), world.pod()
    world.bypasses.on_call(works)
    world.bound(last)
    waiting = asyncio.create_task(world.creates(world.pod()))
    await asyncio.sleep(0)
    assert not waiting.done()
    world.refused(last)
    assert not await waiting


async def test_nobody_waits_for_long_for_a_pod_that_no_scheduler_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bypassing, "SETTLED_S", 0.01)
    assert await world.creates(world.pod())
    assert await world.creates(world.pod())
    world.second += 1
    waiting = asyncio.create_task(world.creates(world.pod()))
    for _ in range(3):
        await asyncio.sleep(0)
    assert await waiting


async def test_pods_without_a_controller_are_never_denied(world: World) -> None:
    await world.fails(world.pod(""))
    assert await world.creates(world.pod(""))
    assert not await world.creates(world.pod())


async def test_a_scheduler_is_judged_by_its_own_pods_and_by_each_resource(world: World) -> None:
    await world.fails(world.pod())
    assert await world.creates(world.pod(scheduler="ascend-scheduler"))
    for resource in (VNPU, RESOURCE_CORES):
        assert await world.creates(world.pod(resource, resource=resource))
    await world.fails(world.pod(resource=VNPU))
    world.bypasses.on_call(world.pod())
    assert await world.creates(world.pod())
    assert not await world.creates(world.pod(resource=VNPU))


async def test_a_pod_whose_chips_others_have_written_or_chosen_counts_as_called_for(world: World) -> None:
    await world.fails(world.pod())
    world.second += 1
    by_volcano = world.pod()
    world.bound(by_volcano, **{RESOURCE: "Ascend910-0", PREDICATE_TIME: str(CLAIMED)})
    assert await world.creates(world.pod())
    await world.fails(world.pod())
    world.second += 1
    world.bound(world.pod(), **{REAL: "Ascend910-0"})  # chooseChips
    assert await world.creates(world.pod())


@pytest.mark.parametrize("message", ["Allocate failed … desc = ChipHeld: Ascend910-1 is held by pod x", ""])
async def test_what_a_node_refuses_for_other_reasons_is_no_bypass(world: World, message: str) -> None:
    first = world.pod()
    await world.creates(first)
    world.bound(first)
    world.refused(first, message)
    world.bypasses.on_call(first)
    assert await world.creates(world.pod())


async def test_a_new_leader_finds_the_refused_pod_and_whether_later_ones_had_chips(world: World) -> None:
    early, late = world.pod(), world.pod()
    world.second = 60
    placed = [world.placed(early)]
    world.second = 120
    failed = await world.fails(world.pod())
    for later, denied in ((False, True), (True, False)):
        if later:
            world.second = 180
            placed.append(world.placed(late))
        for order in ((failed, *placed), (*placed, failed)):
            new = World()
            new.second = 240
            for pod in order:
                new.bypasses.pod_applied(pod)
            assert await new.creates(new.pod()) is not denied


async def test_after_longer_and_longer_times_one_pod_is_created_to_try_it_again(world: World) -> None:
    await world.fails(world.pod())
    for wait_s in (TRIAL_S, 2 * TRIAL_S, 4 * TRIAL_S):
        world.second += int(wait_s) - 1
        assert not await world.creates(world.pod())
        world.second += 1
        with pytest.raises(Refusal):
            await world.bypasses.require_called(world.pod(), dry_run=True)
        tried = world.pod()
        assert await world.creates(tried)
        assert not await world.creates(world.pod())
        await world.fails(tried)


@pytest.mark.parametrize("count", ["0", "1"])
async def test_pods_without_chips_or_with_a_node_are_not_judged(world: World, count: str) -> None:
    await world.fails(world.pod())
    pod = world.pod(count=count)
    assert await world.creates(pod) == (count == "0")


STEPS = st.lists(st.tuples(st.sampled_from(["create", "call", "lose", "next"]), st.integers(0, 2)), max_size=40)


@given(STEPS)
async def test_however_often_a_scheduler_is_lost_no_controller_fails_twice_in_between(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    connected, failures = False, dict.fromkeys(range(3), 0)
    for step, number in steps:
        world.second += 1
        if step == "lose":
            connected = False
        elif step == "call":
            connected = True
            world.bypasses.on_call(world.pod(""))
            failures = dict.fromkeys(failures, 0)
        elif step == "create":
            pod = world.pod(f"c{number}")
            if await world.creates(pod):
                if connected:
                    world.bypasses.on_call(pod)
                    world.placed(pod)
                    failures = dict.fromkeys(failures, 0)
                else:
                    await world.fails(pod)
                    failures[number] += 1
        assert sum(failures.values()) <= 1
