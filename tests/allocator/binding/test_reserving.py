"""Chips for callers that bind pods themselves, and the seats of gangs while their pods are bound."""

import asyncio

import pytest

from allocator.binding.binding import Assignment, PodRef
from allocator.state.ledger import DOUBT_S
from allocator.state.reservation import Stage
from ascend.annotations import DISTRIBUTED, MIN_AVAILABLE
from ascend.errors import ApiError, AscendError, NotFound, Refusal, Throttled, Unreachable
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.binding.rig import REF, BinderWorld
from tests.allocator.builders import GROUP, node, pod
from tests.allocator.expiry import expire

pytestmark = pytest.mark.looptime


async def test_chips_are_reserved_for_a_caller_that_binds_the_pod() -> None:
    rig = BinderWorld(pod("a", 2))
    reserved = rig.reserver.reserve(pod("a", 2), None)
    assert reserved == rig.reserver.reserve(pod("a", 2), None)
    assert rig.stage() is Stage.RESERVED
    assert rig.server.bindings == []
    later = await rig.binder.bind(REF, reserved.node)
    assert later.grant.chips == reserved.grant.chips


async def test_confirmed_chips_of_a_pod_never_bound_are_released() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.reserver.reserve(pod("a", 2), None)
    rig.reserver.confirm("uid-a", "n1")
    for _ in range(int(30 + DOUBT_S)):
        assert rig.stage() is not None
        await rig.binder.outcomes.verify()
        rig.world.now_s += 1
    await rig.binder.outcomes.verify()
    assert rig.stage() is None
    assert rig.server.reads == 2


OTHER = PodRef("default", "b", "uid-b")
GANG = {GROUP: "train", MIN_AVAILABLE: "2"}


def gang() -> tuple[Pod, Pod]:
    return pod("a", 8, annotations=GANG), pod("b", 8, annotations=GANG)


async def bind_both(rig: BinderWorld) -> tuple[Assignment | BaseException, Assignment | BaseException]:
    """Bind both pods of the gang at once, as schedulers do."""
    both = rig.binder.bind(REF, "n2"), rig.binder.bind(OTHER, "n1")
    return await asyncio.gather(*both, return_exceptions=True)


async def test_the_pods_of_a_gang_are_bound_where_their_scheduler_says() -> None:
    rig = BinderWorld(*gang())
    bound = await bind_both(rig)
    assert [each.node for each in bound if isinstance(each, Assignment)] == ["n2", "n1"]
    assert [each[DISTRIBUTED] for each in rig.server.bindings] == ["true", "true"]


@pytest.mark.parametrize("error", [Throttled("later", status=429), ApiError("no", status=403)])
async def test_a_gang_keeps_its_seats_when_a_binding_is_refused(error: AscendError) -> None:
    rig = BinderWorld(*gang())
    rig.server.before.append(error)
    bound = await bind_both(rig)
    assert bound[1] is error
    assert rig.stage(OTHER.uid) is Stage.PLANNED
    assert rig.stage() is Stage.ASSUMED
    assert (await rig.binder.bind(OTHER, "n1")).node == "n1"


async def test_the_seat_of_a_pod_found_deleted_waits_for_its_successor() -> None:
    rig = BinderWorld(*gang())
    del rig.server.pods["b"]
    rig.server.before.append(Unreachable("lost"))
    bound = await bind_both(rig)
    assert isinstance(bound[1], NotFound)
    assert rig.stage(OTHER.uid) is None
    assert rig.world.ledger.count(Stage.PLANNED) == 1
    assert rig.stage() is Stage.ASSUMED


async def test_a_seat_whose_chips_a_caller_knows_is_not_swapped() -> None:
    a, b = gang()
    rig = BinderWorld(a, b)
    reserved = rig.reserver.reserve(a, None)
    with pytest.raises(Refusal, match=Reason.NOT_ENOUGH_CHIPS):
        rig.reserver.reserve(b, [reserved.node])
    assert rig.reserver.reserve(b, None).node != reserved.node
    assert rig.reserver.reserve(a, None) == reserved


async def test_chips_that_a_caller_knows_outlive_a_dropped_plan() -> None:
    a, b = gang()
    rig = BinderWorld(a, b)
    reserved = rig.reserver.reserve(b, ["n2"])
    rig.world.add(node("n1", cordoned=True))
    with pytest.raises(Refusal, match=Reason.NOT_ENOUGH_CHIPS):
        rig.reserver.reserve(a, None)
    assert rig.reserver.reserve(b, None) == reserved
    rig.world.now_s += 119
    reserved = rig.reserver.reserve(b, None)
    rig.world.now_s += 2
    expire(rig.world.ledger)
    with pytest.raises(Refusal):
        rig.reserver.reserve(pod("other", 8), None)
    rig.world.now_s += 120
    expire(rig.world.ledger)
    assert rig.reserver.reserve(pod("other", 8), None).node == reserved.node


async def test_a_pod_returns_to_its_seat_if_its_caller_does_not_bind_it() -> None:
    a, b = gang()
    rig = BinderWorld(a, b)
    reserved = rig.reserver.reserve(a, None)
    rig.world.now_s += 20
    assert rig.reserver.reserve(a, None) == reserved
    rig.world.now_s += 20
    assert expire(rig.world.ledger) == []
    assert rig.stage() is Stage.RESERVED
    rig.world.now_s += 10
    assert expire(rig.world.ledger) == []
    assert rig.stage() is Stage.PLANNED
    assert rig.reserver.reserve(a, None) == reserved
    assert rig.world.engine.release(a.uid)
    assert rig.stage() is Stage.PLANNED
    assert rig.reserver.reserve(b, [reserved.node]).node == reserved.node


async def test_a_seat_that_breaks_during_a_refused_binding_drops_the_plan() -> None:
    a, b = gang()
    rig = BinderWorld(a, b)
    held = rig.world.engine.place(a)
    rig.world.ledger.advance(a.uid, Stage.BINDING)
    rig.world.add(node(held.node, cordoned=True))
    assert rig.world.engine.filter(pod("other", 8)).fitting == []
    rig.world.ledger.withdraw(a.uid)
    assert rig.world.engine.filter(pod("other", 8)).fitting == [{"n1": "n2", "n2": "n1"}[held.node]]
