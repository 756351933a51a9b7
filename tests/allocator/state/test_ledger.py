"""The ledger: no chip is reserved twice, none is lost, and unused chips are released."""

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from allocator.rules.vacancy import Vacancy
from allocator.state.ledger import Ledger
from allocator.state.reservation import Seat, Stage
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.takes import Take
from ascend.turn import at_once
from tests.allocator.builders import World, node, pod, report
from tests.allocator.expiry import expire

NODES = ("n1", "n2")
TTL_S = 30.0


def test_a_reservation_expires_unless_it_is_renewed() -> None:
    world = World(ttl_s=TTL_S)
    world.add(node("n1"))
    world.engine.place(pod("a"))
    world.engine.place(pod("b"))
    world.now_s += 20
    world.engine.place(pod("a"))
    world.now_s += 15
    assert [each.pod for each in expire(world.ledger)] == ["default/b"]
    assert world.ledger.get("uid-a") is not None
    world.now_s += 15
    assert [each.pod for each in expire(world.ledger)] == ["default/a"]
    assert world.ledger.expired_total == 2


def test_subscribers_are_notified_of_changed_nodes_and_pods() -> None:
    ledger = Ledger(ttl_s=TTL_S, monotonic=lambda: 0.0)
    calls: list[tuple[str, set[str]]] = []
    ledger.subscribe(lambda node, uids: calls.append((node, set(uids))))

    def notified() -> list[tuple[str, set[str]]]:
        """The nodes and pods of the calls since the last time."""
        found, calls[:] = sorted(calls), []
        return found

    ledger.reserve(uid="a", pod="d/a", node="n1", take=Take.whole((0,)))
    assert notified() == [("n1", {"a"})]
    ledger.reserve_plan(
        "plan", [Seat("a", "d/a", "n2", Take.whole((0,))), Seat("b", "d/b", "n3", Take.whole((1,)))], ttl_s=TTL_S
    )
    assert notified() == [("n1", {"a"}), ("n2", {"a"}), ("n3", {"b"})]
    ledger.swap("a", "b")
    assert notified() == [("n2", {"a", "b"}), ("n3", {"a", "b"})]
    ledger.hand("a", "c", "d/c")
    assert notified() == [("n3", {"a", "c"})]
    ledger.release("c")
    assert notified() == [("n3", {"c"})]
    ledger.drop_plan("plan")
    assert notified() == [("n2", {"b"})]


def test_a_reservation_with_a_binding_never_expires() -> None:
    world = World(ttl_s=TTL_S)
    world.add(node("n1"))
    for name, stage in (("a", Stage.BINDING), ("b", Stage.ASSUMED)):
        world.engine.place(pod(name))
        world.ledger.advance(f"uid-{name}", stage)
    world.now_s += 1000
    assert expire(world.ledger) == []
    assert (world.ledger.count(Stage.BINDING), world.ledger.count(Stage.ASSUMED)) == (1, 1)


def test_a_pod_seen_bound_or_ended_ends_its_reservation() -> None:
    world = World()
    world.add(node("n1"))
    for number, stage in enumerate(Stage):
        for end in ("bound", "failed", "deleted"):
            name = f"{end}-{number}"
            world.engine.place(pod(name))
            world.ledger.advance(f"uid-{name}", stage)
            world.add(pod(name))
            assert world.ledger.get(f"uid-{name}") is not None
            if end == "bound":
                world.add(pod(name, node="n1", chips=[0]))
            elif end == "failed":
                world.add(pod(name, phase="Failed"))
            else:
                world.cluster.pod_deleted(pod(name))
            assert world.ledger.get(f"uid-{name}") is None
            world.cluster.pod_deleted(pod(name))


def test_advancing_an_ended_reservation_does_nothing() -> None:
    world = World()
    assert world.ledger.advance("uid-a", Stage.ASSUMED) is None
    assert len(world.ledger) == 0


class Reservations(RuleBasedStateMachine):
    """Pods are created, placed, bound, seen, finished and deleted in any order, while time passes and chips fail."""

    waiting = Bundle("waiting")
    reserved = Bundle("reserved")
    posted = Bundle("posted")
    bound = Bundle("bound")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ttl_s=TTL_S)
        self.world.add(*(node(name) for name in NODES))
        self.unhealthy: dict[str, frozenset[int]] = dict.fromkeys(NODES, frozenset())
        self.names = iter(range(10_000))

    @rule(target=waiting, count=st.sampled_from([1, 2, 4, 8]))
    def a_pod_is_created(self, count: int) -> Pod:
        new = pod(f"p{next(self.names)}", count)
        self.world.add(new)
        return new

    @rule(target=reserved, each=waiting, candidates=st.sampled_from([None, ["n1"], ["n2"], ["n2", "n1"]]))
    def a_pod_is_placed(self, each: Pod, candidates: list[str] | None) -> Pod:
        before = self.world.ledger.get(each.uid)
        try:
            made = self.world.engine.place(each, candidates)
        except Refusal:
            held = self.world.ledger.get(each.uid)
            assert held is None or held.stage is not Stage.RESERVED
        else:
            assert candidates is None or made.node in candidates
            assert self.world.ledger.get(each.uid) == made
            if before is not None and before.stage is not Stage.RESERVED:
                assert made == before
        return each

    @rule(each=waiting)
    def a_reservation_is_released(self, each: Pod) -> None:
        self.world.engine.release(each.uid)

    @rule(target=posted, each=consumes(reserved))
    def a_binding_is_posted(self, each: Pod) -> object:
        done = self.world.ledger.advance(each.uid, Stage.ASSUMED)
        return multiple() if done is None else each

    @rule(target=bound, each=consumes(posted))
    def a_pod_is_seen_bound(self, each: Pod) -> object:
        held = self.world.ledger.get(each.uid)
        if held is None:
            return multiple()
        seen = pod(
            each.name, int(each.spec.containers[0].chips), node=held.node, chips=held.take.chips, phase="Running"
        )
        self.world.add(seen)
        return seen

    @rule(each=consumes(bound), how=st.sampled_from(["Failed", "Succeeded", "deleted"]))
    def a_pod_ends(self, each: Pod, how: str) -> None:
        if how != "deleted":
            self.world.add(pod(each.name, each.spec.containers[0].chips, node=each.spec.node_name, phase=how))
        self.world.cluster.pod_deleted(each)

    @rule(each=consumes(waiting))
    def a_waiting_pod_is_deleted(self, each: Pod) -> None:
        seen = self.world.cluster.pods.get(each.uid, each)
        self.world.cluster.pod_deleted(seen)

    @rule(name=st.sampled_from(NODES), unhealthy=st.frozensets(st.integers(0, 7), max_size=2))
    def chips_fail_or_recover(self, name: str, unhealthy: frozenset[int]) -> None:
        self.unhealthy[name] = unhealthy
        self.world.add(report(name, unhealthy=unhealthy))

    @rule(seconds=st.sampled_from([1, 20, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.now_s += seconds
        expire(self.world.ledger)

    @invariant()
    def no_chip_is_allocated_twice_or_lost(self) -> None:
        for name in NODES:
            held = [holding.chips for holding in self.world.cluster.nodes[name].holdings.values()]
            held += [take.chip_set for take in self.world.ledger.on(name).values()]
            taken = 0
            for chips in held:
                assert not taken & chips
                taken |= chips
            offer = self.world.cluster.nodes[name].offer
            assert isinstance(offer, Vacancy)
            assert offer.free == 0xFF & ~taken & ~chip_set(self.unhealthy[name])
            assert offer.room == 8 - taken.bit_count()

    @invariant()
    def every_pod_has_chips_on_one_node_only(self) -> None:
        uids = [uid for name in NODES for uid in self.world.ledger.on(name)]
        assert sorted(uids) == sorted(each.uid for each in self.world.ledger)
        now_s = self.world.now_s
        assert all(each.since_s + TTL_S > now_s for each in self.world.ledger if each.stage is Stage.RESERVED)


TestReservations = Reservations.TestCase


def test_a_plan_is_deserted_while_all_its_seats_await_successors() -> None:
    ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
    ledger.reserve_plan(
        "plan", [Seat(uid, uid, "n1", Take.whole((chip,))) for chip, uid in enumerate("abc")], ttl_s=120.0
    )
    assert not ledger.plans["plan"].is_deserted
    ledger.advance("a", Stage.BINDING)
    ledger.vacate("b")
    assert not ledger.plans["plan"].is_deserted
    ledger.vacate("c")
    assert ledger.plans["plan"].is_deserted
    ledger.withdraw("a")
    assert not ledger.plans["plan"].is_deserted
    ledger.swap("a", "plan#1")
    ledger.vacate("a")
    assert ledger.plans["plan"].is_deserted
    ledger.hand("plan#1", "d", "d")
    assert not ledger.plans["plan"].is_deserted
    ledger.release("d")
    assert ledger.plans["plan"].is_deserted
    ledger.drop_plan("plan")
    assert "plan" not in ledger.plans
    assert len(ledger) == 0


def test_a_plan_that_is_made_again_has_one_deadline() -> None:
    now_s = 0.0
    ledger = Ledger(ttl_s=30.0, monotonic=lambda: now_s)
    for _ in range(1000):
        ledger.drop_plan("plan")
        ledger.reserve_plan("plan", [Seat("a", "a", "n1", Take.whole((0,)))], ttl_s=10.0)
        now_s += 1.0
        assert not expire(ledger)
    assert len(ledger.plans._queue) < 20
    now_s += 10.0
    assert [each.uid for each in expire(ledger)] == ["a"]


def _with_large_plan() -> tuple[World, list[str]]:
    """A plan of 300 seats that has expired, and their uids."""
    world = World(ttl_s=TTL_S)
    seats = [Seat(f"uid-{number}", f"d/{number}", f"n{number}", Take.whole(range(8))) for number in range(300)]
    world.add(*(node(seat.node) for seat in seats))
    world.ledger.reserve_plan("plan", seats, ttl_s=120.0)
    world.now_s += 121
    return world, sorted(seat.uid for seat in seats)


def _free(world: World) -> int:
    offers = [record.offer for record in world.cluster.nodes.values()]
    return sum(offer.free.bit_count() for offer in offers if isinstance(offer, Vacancy))


def test_a_large_plan_that_has_expired_is_released_in_pieces_that_count_as_they_are() -> None:
    world, uids = _with_large_plan()
    dropping, pieces = world.ledger.expire_plans(), list[int]()
    while world.ledger:
        before = len(world.ledger)
        next(dropping, None)
        pieces.append(before - len(world.ledger))
        left = len(world.ledger)
        assert [seat.uid for seat in world.ledger.seats("plan")] == uids[300 - left :]
        assert world.ledger.plans.of("plan").unused == left
        assert _free(world) == 8 * (300 - left)
    assert max(pieces) <= 64
    assert "plan" not in world.ledger.plans
    assert world.ledger.expired_total == 300


def test_a_plan_whose_release_is_cancelled_is_released_later() -> None:
    world, _ = _with_large_plan()
    cancelled = world.ledger.expire_plans()
    next(cancelled)
    cancelled.close()
    assert world.ledger
    expire(world.ledger)
    assert not world.ledger
    assert "plan" not in world.ledger.plans


def test_a_plan_that_is_used_while_it_is_released_lives_on() -> None:
    world, uids = _with_large_plan()
    dropping = world.ledger.expire_plans()
    next(dropping)
    world.engine.place(pod("another", 1))  # a decision releases no more of it
    left = [seat.uid for seat in world.ledger.seats("plan")]
    assert left == uids[64:]
    world.ledger.advance(left[0], Stage.HELD)
    assert [seat.uid for seat in at_once(dropping)] == uids[:64]
    assert [seat.uid for seat in world.ledger.seats("plan")] == left[1:]
    world.now_s += 119
    assert not at_once(world.ledger.expire_plans())
    world.now_s += 2
    assert [seat.uid for seat in at_once(world.ledger.expire_plans())] == [*left[1:], left[0]]
    assert "plan" not in world.ledger.plans
