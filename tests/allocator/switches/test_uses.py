"""How jobs use the switches, as the next job sees it."""

import pytest
from msgspec.structs import replace

from allocator.state.switches import SwitchUse
from allocator.switches.rooms import Schema, SwitchState, Use
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World
from tests.allocator.switches.world import bind, job, placed, server, switches, table

LARGE = "large-model-schema"


def spanning(version: str) -> tuple[World, list[Pod]]:
    """A large job with two pods below each of two switches, which have two more servers each, and a third switch."""
    world = switches((0, 1), (2, 3), version=version)
    world.add(*(pods := job(4, LARGE, name="first", owner="Job")))
    bound = bind(world, pods)
    world.cluster.switches.apply(table(range(3)))
    world.add(*(server(0, slot) for slot in (2, 3)), *(server(1, slot) for slot in (0, 1)))
    world.add(*(server(2, slot) for slot in (0, 1)))
    return world, bound


def successor(gone: Pod, rank: int) -> Pod:
    (made,) = job(4, LARGE, name="first", owner="Job", ranks=[rank])
    return replace(made, metadata=replace(made.metadata, name=f"new-{gone.name}", uid=f"uid-new-{gone.name}"))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("replaced", [[2], [2, 3], [1, 2, 3]])
def test_the_switches_of_a_job_are_kept_while_its_pods_are_replaced(version: str, replaced: list[int]) -> None:
    world, bound = spanning(version)
    before = world.cluster.switches.uses()
    world.add(*(second := job(6, LARGE, name="second")))
    for rank in replaced:
        world.cluster.pod_deleted(bound[rank])
    assert world.cluster.switches.uses() == before
    assert world.refusal(second[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.add(*(again := [successor(bound[rank], rank) for rank in replaced]))
    assert placed(world, again) == [bound[rank].spec.node_name for rank in replaced]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_of_a_job_whose_pods_are_all_there_no_former_server_counts(version: str) -> None:
    world, bound = spanning(version)
    for rank in (2, 3):
        world.cluster.pod_deleted(bound[rank])
    for slot in range(4):
        world.fill(f"t1-{slot}")
    assert 1 in world.cluster.switches.uses()
    world.add(*(again := [successor(bound[rank], rank) for rank in (2, 3)]))
    assert placed(world, again) == ["t0-2", "t0-3"]
    assert 1 not in world.cluster.switches.uses()


def test_pods_that_have_succeeded_are_not_waited_for() -> None:
    world, bound = spanning("1.0")
    for each in bound[2:]:
        world.add(replace(each, status=replace(each.status, phase="Succeeded")))
    assert world.cluster.switches.uses() == {}


def test_a_job_that_is_made_by_another_object_does_not_count_with_the_servers_of_the_former() -> None:
    world, bound = spanning("1.0")
    for each in bound:
        world.cluster.pod_deleted(each)
    other = [replace(owned, uid="other") for owned in bound[0].metadata.owner_references]
    (made,) = job(4, LARGE, name="first", ranks=[0])
    made = replace(made, metadata=replace(made.metadata, owner_references=tuple(other)))
    world.add(replace(made, spec=replace(made.spec, node_name="t0-0")))
    assert world.cluster.switches.uses() == {}


def test_a_switch_that_two_jobs_have_for_themselves_is_shared_and_unhealthy() -> None:
    use = SwitchUse()
    use.add(SwitchState(Use.EXCLUSIVE), Schema.LARGE)
    assert use.state == SwitchState(Use.EXCLUSIVE)
    use.add(SwitchState(), Schema.NORMAL)
    assert use.state == SwitchState(Use.EXCLUSIVE)
    use.add(SwitchState(Use.EXCLUSIVE), Schema.NORMAL)
    assert use.state == SwitchState(Use.SHARED, is_healthy=False)


def test_a_node_that_comes_back_counts_again() -> None:
    world = switches(range(4), range(4), (0,), version="2.0")
    world.add(*(pods := job(9, LARGE)))
    bound = bind(world, pods)
    before = world.cluster.switches.uses()
    assert set(before) == {0, 1, 2}
    world.cluster.node_deleted(server(2, 0))
    world.add(bound[0])
    assert set(world.cluster.switches.uses()) == {0, 1}
    world.add(server(2, 0))
    assert world.cluster.switches.uses() == before


def test_a_node_whose_address_comes_later_counts() -> None:
    world = switches(range(4), (0,))
    world.add(*(pods := job(5)))
    before = bind(world, pods)
    made = server(1, 0)
    world.add(replace(made, status=replace(made.status, addresses=())))
    assert not world.cluster.switches.uses()
    world.add(made)
    assert set(world.cluster.switches.uses()) == {0, 1}
    assert world.cluster.switches.states_of(world.cluster.jobs.job_of(before[0])).keys() == {0, 1}


@pytest.mark.parametrize(("pods", "is_healthy"), [(5, True), (9, False)])
def test_a_job_that_version_1_has_placed_shares_its_switches_with_version_2(pods: int, *, is_healthy: bool) -> None:
    before = switches(range(4), range(4), range(4), version="1.0")
    before.add(*(first := job(pods, LARGE, name="first")))
    bound = bind(before, first)
    after = switches(range(4), range(4), range(4), version="2.0")
    after.add(*bound)
    states = [use.state for use in after.cluster.switches.uses().values()]
    assert states == [SwitchState(Use.SHARED, is_healthy)] * (2 if is_healthy else 3)
    after.add(*(second := job(7, LARGE, name="second")))
    if is_healthy:
        again = bind(after, second)
        assert {each.metadata.annotations["isSharedTor"] for each in again[4:]} == {"1"}
    else:
        assert after.refusal(second[0]).reason is Reason.GANG_DOES_NOT_FIT


def test_a_job_without_the_label_leaves_its_switches_free_in_version_2() -> None:
    world = switches(range(4), range(4), version="2.0")
    world.add(*(pods := job(5, None)))
    placed(world, pods)
    assert [use.state for use in world.cluster.switches.uses().values()] == [SwitchState()] * 2


def test_what_is_written_counts_before_what_is_assumed() -> None:
    before = switches(range(4), range(4), version="1.0")
    before.add(*(pods := job(5, LARGE)))
    bound = bind(before, pods)
    annotations = bound[0].metadata.annotations | {"isSharedTor": "2", "isHealthy": "0"}
    bound[0] = replace(bound[0], metadata=replace(bound[0].metadata, annotations=annotations))
    after = switches(range(4), range(4), version="2.0")
    after.add(*bound)
    assert {switch: use.state.use for switch, use in after.cluster.switches.uses().items()} == {
        0: Use.EXCLUSIVE,
        1: Use.SHARED,
    }


@pytest.mark.parametrize("was_refused", [False, True], ids=["asked once", "refused before"])
def test_a_refusal_counts_no_longer_once_other_jobs_use_the_switches_in_another_way(*, was_refused: bool) -> None:
    world, bound = spanning("1.0")
    for each in bound[2:]:
        world.cluster.pod_deleted(each)
    world.add(*(again := [successor(each, rank) for rank, each in enumerate(bound[2:], start=2)]))
    world.add(*(second := job(6, LARGE, name="second")))
    if was_refused:
        assert world.refusal(second[0]).reason is Reason.GANG_DOES_NOT_FIT
    for each in (*bound[:2], *again):  # it may run with fewer pods now, so nobody waits for their servers
        annotations = each.metadata.annotations | {MIN_AVAILABLE: "2"}
        world.add(replace(each, metadata=replace(each.metadata, annotations=annotations)))
    assert world.cluster.switches.uses() == {}
    assert len(placed(world, second)) == 6


def test_what_is_written_does_not_count_in_version_1() -> None:
    before = switches((0, 1, 2, 3), (0,), version="2.0")
    before.add(*(pods := job(5, LARGE)))
    bound = bind(before, pods)
    after = switches((0, 1, 2, 3), (0,), version="1.0")
    after.add(*bound)
    assert sorted(after.cluster.switches.uses()) == [0, 1]
    for each in bound[:4]:
        after.add(replace(each, status=replace(each.status, phase="Succeeded")))
    assert after.cluster.switches.uses() == {}


@pytest.mark.parametrize(
    ("case", "slots", "spans"), [("tor-across-1", ((0, 1), (2, 3)), True), ("tor-across-5", ((0, 1, 2, 3), ()), False)]
)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_job_spans_switches_as_the_reference_says(
    version: str, case: str, slots: tuple[tuple[int, ...], ...], *, spans: bool
) -> None:
    world = switches(*slots, version=version)
    pods = job(4, LARGE)
    world.add(*pods)
    bind(world, pods)
    used = world.cluster.switches.uses()
    assert {switch for switch, use in used.items() if use.spanning} == ({0, 1} if spans else set()), case


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_pod_that_is_placed_on_another_node_counts_there(version: str) -> None:
    world = switches((0, 1), (0, 1), version=version)
    pods = job(2, None, name="plain")
    world.add(*pods)
    resolved = world.engine.resolve(pods[0])
    gang = resolved.gang
    assert gang is not None
    for each, name in zip(pods, ("t0-0", "t0-1"), strict=True):
        world.engine.gangs.place_on(each, resolved.chips, gang, name)
    assert not world.cluster.switches.spanning()
    world.engine.gangs.place_on(pods[1], resolved.chips, gang, "t1-0")
    (found,) = world.cluster.switches.spanning().values()
    assert set(found.states) == {0, 1}


def forged(world: World, label: str | None) -> None:
    """Two gangs of two pods with one chip each, on two servers of each of two switches, whose authors close these."""
    for number in range(2):
        pods = [
            replace(
                each,
                metadata=replace(
                    each.metadata, annotations=each.metadata.annotations | {"isSharedTor": "2", "isHealthy": "0"}
                ),
            )
            for each in job(2, label, name=f"forged-{number}", chips=1)
        ]
        world.add(*pods)
        bind(world, pods)


@pytest.mark.parametrize("label", [None, LARGE, "normal-schema"])
def test_what_a_pods_author_writes_closes_no_switch_to_others(label: str | None) -> None:
    world = switches(range(5), range(5), version="2.0")
    forged(world, label)
    world.add(*(pods := job(6, LARGE, name="honest")))
    assert len(placed(world, pods)) == 6


def test_a_state_of_a_job_that_does_not_ask_for_it_does_not_count() -> None:
    before = switches(range(4), range(4), version="1.0")
    before.add(*(pods := job(5, None)))
    after = switches(range(4), range(4), version="2.0")
    for each in bind(before, pods):
        written_by_its_author = each.metadata.annotations | {"isSharedTor": "2"}
        after.add(replace(each, metadata=replace(each.metadata, annotations=written_by_its_author)))
    assert {use.state for use in after.cluster.switches.uses().values()} == {SwitchState()}
