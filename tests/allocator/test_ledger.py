"""The ledger: no chip is kept twice, none is lost, and what nobody uses comes back."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from allocator.rules.vacancy import Vacancy
from allocator.state.ledger import Ledger
from allocator.state.reservation import Seat, Stage
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod, report

NODES = ("n1", "n2")
TTL_S = 30.0


def test_a_tentative_reservation_expires_unless_it_is_renewed() -> None:
    world = World(ttl_s=TTL_S)
    world.add(node("n1"))
    world.engine.place(pod("a"))
    world.engine.place(pod("b"))
    world.now_s += 20
    world.engine.place(pod("a"))
    world.now_s += 15
    assert [each.pod for each in world.ledger.expire()] == ["default/b"]
    assert world.ledger.get("uid-a") is not None
    world.now_s += 15
    assert [each.pod for each in world.ledger.expire()] == ["default/a"]
    assert world.ledger.expired_total == 2


def test_every_change_tells_of_the_nodes_and_pods_whose_chips_are_others_now() -> None:
    ledger = Ledger(ttl_s=TTL_S, monotonic=lambda: 0.0)
    told: list[tuple[str, set[str]]] = []
    ledger.subscribe(lambda node, uids: told.append((node, set(uids))))

    def news() -> list[tuple[str, set[str]]]:
        heard, told[:] = sorted(told), []
        return heard

    ledger.reserve(uid="a", pod="d/a", node="n1", chips=(0,))
    assert news() == [("n1", {"a"})]
    ledger.reserve_plan("plan", [Seat("a", "d/a", "n2", (0,)), Seat("b", "d/b", "n3", (1,))], ttl_s=TTL_S)
    assert news() == [("n1", {"a"}), ("n2", {"a"}), ("n3", {"b"})]
    ledger.swap("a", "b")
    assert news() == [("n2", {"a", "b"}), ("n3", {"a", "b"})]
    ledger.hand("a", "c", "d/c")
    assert news() == [("n3", {"a", "c"})]
    ledger.release("c")
    assert news() == [("n3", {"c"})]
    ledger.drop_plan("plan")
    assert news() == [("n2", {"b"})]


def test_one_that_is_being_bound_or_is_bound_never_expires() -> None:
    world = World(ttl_s=TTL_S)
    world.add(node("n1"))
    for name, stage in (("a", Stage.BINDING), ("b", Stage.ASSUMED)):
        world.engine.place(pod(name))
        world.ledger.advance(f"uid-{name}", stage)
    world.now_s += 1000
    assert world.ledger.expire() == []
    assert (world.ledger.count(Stage.BINDING), world.ledger.count(Stage.ASSUMED)) == (1, 1)


def test_the_watch_ends_a_reservation_whatever_its_stage() -> None:
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


def test_advancing_what_the_watch_has_ended_does_nothing() -> None:
    world = World()
    assert world.ledger.advance("uid-a", Stage.ASSUMED) is None
    assert len(world.ledger) == 0


class Reservations(RuleBasedStateMachine):
    """Pods come, are placed, bound, shown, finished and deleted in any order, while time passes and chips fail."""

    waiting = Bundle("waiting")
    reserved = Bundle("reserved")
    posted = Bundle("posted")
    bound = Bundle("bound")

    def __init__(self) -> None:
        super().__init__()
        self.world = World(ttl_s=TTL_S)
        self.world.add(*(node(name) for name in NODES))
        self.sick: dict[str, frozenset[int]] = dict.fromkeys(NODES, frozenset())
        self.names = iter(range(10_000))

    @rule(target=waiting, count=st.sampled_from([1, 2, 4, 8]))
    def appears(self, count: int) -> Pod:
        new = pod(f"p{next(self.names)}", count)
        self.world.add(new)
        return new

    @rule(target=reserved, it=waiting, candidates=st.sampled_from([None, ["n1"], ["n2"], ["n2", "n1"]]))
    def is_placed(self, it: Pod, candidates: list[str] | None) -> Pod:
        before = self.world.ledger.get(it.uid)
        try:
            made = self.world.engine.place(it, candidates)
        except Refusal:
            held = self.world.ledger.get(it.uid)
            assert held is None or held.stage is not Stage.RESERVED
        else:
            assert candidates is None or made.node in candidates
            assert self.world.ledger.get(it.uid) == made
            if before is not None and before.stage is not Stage.RESERVED:
                assert made == before
        return it

    @rule(it=waiting)
    def is_given_up(self, it: Pod) -> None:
        self.world.engine.release(it.uid)

    @rule(target=posted, it=consumes(reserved))
    def is_posted(self, it: Pod) -> object:
        done = self.world.ledger.advance(it.uid, Stage.ASSUMED)
        return multiple() if done is None else it

    @rule(target=bound, it=consumes(posted))
    def is_seen_bound(self, it: Pod) -> object:
        held = self.world.ledger.get(it.uid)
        if held is None:
            return multiple()
        seen = pod(it.name, int(it.spec.containers[0].chips), node=held.node, chips=held.chips, phase="Running")
        self.world.add(seen)
        return seen

    @rule(it=consumes(bound), how=st.sampled_from(["Failed", "Succeeded", "deleted"]))
    def ends(self, it: Pod, how: str) -> None:
        if how != "deleted":
            self.world.add(pod(it.name, it.spec.containers[0].chips, node=it.spec.node_name, phase=how))
        self.world.cluster.pod_deleted(it)

    @rule(it=consumes(waiting))
    def is_deleted_while_waiting(self, it: Pod) -> None:
        seen = self.world.cluster.pods.get(it.uid, it)
        self.world.cluster.pod_deleted(seen)

    @rule(name=st.sampled_from(NODES), sick=st.frozensets(st.integers(0, 7), max_size=2))
    def chips_fail_or_recover(self, name: str, sick: frozenset[int]) -> None:
        self.sick[name] = sick
        self.world.add(report(name, unhealthy=sick))

    @rule(seconds=st.sampled_from([1, 20, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.now_s += seconds
        self.world.ledger.expire()

    @invariant()
    def no_chip_twice_and_none_lost(self) -> None:
        for name in NODES:
            takers = [holding.chips for holding in self.world.cluster.nodes[name].holdings.values()]
            takers += self.world.ledger.on(name).values()
            taken = 0
            for chips in takers:
                assert not taken & chips
                taken |= chips
            offer = self.world.cluster.nodes[name].offer
            assert isinstance(offer, Vacancy)
            assert offer.free == 0xFF & ~taken & ~chip_set(self.sick[name])
            assert offer.room == 8 - taken.bit_count()

    @invariant()
    def every_pod_keeps_chips_on_one_node_only(self) -> None:
        uids = [uid for name in NODES for uid in self.world.ledger.on(name)]
        assert sorted(uids) == sorted(each.uid for each in self.world.ledger)
        now_s = self.world.now_s
        assert all(each.since_s + TTL_S > now_s for each in self.world.ledger if each.stage is Stage.RESERVED)


TestReservations = Reservations.TestCase
TestReservations.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_a_plan_is_deserted_while_every_seat_left_of_it_waits_for_a_successor() -> None:
    ledger = Ledger(ttl_s=30.0, monotonic=lambda: 0.0)
    ledger.reserve_plan("plan", [Seat(uid, uid, "n1", (chip,)) for chip, uid in enumerate("abc")], ttl_s=120.0)
    assert not ledger.is_deserted("plan")
    ledger.advance("a", Stage.BINDING)
    ledger.vacate("b")
    assert not ledger.is_deserted("plan")
    ledger.vacate("c")
    assert ledger.is_deserted("plan")
    ledger.withdraw("a")
    assert not ledger.is_deserted("plan")
    ledger.swap("a", "plan#1")
    ledger.vacate("a")
    assert ledger.is_deserted("plan")
    ledger.hand("plan#1", "d", "d")
    assert not ledger.is_deserted("plan")
    ledger.release("d")
    assert ledger.is_deserted("plan")
    ledger.drop_plan("plan")
    assert not ledger.is_deserted("plan")
    assert len(ledger) == 0


def test_a_plan_that_is_given_up_and_made_again_for_ever_is_waited_for_once() -> None:
    now_s = 0.0
    ledger = Ledger(ttl_s=30.0, monotonic=lambda: now_s)
    for _ in range(1000):
        ledger.drop_plan("plan")
        ledger.reserve_plan("plan", [Seat("a", "a", "n1", (0,))], ttl_s=10.0)
        now_s += 1.0
        assert not ledger.expire()
    assert len(ledger._plans._queue) < 20
    now_s += 10.0
    assert [each.uid for each in ledger.expire()] == ["a"]
