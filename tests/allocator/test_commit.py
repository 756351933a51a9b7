"""The commit: one Binding per pod, one answer however often it is asked; of a lost answer the pod says what it was."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from allocator.binding.annotations import Stamper
from allocator.binding.binder import ANSWER_TIMEOUT_S, AT_ONCE, Binder
from allocator.binding.binding import Assignment, BindingLease, PodRef, unlimited_lease
from allocator.state.ledger import DOUBT_S
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, DISTRIBUTED, MIN_AVAILABLE, PREDICATE_TIME
from ascend.errors import ApiError, AscendError, Conflict, NotFound, Refusal, Throttled, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod, Resource
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod

NOW_NS = 1_795_000_000_000_000_000
pytestmark = pytest.mark.looptime

REF = PodRef("default", "a", "uid-a")


class Server:
    """Two calls of the API server, with a script of what goes wrong."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {each.name: each for each in pods}
        self.bindings: list[dict[str, Any]] = []
        self.before: list[AscendError] = []
        self.after: list[AscendError] = []
        self.unreadable: list[AscendError] = []
        self.reads = 0
        self.gate: asyncio.Event | None = None
        self.asked = asyncio.Event()

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str], timeout_s: float
    ) -> None:
        self.asked.set()
        self.bindings.append({"name": f"{namespace}/{name}", "node": node, **annotations})
        if self.gate is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.gate.wait()
            except TimeoutError:
                raise Unreachable("timed out") from None
        if self.before:
            raise self.before.pop(0)
        found = self.pods.get(name)
        if found is None:
            raise NotFound("no such pod", status=404)
        if found.uid != uid or found.spec.node_name:
            raise Conflict("uid or node", status=409)
        self.pods[name] = pod(name, found.spec.containers[0].chips, node=node, annotations=annotations)
        if self.after:
            raise self.after.pop(0)

    async def get(self, resource: Resource[Pod], name: str, namespace: str = "") -> Pod:
        assert resource.plural == "pods"
        assert namespace == "default"
        self.reads += 1
        if self.unreadable:
            raise self.unreadable.pop(0)
        if name not in self.pods:
            raise NotFound("no such pod", status=404)
        return self.pods[name]


class Desk:
    """A binder in a world of two nodes."""

    def __init__(self, *pods: Pod, server: Server | None = None) -> None:
        self.world = World()
        self.world.add(node("n1"), node("n2"), *pods)
        self.server = server or Server(*pods)
        self.outcomes: list[Assignment | AscendError] = []
        self.binder = Binder(
            client=cast("KubeClient", self.server),
            cluster=self.world.cluster,
            ledger=self.world.ledger,
            engine=self.world.engine,
            stamper=Stamper(self.world.cluster, self.world.ledger, lambda: NOW_NS),
            monotonic=lambda: self.world.now_s,
            outcome=lambda _ref, _node, result, _duration_s: self.outcomes.append(result),
            lease=self._lease,
        )
        self.leads = True

    def _lease(self, wanted_s: float) -> BindingLease:
        if not self.leads:
            raise Refusal(Reason.NOT_LEADER, "another allocator leads")
        return unlimited_lease(wanted_s)

    def stage(self, uid: str = "uid-a") -> Stage | None:
        held = self.world.ledger.get(uid)
        return None if held is None else held.stage


async def test_a_pod_is_bound_with_its_chips_in_selection_order_and_a_time() -> None:
    office = Desk(pod("a", 2))
    bound = await office.binder.bind(REF, "n1")
    assert bound.grant.chips == (0, 1)
    written = {ALLOCATED: "Ascend910-0,Ascend910-1", PREDICATE_TIME: str(NOW_NS), DISTRIBUTED: "false"}
    assert office.server.bindings == [{"name": "default/a", "node": "n1", **written}]
    assert office.stage() is Stage.ASSUMED
    assert office.outcomes == [bound]


async def test_asked_again_before_and_after_it_is_seen_nothing_is_posted_twice() -> None:
    office = Desk(pod("a", 2))
    first = await office.binder.bind(REF, "n1")
    again = await office.binder.bind(REF, "n1")
    office.world.add(office.server.pods["a"])
    assert office.stage() is None
    seen = await office.binder.bind(REF, "n1")
    assert first.grant == again.grant == seen.grant
    assert (first.repeated, again.repeated, seen.repeated) == (False, True, True)
    assert len(office.server.bindings) == 1


async def test_a_crowd_is_bound_a_few_at_a_time_and_nobody_is_left_out() -> None:
    crowd = [pod(f"p{number}", 0) for number in range(3 * AT_ONCE)]
    office = Desk(*crowd)
    office.server.gate = asyncio.Event()
    waiting = asyncio.gather(*(office.binder.bind(PodRef("default", each.name, each.uid), "n1") for each in crowd))
    await asyncio.sleep(1)
    assert len(office.server.bindings) == AT_ONCE
    office.server.gate.set()
    assert {bound.node for bound in await waiting} == {"n1"}
    assert len(office.server.bindings) == len(crowd)


async def test_a_binding_that_waits_for_its_turn_asks_for_leave_when_it_has_it() -> None:
    crowd = [pod(f"p{number}", 1) for number in range(AT_ONCE)]
    late = pod("late", 1)
    office = Desk(*crowd, late)
    office.world.add(node("n3"))
    office.server.gate = asyncio.Event()
    refs = [PodRef("default", each.name, each.uid) for each in (*crowd, late)]
    nodes = ["n1"] * 8 + ["n2"] * 8 + ["n3"]
    waiting = [asyncio.create_task(office.binder.bind(*each)) for each in zip(refs, nodes, strict=True)]
    await asyncio.sleep(1)
    office.leads = False
    office.server.gate.set()
    *bound, refused = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, Assignment) for each in bound)
    assert isinstance(refused, Refusal)
    assert refused.reason == Reason.NOT_LEADER
    assert office.stage(late.uid) is None


async def test_bound_elsewhere_is_a_refusal() -> None:
    office = Desk(pod("a", 2))
    await office.binder.bind(REF, "n1")
    for _ in ("from the ledger", "from the view"):
        with pytest.raises(Refusal) as refused:
            await office.binder.bind(REF, "n2")
        assert refused.value.reason == Reason.ALREADY_PLACED
        office.world.add(office.server.pods["a"])
    assert len(office.server.bindings) == 1


async def test_of_two_calls_at_once_one_posts_and_both_are_answered() -> None:
    office = Desk(pod("a", 2))
    one, two, elsewhere = await asyncio.gather(
        office.binder.bind(REF, "n1"),
        office.binder.bind(REF, "n1"),
        office.binder.bind(REF, "n2"),
        return_exceptions=True,
    )
    assert isinstance(one, Assignment)
    assert one == two
    assert isinstance(elsewhere, Refusal)
    assert len(office.server.bindings) == 1


async def test_a_caller_that_goes_away_does_not_take_the_binding_with_it() -> None:
    office = Desk(pod("a", 2))
    office.server.gate = asyncio.Event()
    caller = asyncio.create_task(office.binder.bind(REF, "n1"))
    await office.server.asked.wait()
    caller.cancel()
    await asyncio.wait({caller})
    assert office.stage() is Stage.BINDING
    office.server.gate.set()
    await office.binder.drain()
    assert office.stage() is Stage.ASSUMED


async def test_the_answer_comes_in_time_and_the_work_goes_on() -> None:
    office = Desk(pod("a", 2))
    office.server.gate = asyncio.Event()

    async def get(*_: object) -> Pod:
        await asyncio.sleep(60)
        return office.server.pods["a"]

    office.server.get = get  # type: ignore[method-assign, assignment] # a server that has stopped answering
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    with pytest.raises(Unreachable, match="goes on"):
        await office.binder.bind(REF, "n1")
    assert loop.time() - started_s == pytest.approx(ANSWER_TIMEOUT_S)
    assert office.stage() is Stage.BINDING
    await office.binder.drain()
    assert office.stage() is Stage.DOUBTFUL


@pytest.mark.parametrize("error", [Unreachable("broken pipe"), ApiError("timeout", status=504)])
async def test_a_lost_answer_to_a_binding_that_was_made_is_success(error: AscendError) -> None:
    office = Desk(pod("a", 2))
    office.server.after = [error]
    bound = await office.binder.bind(REF, "n1")
    assert bound.grant.chips == (0, 1)
    assert office.stage() is Stage.ASSUMED


@pytest.mark.parametrize("error", [Unreachable("refused"), ApiError("internal", status=500)])
async def test_a_binding_that_was_not_made_keeps_its_chips_for_a_while(error: AscendError) -> None:
    office = Desk(pod("a", 2))
    office.server.before = [error]
    with pytest.raises(type(error)):
        await office.binder.bind(REF, "n1")
    assert office.stage() is Stage.DOUBTFUL
    assert (await office.binder.bind(REF, "n1")).grant.chips == (0, 1)


async def test_a_binding_of_unknown_outcome_keeps_its_chips_from_everybody_else() -> None:
    office = Desk(pod("a", 8), pod("b", 8))
    office.server.before = [Unreachable("lost")]
    with pytest.raises(Unreachable):
        await office.binder.bind(REF, "n1")
    engine = office.world.engine
    assert not engine.release("uid-a")
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    assert engine.filter(pod("a", 8), ["n1", "n2"]).fitting == ["n1"]
    office.world.now_s += DOUBT_S
    # Time alone proves nothing: the Binding may have been made, and the watch be silent.
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    office.server.unreadable = [Unreachable("gone")]
    await office.binder.verify()
    assert engine.filter(pod("b", 8), ["n1"]).fitting == []
    await office.binder.verify()
    assert engine.filter(pod("b", 8), ["n1"]).fitting == ["n1"]


async def test_a_binding_of_unknown_outcome_that_the_watch_is_slow_to_show_keeps_its_chips() -> None:
    office = Desk(pod("a", 8))
    office.server.after = [Unreachable("lost")]
    office.server.unreadable = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        await office.binder.bind(REF, "n1")
    office.world.now_s += 10 * DOUBT_S
    assert office.world.engine.filter(pod("b", 8), ["n1"]).fitting == []
    await office.binder.verify()
    assert office.stage() is Stage.ASSUMED


async def test_where_the_pod_can_not_be_read_either_the_chips_are_kept_for_a_while() -> None:
    office = Desk(pod("a", 2))
    office.server.after = [Unreachable("lost")]
    office.server.unreadable = [Unreachable("gone")]
    with pytest.raises(Unreachable):
        await office.binder.bind(REF, "n1")
    assert office.stage() is Stage.DOUBTFUL
    # The next attempt runs into the Binding that was made all the same, and what is written counts.
    assert (await office.binder.bind(REF, "n1")).grant.predicate_time == NOW_NS
    assert office.stage() is Stage.ASSUMED


@pytest.mark.parametrize(
    "error", [NotFound("gone", status=404), Throttled("later", status=429), ApiError("no", status=403)]
)
async def test_a_clear_no_gives_the_chips_back(error: ApiError) -> None:
    office = Desk(pod("a", 2))
    office.server.before = [error]
    with pytest.raises(type(error)):
        await office.binder.bind(REF, "n1")
    assert office.stage() is None
    assert office.outcomes == [error]


async def test_a_conflict_over_a_pod_that_is_not_bound_gives_the_chips_back() -> None:
    office = Desk(pod("a", 2))
    office.server.before = [Conflict("the pod is being deleted", status=409)]
    with pytest.raises(Conflict):
        await office.binder.bind(REF, "n1")
    assert office.stage() is None


async def test_a_pod_that_was_replaced_by_one_of_the_same_name_is_refused() -> None:
    office = Desk(pod("a", 2))
    other = pod("a", 2)
    office.server.pods["a"] = Pod(
        metadata=type(other.metadata)(name="a", namespace="default", uid="uid-other"), spec=other.spec
    )
    with pytest.raises(Refusal) as refused:
        await office.binder.bind(REF, "n1")
    assert refused.value.reason == "PodGone"
    assert office.stage() is None


async def test_a_pod_bound_by_somebody_else_keeps_what_is_written_on_it() -> None:
    office = Desk(pod("a", 2))
    office.server.pods["a"] = pod("a", 2, node="n2", chips=[4, 5])
    with pytest.raises(Refusal) as refused:
        await office.binder.bind(REF, "n1")
    assert refused.value.reason == Reason.ALREADY_PLACED
    # Not seen by the watch yet, so the ledger holds it where it is.
    held = office.world.ledger.get("uid-a")
    assert held is not None
    assert (held.node, held.chips, held.stage) == ("n2", (4, 5), Stage.ASSUMED)


async def test_a_pod_our_watch_has_not_shown_yet_is_read() -> None:
    office = Desk(server=Server(pod("a", 2)))
    assert (await office.binder.bind(REF, "n1")).grant.chips == (0, 1)


async def test_the_watch_may_be_faster_than_the_answer() -> None:
    office = Desk(pod("a", 2))
    office.server.gate = asyncio.Event()
    binding = asyncio.create_task(office.binder.bind(REF, "n1"))
    await office.server.asked.wait()
    office.world.add(pod("a", 2, node="n1", chips=[0, 1]))
    office.world.cluster.pod_deleted(pod("a", 2, node="n1", chips=[0, 1]))
    office.server.gate.set()
    await binding
    assert len(office.world.ledger) == 0


async def test_without_a_uid_nothing_is_bound() -> None:
    office = Desk(pod("a", 2))
    with pytest.raises(Refusal) as refused:
        await office.binder.bind(PodRef("default", "a", ""), "n1")
    assert refused.value.reason == "InvalidRequest"
    assert office.server.bindings == []


async def test_a_finished_pod_is_not_bound() -> None:
    office = Desk(pod("a", 2, phase="Failed"))
    with pytest.raises(Refusal) as refused:
        await office.binder.bind(REF, "n1")
    assert refused.value.reason == "PodFinished"


async def test_what_was_bound_but_never_seen_is_looked_after() -> None:
    office = Desk(pod("a", 1), pod("b", 1))
    await office.binder.bind(REF, "n1")
    await office.binder.bind(PodRef("default", "b", "uid-b"), "n1")
    del office.server.pods["a"]
    await office.binder.verify()
    assert office.stage() is Stage.ASSUMED
    office.world.now_s += 31
    await office.binder.verify()
    assert office.stage() is None
    assert office.stage("uid-b") is Stage.ASSUMED


async def test_chips_can_be_kept_for_a_caller_that_binds_by_itself() -> None:
    office = Desk(pod("a", 2))
    kept = office.binder.reserve(pod("a", 2), None)
    assert kept == office.binder.reserve(pod("a", 2), None)
    assert office.stage() is Stage.RESERVED
    assert office.server.bindings == []
    later = await office.binder.bind(REF, kept.node)
    assert later.grant.chips == kept.grant.chips


async def test_chips_confirmed_for_a_pod_that_is_never_bound_are_given_back_in_the_end() -> None:
    office = Desk(pod("a", 2))
    office.binder.reserve(pod("a", 2), None)
    office.binder.confirm("uid-a", "n1")
    for _ in range(int(30 + DOUBT_S)):
        assert office.stage() is not None
        await office.binder.verify()
        office.world.now_s += 1
    await office.binder.verify()
    assert office.stage() is None
    assert office.server.reads == 2


GANG = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}


def gang() -> tuple[Pod, Pod]:
    return pod("a", 8, annotations=GANG), pod("b", 8, annotations=GANG)


async def test_a_pod_of_a_gang_is_bound_to_its_planned_node_and_its_peers_keep_theirs() -> None:
    office = Desk(*gang())
    bound = await office.binder.bind(REF, "n2")
    assert bound.node == "n2"
    assert office.stage("uid-b") is Stage.PLANNED
    assert (await office.binder.bind(PodRef("default", "b", "uid-b"), "n1")).node == "n1"
    assert [each[DISTRIBUTED] for each in office.server.bindings] == ["true", "true"]


@pytest.mark.parametrize("error", [Throttled("later", status=429), ApiError("no", status=403)])
async def test_a_gang_keeps_its_places_when_a_binding_is_refused(error: AscendError) -> None:
    office = Desk(*gang())
    office.server.before.append(error)
    with pytest.raises(AscendError):
        await office.binder.bind(REF, "n1")
    assert office.stage() is Stage.PLANNED
    assert (await office.binder.bind(REF, "n1")).node == "n1"


async def test_the_seat_of_a_pod_that_turns_out_to_be_gone_waits_for_its_successor() -> None:
    office = Desk(*gang())
    del office.server.pods["a"]
    office.server.before.append(Unreachable("lost"))
    with pytest.raises(NotFound):
        await office.binder.bind(REF, "n1")
    assert office.stage() is None
    assert office.world.ledger.count(Stage.PLANNED) == 2


async def test_no_peer_is_given_the_seat_whose_chips_a_caller_was_told() -> None:
    a, b = gang()
    office = Desk(a, b)
    told = office.binder.reserve(a, None)
    with pytest.raises(Refusal, match="NotEnoughChips"):
        office.binder.reserve(b, [told.node])
    assert office.binder.reserve(b, None).node != told.node
    assert office.binder.reserve(a, None) == told


async def test_what_a_caller_was_told_outlives_a_plan_that_is_given_up() -> None:
    a, b = gang()
    office = Desk(a, b)
    told = office.binder.reserve(b, ["n2"])
    office.world.add(node("n1", cordoned=True))
    with pytest.raises(Refusal, match="NotEnoughChips"):
        office.binder.reserve(a, None)
    assert office.binder.reserve(b, None) == told
    office.world.now_s += 119
    told = office.binder.reserve(b, None)
    office.world.now_s += 2
    office.world.ledger.expire()
    with pytest.raises(Refusal):
        office.binder.reserve(pod("other", 8), None)
    office.world.now_s += 120
    assert office.binder.reserve(pod("other", 8), None).node == told.node


async def test_a_pod_sits_down_again_when_its_caller_has_not_bound_it_in_time_or_gives_up() -> None:
    a, b = gang()
    office = Desk(a, b)
    told = office.binder.reserve(a, None)
    office.world.now_s += 20
    assert office.binder.reserve(a, None) == told
    office.world.now_s += 20
    assert office.world.ledger.expire() == []
    assert office.stage() is Stage.RESERVED
    office.world.now_s += 10
    assert office.world.ledger.expire() == []
    assert office.stage() is Stage.PLANNED
    assert office.binder.reserve(a, None) == told
    assert office.world.engine.release(a.uid)
    assert office.stage() is Stage.PLANNED
    assert office.binder.reserve(b, [told.node]).node == told.node


async def test_a_seat_that_has_gone_bad_while_its_pod_was_being_bound_gives_the_plan_up() -> None:
    a, b = gang()
    office = Desk(a, b)
    held = office.world.engine.place(a)
    office.world.ledger.advance(a.uid, Stage.BINDING)
    office.world.add(node(held.node, cordoned=True))
    assert office.world.engine.filter(pod("other", 8)).fitting == []
    office.world.ledger.withdraw(a.uid)
    assert office.world.engine.filter(pod("other", 8)).fitting == [{"n1": "n2", "n2": "n1"}[held.node]]
