"""The binder: one Binding for each pod and one result for each caller; after a lost answer the pod itself is read."""

import asyncio

import pytest

from allocator.binding.binder import ANSWER_TIMEOUT_S, AT_ONCE
from allocator.binding.binding import Assignment, PodRef
from allocator.state.ledger import DOUBT_S
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, DISTRIBUTED, PREDICATE_TIME
from ascend.errors import ApiError, AscendError, Conflict, NotFound, Refusal, Throttled, Unreachable
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.vnpus import Vnpu
from tests.allocator.binding.rig import NOW_NS, REF, BinderWorld, Server
from tests.allocator.builders import node, pod
from tests.allocator.vnpus import cut_node, vnpu_pod

pytestmark = pytest.mark.looptime


async def test_a_binding_carries_the_chips_and_a_predicate_time() -> None:
    rig = BinderWorld(pod("a", 2))
    bound = await rig.binder.bind(REF, "n1")
    assert bound.grant.chips == (0, 1)
    written = {ALLOCATED: "Ascend910-0,Ascend910-1", PREDICATE_TIME: str(NOW_NS), DISTRIBUTED: "false"}
    assert rig.server.bindings == [{"name": "default/a", "node": "n1", **written}]
    assert rig.stage() is Stage.ASSUMED
    assert rig.outcomes == [bound]


async def test_a_repeated_bind_posts_nothing_twice() -> None:
    rig = BinderWorld(pod("a", 2))
    first = await rig.binder.bind(REF, "n1")
    again = await rig.binder.bind(REF, "n1")
    rig.world.add(rig.server.pods["a"])
    assert rig.stage() is None
    seen = await rig.binder.bind(REF, "n1")
    assert first.grant == again.grant == seen.grant
    assert (first.repeated, again.repeated, seen.repeated) == (False, True, True)
    assert len(rig.server.bindings) == 1


async def test_bindings_in_flight_are_limited_and_all_are_posted() -> None:
    pods = [pod(f"p{number}", 0) for number in range(3 * AT_ONCE)]
    rig = BinderWorld(*pods)
    rig.server.gate = asyncio.Event()
    waiting = asyncio.gather(*(rig.binder.bind(PodRef("default", each.name, each.uid), "n1") for each in pods))
    await asyncio.sleep(1)
    assert len(rig.server.bindings) == AT_ONCE
    rig.server.gate.set()
    assert {bound.node for bound in await waiting} == {"n1"}
    assert len(rig.server.bindings) == len(pods)


async def test_a_plain_pod_is_bound_without_reading_it() -> None:
    rig = BinderWorld(pod("a", None))
    first = await rig.binder.bind(REF, "n1")
    assert (first.node, first.grant.chips, first.repeated) == ("n1", (), False)
    assert rig.server.bindings == [{"name": "default/a", "node": "n1"}]
    assert rig.server.reads == 0
    again = await rig.binder.bind(REF, "n1")
    assert (again.node, again.repeated) == ("n1", True)
    with pytest.raises(Refusal, match="n1"):
        await rig.binder.bind(REF, "n2")


async def test_a_waiting_binding_requests_its_lease_when_it_is_posted() -> None:
    pods = [pod(f"p{number}", 1) for number in range(AT_ONCE)]
    late = pod("late", 1)
    rig = BinderWorld(*pods, late)
    rig.world.add(node("n3"))
    rig.server.gate = asyncio.Event()
    refs = [PodRef("default", each.name, each.uid) for each in (*pods, late)]
    nodes = ["n1"] * 8 + ["n2"] * 8 + ["n3"]
    waiting = [asyncio.create_task(rig.binder.bind(*each)) for each in zip(refs, nodes, strict=True)]
    await asyncio.sleep(1)
    rig.leads = False
    rig.server.gate.set()
    *bound, refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, Assignment) for each in bound)
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.NOT_LEADER
    assert rig.stage(late.uid) is None


async def test_binding_to_another_node_is_refused() -> None:
    rig = BinderWorld(pod("a", 2))
    await rig.binder.bind(REF, "n1")
    for _ in ("by its reservation", "as seen bound"):
        with pytest.raises(Refusal) as refused:
            await rig.binder.bind(REF, "n2")
        assert refused.value.reason is Reason.ALREADY_PLACED
        rig.world.add(rig.server.pods["a"])
    assert len(rig.server.bindings) == 1


async def test_concurrent_calls_post_one_binding() -> None:
    rig = BinderWorld(pod("a", 2))
    one, two, elsewhere = await asyncio.gather(
        rig.binder.bind(REF, "n1"),
        rig.binder.bind(REF, "n1"),
        rig.binder.bind(REF, "n2"),
        return_exceptions=True,
    )
    assert isinstance(one, Assignment)
    assert one == two
    assert isinstance(elsewhere, Refusal)
    assert len(rig.server.bindings) == 1


async def test_a_cancelled_caller_does_not_cancel_the_binding() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.gate = asyncio.Event()
    caller = asyncio.create_task(rig.binder.bind(REF, "n1"))
    await rig.server.called.wait()
    caller.cancel()
    await asyncio.wait({caller})
    assert rig.stage() is Stage.BINDING
    rig.server.gate.set()
    await rig.binder.drain()
    assert rig.stage() is Stage.ASSUMED


async def test_a_slow_binding_continues_after_its_caller_is_answered() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.gate = asyncio.Event()

    async def get(*_: object) -> Pod:
        await asyncio.sleep(60)
        return rig.server.pods["a"]

    rig.server.get = get  # type: ignore[method-assign, assignment] # a server that does not answer
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(Unreachable, match="default/a"):
        await rig.binder.bind(REF, "n1")
    assert loop.time() - started_s == pytest.approx(ANSWER_TIMEOUT_S)
    assert rig.stage() is Stage.BINDING
    await rig.binder.drain()
    assert rig.stage() is Stage.DOUBTFUL


@pytest.mark.parametrize("error", [Unreachable("broken pipe"), ApiError("timeout", status=504)])
async def test_a_lost_answer_to_a_binding_that_was_made_is_success(error: AscendError) -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.after = [error]
    bound = await rig.binder.bind(REF, "n1")
    assert bound.grant.chips == (0, 1)
    assert rig.stage() is Stage.ASSUMED


@pytest.mark.parametrize("error", [Unreachable("refused"), ApiError("internal", status=500)])
async def test_chips_stay_reserved_after_a_binding_that_failed(error: AscendError) -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.before = [error]
    with pytest.raises(type(error)):
        await rig.binder.bind(REF, "n1")
    assert rig.stage() is Stage.DOUBTFUL
    assert (await rig.binder.bind(REF, "n1")).grant.chips == (0, 1)


async def test_a_binding_of_unknown_outcome_keeps_its_chips_reserved() -> None:
    rig = BinderWorld(pod("a", 8), pod("b", 8))
    rig.server.before = [Unreachable("lost")]
    with pytest.raises(Unreachable):
        await rig.binder.bind(REF, "n1")
    engine = rig.world.engine
    assert not engine.release("uid-a")
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    assert engine.filter(pod("a", 8), ["n1", "n2"]).fitting == ["n1"]
    rig.world.now_s += DOUBT_S
    # The Binding may have been made although the watch does not show it.
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    rig.server.unreadable = [Unreachable("gone")]
    await rig.binder.outcomes.verify()
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    await rig.binder.outcomes.verify()
    assert engine.filter(pod("b", 8), ["n1"]).fitting == ["n1"]


async def test_a_binding_not_seen_for_long_keeps_its_chips_reserved() -> None:
    rig = BinderWorld(pod("a", 8))
    rig.server.after = [Unreachable("lost")]
    rig.server.unreadable = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        await rig.binder.bind(REF, "n1")
    rig.world.now_s += 10 * DOUBT_S
    assert rig.world.engine.filter(pod("b", 8), ["n1"]).fitting == []
    await rig.binder.outcomes.verify()
    assert rig.stage() is Stage.ASSUMED


async def test_chips_stay_reserved_if_the_pod_cannot_be_read() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.after = [Unreachable("lost")]
    rig.server.unreadable = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        await rig.binder.bind(REF, "n1")
    assert rig.stage() is Stage.DOUBTFUL
    # The next attempt finds the Binding that was made, and what is written on the pod counts.
    assert (await rig.binder.bind(REF, "n1")).grant.predicate_time == NOW_NS
    assert rig.stage() is Stage.ASSUMED


@pytest.mark.parametrize(
    "error",
    [
        NotFound("gone", status=404),
        Conflict("the pod is being deleted", status=409),
        Throttled("later", status=429),
        ApiError("no", status=403),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_rejected_binding_releases_the_chips(error: ApiError) -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.before = [error]
    with pytest.raises(type(error)):
        await rig.binder.bind(REF, "n1")
    assert rig.stage() is None
    assert rig.outcomes == [error]


async def test_a_recreated_pod_is_refused() -> None:
    rig = BinderWorld(pod("a", 2))
    other = pod("a", 2)
    rig.server.pods["a"] = Pod(
        metadata=type(other.metadata)(name="a", namespace="default", uid="uid-other"), spec=other.spec
    )
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(REF, "n1")
    assert refused.value.reason is Reason.POD_GONE
    assert rig.stage() is None


async def test_a_pod_bound_by_another_scheduler_keeps_its_chips() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.pods["a"] = pod("a", 2, node="n2", chips=[4, 5])
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(REF, "n1")
    assert refused.value.reason is Reason.ALREADY_PLACED
    # Until the watch shows it, the ledger has its chips.
    held = rig.world.ledger.get("uid-a")
    assert held is not None
    assert (held.node, held.take.chips, held.stage) == ("n2", (4, 5), Stage.ASSUMED)


async def test_a_pod_bound_by_another_scheduler_keeps_its_vnpu() -> None:
    part = Vnpu("2c", 0, 100)
    rig = BinderWorld(vnpu_pod("a"))
    rig.world.add(cut_node("n1", [part]), cut_node("n2", [part]))
    rig.server.pods["a"] = vnpu_pod("a", node="n2", vnpu=part)
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(REF, "n1")
    assert refused.value.reason is Reason.ALREADY_PLACED
    held = rig.world.ledger.get("uid-a")
    assert held is not None
    assert (held.node, held.take, held.stage) == ("n2", Take.part(part), Stage.ASSUMED)
    rig.server.pods["a"] = vnpu_pod("a", node="n2", annotations={part.resource: "x"})
    rig.world.add(rig.server.pods["a"])
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(REF, "n2")
    assert refused.value.reason is Reason.UNREADABLE_POD


async def test_a_pod_the_informer_has_not_seen_is_read() -> None:
    rig = BinderWorld(server=Server(pod("a", 2)))
    assert (await rig.binder.bind(REF, "n1")).grant.chips == (0, 1)


async def test_the_watch_may_be_faster_than_the_answer() -> None:
    rig = BinderWorld(pod("a", 2))
    rig.server.gate = asyncio.Event()
    binding = asyncio.create_task(rig.binder.bind(REF, "n1"))
    await rig.server.called.wait()
    rig.world.add(pod("a", 2, node="n1", chips=[0, 1]))
    rig.world.cluster.pod_deleted(pod("a", 2, node="n1", chips=[0, 1]))
    rig.server.gate.set()
    await binding
    assert len(rig.world.ledger) == 0


async def test_a_pod_without_a_uid_is_not_bound() -> None:
    rig = BinderWorld(pod("a", 2))
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(PodRef("default", "a", ""), "n1")
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert rig.server.bindings == []


async def test_a_finished_pod_is_not_bound() -> None:
    rig = BinderWorld(pod("a", 2, phase="Failed"))
    with pytest.raises(Refusal) as refused:
        await rig.binder.bind(REF, "n1")
    assert refused.value.reason is Reason.POD_FINISHED


async def test_bindings_that_are_never_seen_are_verified() -> None:
    rig = BinderWorld(pod("a", 1), pod("b", 1))
    await rig.binder.bind(REF, "n1")
    await rig.binder.bind(PodRef("default", "b", "uid-b"), "n1")
    del rig.server.pods["a"]
    await rig.binder.outcomes.verify()
    assert rig.stage() is Stage.ASSUMED
    rig.world.now_s += 31
    await rig.binder.outcomes.verify()
    assert rig.stage() is None
    assert rig.stage("uid-b") is Stage.ASSUMED
