"""The first lists change each node several times: what it has left is read once, after all of them."""

from collections.abc import Sequence
from typing import TypeAlias
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.state.offers import assess
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.rules.identity import SERVER_LABEL, SUPER_POD_LABEL
from ascend.turn import at_once
from tests.allocator.builders import World, node, pod, report
from tests.allocator.switches.world import server, table

Change: TypeAlias = tuple[bool, Node | Pod | ConfigMap]

NAMES = ("n1", "n2", "n3")
SUPER_POD = {SUPER_POD_LABEL: "1", SERVER_LABEL: "2"}


def changes() -> st.SearchStrategy[list[Change]]:
    names, chips = st.sampled_from(NAMES), st.sets(st.integers(0, 7), max_size=3)
    return st.lists(
        st.tuples(
            st.integers(0, 3).map(bool),  # most are no deletions
            st.one_of(
                st.builds(
                    lambda name, ready, there: node(name, ready=ready, labels=SUPER_POD if there else {}),
                    *(names, st.booleans(), st.booleans()),
                ),
                st.builds(lambda name, unhealthy: report(name, unhealthy=unhealthy), names, chips),
                st.builds(
                    lambda name, on, held: pod(name, len(held) or 1, node=on, chips=held or None, phase="Running"),
                    *(st.sampled_from(["p", "q", "r"]), names, chips),
                ),
            ),
        ),
        max_size=30,
    )


def show(world: World, changed: Sequence[Change]) -> None:
    cluster = world.cluster
    for is_there, each in changed:
        if is_there:
            world.add(each)
        elif isinstance(each, Node):
            cluster.node_deleted(each)
        elif isinstance(each, Pod):
            cluster.pod_deleted(each)
        else:
            cluster.reports.delete(each)


def state(world: World) -> object:
    cluster, index = world.cluster, world.cluster.index
    located = {name: index.topology.location(name) for name in NAMES}
    offers = {name: str(record.offer) for name, record in cluster.nodes.items()}
    buckets = {bucket.vacancy: bucket.names for bucket in index.buckets}
    return located, offers, buckets, index.refusals(), {name: cluster.nodes[name].product for name in offers}


@given(lists=changes(), watched=changes(), left=st.integers(0, 3))
def test_it_makes_no_difference_when_nodes_are_read(lists: list[Change], watched: list[Change], left: int) -> None:
    at_once_, put_off = World(), World()
    show(at_once_, lists)
    put_off.cluster.begin()
    show(put_off, lists)
    steps = put_off.cluster.settle()
    for _ in zip(range(left), steps, strict=False):
        pass  # some are read before the watches go on
    show(at_once_, watched)
    show(put_off, watched)
    at_once(steps)
    assert state(put_off) == state(at_once_)


def test_each_node_is_read_once() -> None:
    world = World()
    world.cluster.begin()
    with mock.patch("allocator.state.cluster.assess", wraps=assess) as read:
        for name in NAMES:
            world.add(node(name), report(name), pod(f"on-{name}", 2, node=name, chips=[0, 1], phase="Running"))
        at_once(world.cluster.settle())
    assert read.call_count == len(NAMES)
    assert world.vacancy("n2").free == 0xFC


@pytest.mark.parametrize("position", range(4))
def test_the_table_of_switches_may_be_listed_at_any_time(position: int) -> None:
    world, slots = World(), range(3)
    world.cluster.begin()
    steps = world.cluster.settle()
    for number, slot in enumerate(slots):
        if number == position:
            world.cluster.switches.apply(table([0]))
        world.add(server(0, slot))
        if number == 1:
            next(steps)  # one is read already
    if position == len(slots):
        world.cluster.switches.apply(table([0]))
    at_once(steps)
    locations = [world.cluster.index.topology.location(f"t0-{slot}") for slot in slots]
    assert [(each.switch, each.slot) for each in locations] == [(0, slot) for slot in slots]
