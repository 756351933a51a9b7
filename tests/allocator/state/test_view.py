"""A view answers as the index of a cluster would in which what does not count had never been there."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.state.index import NodeIndex
from allocator.state.location import Level, Location
from allocator.state.promises import Promise
from allocator.state.ranking import Bucket
from allocator.state.view import Without
from ascend.chips import chip_ids
from ascend.errors import Refusal
from ascend.takes import Take
from ascend.turn import at_once
from tests.allocator.builders import World, node, report

NODES = ("n0", "n1", "n2", "n3")
PODS = ("a", "b", "c")
OWNERS = ("a", "d", "job x", "job y")
REQUESTS = [*map(ChipRequest, (1, 2, 4, 8)), ChipRequest(2, distributed=True, needs_network=True)]
chips = st.integers(1, 255)
reservations = st.dictionaries(st.sampled_from(PODS), st.tuples(st.sampled_from(NODES), chips))
kept = st.dictionaries(st.sampled_from(NODES), chips, min_size=1)
promises = st.dictionaries(st.sampled_from(OWNERS), st.tuples(st.integers(0, 3), kept))
withouts = st.builds(
    Without,
    st.frozensets(st.sampled_from([*PODS, "unknown"])),
    st.frozensets(st.sampled_from([*OWNERS, "unknown"])),
    st.one_of(st.just(-1), st.integers(0, 4)),
)
candidates = st.one_of(st.none(), st.lists(st.sampled_from(NODES), unique=True))
Reserved = dict[str, tuple[str, int]]
Promised = dict[str, tuple[int, dict[str, int]]]


def world_of(unhealthy: int, reserved: Reserved, promised: Promised) -> World:
    """Three nodes that can be used, one of them with unhealthy chips, and one that is cordoned."""
    world = World()
    for number, name in enumerate(NODES):
        bad = chip_ids(unhealthy) if name == "n1" else ()
        world.add(node(name, cordoned=name == "n3"), report(name, unhealthy=bad))
        world.cluster.index.locate(name, Location(super_pod=number // 2, rack=number % 2))
    update(world, {}, reserved, {}, promised)
    return world


def update(world: World, old: Reserved, reserved: Reserved, before: Promised, promised: Promised) -> None:
    """Let a cluster have other reservations and promises."""
    for uid in old.keys() - reserved.keys():
        world.ledger.release(uid)
    for owner in before.keys() - promised.keys():
        world.ledger.promises.drop(owner)
    for owner, (priority, nodes) in promised.items():
        # One that drains does not end because others take some of its chips.
        world.ledger.promises.keep(Promise(owner, owner, priority, dict(nodes), 1e9, drains=True))
    for uid, (name, taken) in reserved.items():
        world.ledger.reserve(uid=uid, pod=uid, node=name, take=Take.whole(tuple(chip_ids(taken))))


def disjoint(promised: Promised) -> Promised:
    """No two promises name the same chip."""
    found, taken = {}, Counter[str]()
    for owner, (priority, nodes) in promised.items():
        left = {name: free for name, wanted in nodes.items() if (free := wanted & ~taken[name])}
        if left:
            found[owner] = priority, left
            for name, free in left.items():
                taken[name] |= free
    return found


def said(verdict: object) -> object:
    """A verdict, or what a refusal says: no two refusals are equal."""
    return (verdict.reason, verdict.message) if isinstance(verdict, Refusal) else verdict


def shown(index: NodeIndex) -> object:
    """All that an index says of its nodes."""
    places = {
        (level, number): by_vacancy(place.buckets())
        for level in Level
        for number, place in index.topology.places(level).items()
    }
    entries = {
        name: entry.vacancy if isinstance(entry, Bucket) else said(entry) for name, entry in index.entries.items()
    }
    return entries, by_vacancy((bucket, bucket.names) for bucket in index.buckets), places, index.refusals()


def by_vacancy(buckets: Iterable[tuple[Bucket, Iterable[str]]]) -> dict[Vacancy, set[str]]:
    """The nodes of buckets; a view may have two buckets of one vacancy."""
    found: defaultdict[Vacancy, set[str]] = defaultdict(set)
    for bucket, names in buckets:
        found[bucket.vacancy].update(names)
    return found


def answers(index: NodeIndex, request: ChipRequest, names: list[str] | None) -> object:
    """What an index answers about a request."""
    fitting, refused = index.partition(request, names)
    return (
        index.best(request, names),
        {name: said(verdict) for name, verdict in index.verdicts(request, names).items()},
        (fitting, {name: said(refusal) for name, refusal in refused.items()}),
        index.reasons(request, names),
        index.reasons_when_full(request, counted := None if names is None else frozenset(names)),
        [index.vacancy_for(request, name) for name in NODES],
        sum(count for _, count in index.buckets_of(counted)),
    )


@given(
    unhealthy=st.integers(0, 255),
    states=st.lists(st.tuples(reservations, promises.map(disjoint)), min_size=1, max_size=2),
    asked=st.lists(st.tuples(withouts, candidates), min_size=1, max_size=2),
)
def test_a_view_is_the_index_of_a_cluster_without_what_does_not_count(
    unhealthy: int, states: list[tuple[Reserved, Promised]], asked: list[tuple[Without, list[str] | None]]
) -> None:
    world = world_of(unhealthy, {}, {})
    old, before = Reserved(), Promised()
    for reserved, promised in states:
        update(world, old, reserved, before, promised)
        old, before = reserved, promised
        cluster = world.cluster
        version, revision, seen = cluster.index.version, cluster.changes.revision, shown(cluster.index)
        for without, names in asked:
            other = world_of(
                unhealthy,
                {uid: taken for uid, taken in reserved.items() if uid not in without.pods},
                {
                    owner: (priority, nodes)
                    for owner, (priority, nodes) in promised.items()
                    if owner not in without.owners and priority >= without.priority
                },
            ).cluster
            view = cluster.view(without)
            for request in REQUESTS:
                assert answers(view, request, names) == answers(other.index, request, names)
            assert shown(view) == shown(other.index)
            assert shown(at_once(view.copy(NODES))) == shown(other.index)
            for name in NODES:
                assert said(cluster.offer_of(cluster.nodes[name], without)) == said(other.nodes[name].offer)
        # The questions have changed nothing.
        assert (cluster.index.version, cluster.changes.revision, shown(cluster.index)) == (version, revision, seen)


def test_a_question_without_reservations_and_promises_is_answered_by_the_index() -> None:
    world = world_of(0, {"a": ("n0", 1)}, {})
    assert world.cluster.view(Without(("b",), ("job x",), 9)) is world.cluster.index
    assert world.cluster.view(Without(("a",))) is not world.cluster.index


def test_a_view_sees_chips_that_change_under_a_reservation() -> None:
    world = world_of(0, {"a": ("n1", 0xFF)}, {})
    assert world.cluster.view(Without(("a",))).best(ChipRequest(8), ["n1"]) is not None
    world.add(report("n1", unhealthy=[3]))
    assert world.cluster.view(Without(("a",))).best(ChipRequest(8), ["n1"]) is None
    refusal = world.cluster.view(Without(("a",))).verdicts(ChipRequest(8), ["n1"])["n1"]
    assert isinstance(refusal, Refusal)
