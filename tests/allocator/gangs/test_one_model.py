"""A gang stays on one model of chips unless its job says otherwise; nodes of an unknown model may be beside any."""

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, product

import pytest
from msgspec.structs import replace

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, MIXED_MODELS
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import CHIP_NAME
from tests.allocator.builders import GROUP, TYPE, World, node, pod, pod_group, selecting
from tests.allocator.gangs.builders import bind

B3, B4, UNKNOWN = "910B3", "910B4", ""
MODELS = (B3, B4, UNKNOWN)


def peer(number: int, minimum: int, *, on: str = "", **annotations: str) -> Pod:
    marks = {GROUP: "train", MIN_AVAILABLE: str(minimum), **annotations}
    running = {"node": on, "chips": range(8), "phase": "Running"} if on else {}
    return pod(f"train-{number}", 8, annotations=marks, **running)  # type: ignore[arg-type] # of one call


def world_of(models: Iterable[str], *pods: Pod, earmark_share: float = 0.0) -> World:
    world = World(earmark_share=earmark_share)
    for number, model in enumerate(models):
        labels = {TYPE: "module-910b-8"} | ({CHIP_NAME: model} if model else {})
        world.add(node(f"n{number}", labels=labels))
    world.add(*pods)
    return world


def models_of(world: World, pods: Iterable[Pod]) -> set[str]:
    return {world.vacancy(world.engine.place(waiting).node).model for waiting in pods} - {UNKNOWN}


def fits(models: Sequence[str], size: int, of_peers: Iterable[str]) -> bool:
    """The definition: so many free nodes of one model, that of the placed peers, or of an unknown one."""
    known = set(of_peers) - {UNKNOWN} or {B3, B4}
    return any(sum(model in {one, UNKNOWN} for model in models) >= size for one in known)


@pytest.mark.parametrize("models", [each for n in range(1, 6) for each in combinations_with_replacement(MODELS, n)])
def test_a_gang_is_placed_where_one_model_has_room_for_it_and_only_there(models: tuple[str, ...]) -> None:
    for size in range(2, 6):
        pods = [peer(number, size) for number in range(size)]
        world = world_of(models, *pods)
        if fits(models, size, ()):
            assert len(models_of(world, pods)) <= 1
        else:
            assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("free", [*product(MODELS, repeat=2), *product(MODELS, repeat=3)])
def test_a_pod_that_comes_later_joins_the_model_of_its_peers(model: str, free: tuple[str, ...]) -> None:
    pods = [peer(1, 3), peer(2, 3)]
    world = world_of([model, *free], peer(0, 3, on="n0"), *pods)
    if fits(free, 2, [model]):
        assert len(models_of(world, pods) | {model} - {UNKNOWN}) <= 1
    else:
        assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT


@pytest.mark.parametrize("running", [1, 2])
def test_a_pod_that_names_its_model_binds_no_other_pod_to_that(running: int) -> None:
    leader = selecting(peer(0, 3, on="n0"), {CHIP_NAME: B4})
    workers = [peer(number, 3, on="n1" if number < running else "") for number in (1, 2)]
    world = world_of([B4, B3, B4, B3, B3], leader, *workers)
    assert models_of(world, workers[running - 1 :]) == {B3}


def test_a_gang_that_is_on_several_models_already_is_not_refused_for_that() -> None:
    running, pods = [peer(0, 4, on="n0"), peer(1, 4, on="n1")], [peer(2, 4), peer(3, 4)]
    assert models_of(world_of([B3, B4, B3, B4], *running, *pods), pods) == {B3, B4}
    assert len(models_of(world_of([B3, B4, B3, B4, B4], *running, *pods), pods)) == 1


def test_the_refusal_names_models_only_if_they_stand_in_the_way() -> None:
    pods = [peer(number, 3) for number in range(3)]
    refusal = world_of([B3, B3, B4], *pods).refusal(pods[0])
    assert refusal.message == (
        "job default/train: its pods fit only on several models of chips (910B3 and 910B4), and a gang stays on one; "
        'annotation ascend-affinity.io/mixed-models: "true" on its pods says that it may have several'
    )
    assert "model" not in world_of([B3, B4], *pods).refusal(pods[0]).message


@pytest.mark.parametrize("on_group", [True, False])
def test_a_job_says_that_it_may_have_several_models(on_group: bool) -> None:  # noqa: FBT001 - a parameter
    marks = {} if on_group else {MIXED_MODELS: "true"}
    pods = [peer(number, 2, **marks) for number in range(2)]
    world = world_of([B3, B4], *pods)
    if on_group:
        group = pod_group(2)
        said = replace(group.metadata, annotations={MIXED_MODELS: "true"})
        world.cluster.jobs.group_applied(VOLCANO, replace(group, metadata=said))
    assert models_of(world, pods) == {B3, B4}


def test_pods_that_name_different_models_get_what_each_of_them_names() -> None:
    pods = [selecting(peer(number, 2), {CHIP_NAME: model}) for number, model in enumerate((B3, B4))]
    world = world_of([B4, B3], *pods)
    assert [world.engine.place(waiting).node for waiting in pods] == ["n1", "n0"]


def test_both_spellings_of_a_model_are_the_same() -> None:
    pods = [peer(number, 2) for number in range(2)]
    assert models_of(world_of([B3, f"Ascend{B3}"], *pods), pods) == {B3}


def test_the_model_with_fewer_chips_comes_first() -> None:
    pods = [peer(number, 2) for number in range(2)]
    assert models_of(world_of([B3, B3, B3, B4, B4], *pods), pods) == {B4}


def test_fewer_pods_than_all_start_on_one_model() -> None:
    pods = [peer(number, 2) for number in range(3)]
    world = world_of([B3, B3, B4], *pods)
    assert models_of(world, pods[:2]) == {B3}
    assert world.refusal(pods[2]).reason is Reason.GANG_DOES_NOT_FIT


def test_chips_are_kept_for_a_waiting_gang_on_nodes_of_one_model() -> None:
    pods = [peer(number, 2) for number in range(2)]
    world = world_of([B3, B4, B4], *pods, earmark_share=1.0)
    for number in range(3):
        world.fill(f"n{number}", range(8 if number else 1))  # that of the other model would drain first
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.engine.earmarks.choose()
    assert {name for name in ("n0", "n1", "n2") if world.ledger.promises.on(name)} == {"n1", "n2"}


def test_a_pod_goes_where_its_scheduler_binds_it_whatever_the_model() -> None:
    pods = [peer(number, 2) for number in range(2)]
    world = world_of([B3, B4], *pods)
    assert [world.engine.place_on(waiting, f"n{at}").stage for at, waiting in enumerate(pods)] == [Stage.PLANNED] * 2


def test_the_nodes_that_a_pod_fits_on_are_of_the_model_of_its_gang() -> None:
    pods = [peer(number, 2) for number in range(2)]
    world = world_of([B3, B3, B3, B4], *pods)
    bind(world, pods[0])
    assert {name for name, _ in world.engine.fits(pods[1])} <= {"n0", "n1", "n2"}
