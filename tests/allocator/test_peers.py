"""On which products a job is, is known without a walk over its pods, and is what such a walk would find."""

from collections.abc import Callable, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.state.reservation import Seat, Stage
from tests.allocator.builders import World, node, pod
from tests.allocator.test_one_product import CARD, GROUP, TYPE, A, B

NAMES = [f"n{number}" for number in range(4)]
UIDS = [f"uid-p{number}" for number in range(5)]
LABELS: list[Mapping[str, str]] = [A, A, B, CARD, {TYPE: "of no use"}]


def walked(world: World, key: object, uid: str) -> frozenset[str] | None:
    """The definition: a look at every pod of the job."""
    cluster, products = world.cluster, set()
    for each in next((job.pods.values() for job in cluster.jobs if job.key == key), ()):
        held = world.ledger.get(each.uid)
        name = each.spec.node_name or (held.node if held is not None else "")
        record = cluster.nodes.get(name)
        if each.uid != uid and each.asks_for_chips and each.is_live and record is not None and record.product:
            products.add(record.product.name)
    return frozenset(products) if cluster.is_mixed and products else None


class History:
    """What may happen to a cluster, each by two numbers."""

    def __init__(self) -> None:
        self.world = World()
        self.events: list[Callable[[int, int], object]] = [
            self.pod_changes,
            self.pod_changes,
            self.pod_goes,
            self.node_changes,
            self.node_goes,
            self.seat,
            self.seat,
            self.planned,
            self.given_back,
            self.moved,
            self.time_passes,
        ]

    def pod_changes(self, which: int, how: int) -> None:
        how, job = divmod(how, 3)
        how, ends = divmod(how, 5)
        how, asks = divmod(how, 4)
        bound = NAMES[how % 4] if how % 2 else ""
        self.world.add(
            pod(
                f"p{which % 5}",
                1 if asks else None,
                node=bound,
                chips=[which % 5] if bound and asks else None,
                phase=["Pending", "Running", "Pending", "Succeeded", "Failed"][ends],
                leaving=ends == 2,
                annotations={GROUP: f"job-{job}"} if job else None,
            )
        )

    def pod_goes(self, which: int, _how: int) -> None:
        seen = self.world.cluster.pods.get(UIDS[which % 5])
        if seen is not None:
            self.world.cluster.pod_deleted(seen)

    def node_changes(self, which: int, how: int) -> None:
        infos = "no JSON" if how % 7 == 0 else None
        self.world.add(node(NAMES[which % 4], labels=LABELS[how % 5], cordoned=how % 3 == 0, infos=infos))

    def node_goes(self, which: int, _how: int) -> None:
        self.world.cluster.node_deleted(node(NAMES[which % 4]))

    def seat(self, which: int, how: int) -> None:
        self.world.ledger.reserve(uid=UIDS[which % 5], pod="p", node=NAMES[how % 4], chips=(which % 5,))

    def planned(self, which: int, how: int) -> None:
        seats = [Seat(UIDS[(which + at) % 5], "p", NAMES[(how + at) % 4], (which % 5,)) for at in range(3)]
        self.world.ledger.reserve_plan(f"plan-{how % 2}", seats, ttl_s=20)

    def given_back(self, which: int, how: int) -> None:
        ledger, uid = self.world.ledger, UIDS[which % 5]
        ways: list[Callable[[], object]] = [
            lambda: ledger.release(uid),
            lambda: ledger.vacate(uid),
            lambda: ledger.withdraw(uid),
            lambda: ledger.drop_plan("plan-0"),
        ]
        ways[how % 4]()

    def moved(self, which: int, how: int) -> None:
        ledger, uids = self.world.ledger, [each.uid for each in self.world.ledger]
        if len(uids) > 1 and how % 3:
            ledger.swap(uids[0], uids[1 + which % (len(uids) - 1)])
        elif uids and (free := next((uid for uid in UIDS if uid not in uids), None)):
            ledger.hand(uids[which % len(uids)], free, "p")
        else:
            ledger.advance(UIDS[which % 5], Stage.BOUND)

    def time_passes(self, which: int, how: int) -> None:
        self.world.now_s += how % 40
        self.world.ledger.expire()
        with self.world.ledger.suspended(UIDS[which % 5]):
            self.is_true()

    def is_true(self) -> None:
        cluster = self.world.cluster
        for job in cluster.jobs:
            for uid in [*UIDS, "uid-of-nobody"]:
                assert cluster.peer_products(job, uid) == walked(self.world, job.key, uid)


numbers = st.integers(0, 10_000)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=40))
def test_what_is_known_of_peers_is_what_a_walk_over_them_would_find(events: list[tuple[int, int, int]]) -> None:
    history = History()
    for number, name in enumerate(NAMES[:3]):
        history.world.add(node(name, labels=LABELS[number + 1]))
    for event, which, how in events:
        history.events[event % len(history.events)](which, how)
        history.is_true()


def test_nothing_is_kept_of_jobs_that_are_over() -> None:
    history = History()
    world, peers = history.world, history.world.cluster._peers
    world.add(node("n0", labels=A), node("n1", labels=B))
    for number in range(3):
        history.planned(0, number)
        world.add(late := pod("p0", 1, annotations={GROUP: "job"}))
        world.add(bound := pod("p1", 1, node="n0", chips=[1], annotations={GROUP: "job"}))
        assert world.cluster.peer_products(world.cluster.jobs.job_of(late), late.uid) == frozenset({"910A"})
        for each in (late, bound):
            world.cluster.pod_deleted(each)
        for held in world.ledger:
            world.ledger.release(held.uid)
    assert not any((peers._places, peers._on, peers._counts))
