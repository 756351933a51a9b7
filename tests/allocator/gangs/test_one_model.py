"""A gang stays on one model of chips unless its job says otherwise; nodes of an unknown model may be beside any."""

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.gangs import one_model
from allocator.gangs.packing import Packing
from allocator.gangs.policy import GangRequest
from allocator.state.index import NodeIndex
from allocator.state.reservation import Seat, Stage
from ascend.annotations import MIN_AVAILABLE, MIXED_MODELS
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import CHIP_NAME
from ascend.turn import Steps
from tests.allocator.builders import GROUP, TYPE, World, node, pod, pod_group, requiring, selecting, term
from tests.allocator.gangs.builders import bind

B1, B3, B4, UNKNOWN = "910B1", "910B3", "910B4", ""
MODELS = (B3, B4, UNKNOWN)


def peer(number: int, minimum: int, *, on: str = "", **annotations: str) -> Pod:
    marks = {GROUP: "train", MIN_AVAILABLE: str(minimum), **annotations}
    running = {"node": on, "chips": range(8), "phase": "Running"} if on else {}
    return pod(f"train-{number}", 8, annotations=marks, **running)  # type: ignore[arg-type] # of one call


def world_of(models: Iterable[str], *pods: Pod, earmark_share: float = 0.0, pools: str = "") -> World:
    world = World(earmark_share=earmark_share)
    for number, model in enumerate(models):
        labels = {TYPE: "module-910b-8"} | ({CHIP_NAME: model} if model else {})
        world.add(node(f"n{number}", labels=labels | ({"pool": pools[number]} if pools else {})))
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


WAYS = {
    "In": lambda model: [term(CHIP_NAME, "In", model)],
    "NotIn": lambda model: [term(CHIP_NAME, "NotIn", *({B1, B3, B4} - {model}))],
    "alternatives": lambda model: [term(CHIP_NAME, "In", model), term("pool", "In", f"only-{model}")],
    "another label": lambda model: [term("pool", "In", {B1: "a", B3: "b", B4: "c"}[model])],
    "fields": lambda model: [
        term("metadata.name", "In", f"n{number}", field="matchFields")
        for number, there in enumerate([B4, B3, B1, B4]) if there == model
    ],
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_required_affinity_names_a_model_like_a_selector(way: str) -> None:
    pods = [requiring(peer(number, 2), *WAYS[way](model)) for number, model in enumerate((B3, B4))]
    world = world_of([B4, B3, B1, B4], *pods, pools="cbac")
    assert [world.engine.place(waiting).node for waiting in pods] == ["n1", "n0"]
    leader = requiring(peer(0, 3, on="n0"), *WAYS[way](B4))
    world = world_of([B4, B3, B1, B4, B3], leader, *(pods := [peer(1, 3), peer(2, 3)]), pools="cbacb")
    assert models_of(world, pods) == {B3}


@pytest.mark.parametrize("asked", [[B1, B3], [B3, B4], [B1, B3, B4]])
@pytest.mark.parametrize("way", ["In", "NotIn", "alternatives"])
def test_affinity_that_leaves_several_models_leaves_the_gang_on_one(asked: list[str], way: str) -> None:
    terms = {
        "In": [term(CHIP_NAME, "In", *asked)],
        "NotIn": [term(CHIP_NAME, "NotIn", *({B1, B3, B4} - set(asked)))],
        "alternatives": [term(CHIP_NAME, "In", model) for model in asked],
    }[way]
    pods = [requiring(peer(number, 2), *terms) for number in range(2)]
    found = models_of(world_of([B1, B3, B4, B1, B3, B4], *pods), pods)
    assert len(found) == 1
    assert found <= set(asked)
    refusal = world_of([B1, B3, B4], *pods).refusal(pods[0])
    assert "several models" in refusal.message
    assert all((model in refusal.message) is (model in asked) for model in asked[:2])


def test_exists_asks_for_any_one_model_but_for_a_known_one() -> None:
    pods = [requiring(peer(number, 2), term(CHIP_NAME, "Exists")) for number in range(2)]
    assert models_of(world_of([UNKNOWN, B3, UNKNOWN, B4, B4], *pods), pods) == {B4}
    assert "910B3 and 910B4" in world_of([UNKNOWN, B3, UNKNOWN, B4], *pods).refusal(pods[0]).message


def test_candidates_of_the_scheduler_choose_the_model_of_the_gang() -> None:
    pods = [peer(number, 2) for number in range(2)]
    world = world_of([B3, B3, B4, B4, B4], *pods)
    assert world.engine.place(pods[0], ["n2", "n3", "n4"]).node == "n2"
    assert models_of(world, pods) == {B4}
    assert "910B3 and 910B4" in world_of([B3, B4, B4], *pods).refusal(pods[0], ["n0", "n1"]).message


def test_a_pod_with_a_single_candidate_takes_its_gang_to_the_model_of_that() -> None:
    pods = [peer(number, 2) for number in range(2)]
    world = world_of([B3, B3, B4, B4, B4], *pods)
    assert world.engine.place(pods[0], ["n2"]).node == "n2"
    assert models_of(world, pods) == {B4}


def test_other_nodes_of_a_peer_are_of_one_model_too() -> None:
    leader, *workers = [selecting(peer(number, 3), {"pool": "b" if number else "a"}) for number in range(3)]
    world = world_of([B4, B3, B4, B3, B4], leader, *workers, pools="abbbb")
    assert world.engine.place(leader).node == "n0"
    assert models_of(world, workers) in ({B3}, {B4})
    assert "910B3 and 910B4" in world_of([B4, B3, B4], leader, *workers, pools="abb").refusal(leader).message


def test_a_gang_stays_on_one_of_three_models() -> None:
    pods = [peer(number, 3) for number in range(3)]
    assert models_of(world_of([B1, B1, B3, B3, B4, B4, B4], *pods), pods) == {B4}
    assert models_of(world_of([B1, B1, UNKNOWN, B3, B4], *pods), pods) == {B1}
    refusal = world_of([B1, B3, B4], *pods).refusal(pods[0])
    assert "several models of chips (910B1, 910B3 and 910B4)" in refusal.message


def test_a_pod_that_may_have_any_model_binds_no_other_pod_to_its_own() -> None:
    leader = peer(0, 3, on="n0", **{MIXED_MODELS: "true"})
    pods = [peer(number, 3) for number in (1, 2)]
    assert models_of(world_of([B4, B3, B4, B3], leader, *pods), pods) == {B3}
    pods[0] = peer(1, 3, on="n1")
    assert models_of(world_of([B4, B3, B4, B3], leader, *pods), pods[1:]) == {B3}


def test_models_are_chosen_for_each_product_of_a_gang() -> None:
    pods = [
        selecting(peer(number, 4), {TYPE: "module-910b-8" if number % 2 else "module-910b-16"}) for number in range(4)
    ]
    for waiting in (pods, pods[::-1]):
        world = world_of([B3, B4, B4], *waiting)
        for number, model in enumerate([B1, B3, B1], start=3):
            world.add(node(f"n{number}", labels={TYPE: "module-910b-16", CHIP_NAME: model}, chips=range(16)))
        at = [world.engine.place(each).node for each in pods]
        assert set(at[1::2]) == {"n1", "n2"}
        assert set(at[::2]) <= {"n3", "n5"}


def test_of_a_gang_of_many_products_few_of_all_choices_of_models_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    place, tried = Packing.place, set[tuple[str | None, ...]]()

    def trying(policy: Packing, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        tried.add(tuple(member.request.model for member in gang.members))
        return place(policy, gang, index)

    # Two pods for each product, which has a node of either model.
    sizes = {
        "module-910b-8": 8,
        "module-910b-16": 16,
        "chip4-node8": 8,
        "chip4-node16": 16,
        "card": 8,
        "850-SuperPod-Atlas-8": 8,
    }
    kinds, marks = [*sizes, *sizes], {GROUP: "train", MIN_AVAILABLE: str(2 * len(sizes))}
    pods = [
        selecting(pod(f"train-{at}", sizes[kind], annotations=marks), {TYPE: kind}) for at, kind in enumerate(kinds)
    ]
    world = World()
    for (kind, chips), model in product(sizes.items(), [B3, B4]):
        labels = {TYPE: kind, CHIP_NAME: model}
        world.add(node(f"{kind}-{model}", labels=labels, chips=range(chips), allocatable=chips))
    world.add(*pods)
    monkeypatch.setattr(Packing, "place", trying)
    assert "several models" in world.refusal(pods[0]).message
    # The last one is without models, for the reason of the refusal.
    assert len(tried) == one_model._MOST_CHOICES + 1 < 2 ** len(sizes)


POOLS = st.sampled_from(["", "a", "b"])


@given(
    st.lists(st.tuples(st.sampled_from([B1, B3, B4, UNKNOWN]), st.sampled_from("ab")), min_size=1, max_size=5),
    st.lists(st.tuples(POOLS, st.booleans()), min_size=2, max_size=4),
)
def test_a_gang_is_placed_if_any_choice_of_nodes_keeps_what_its_pods_say(
    nodes: list[tuple[str, str]], asked: list[tuple[str, bool]]
) -> None:
    pods = []
    for number, (pool, is_mixed) in enumerate(asked):
        waiting = peer(number, len(asked), **({MIXED_MODELS: "true"} if is_mixed else {}))
        pods.append(requiring(waiting, term("pool", "In", pool)) if pool else waiting)
    world = world_of([model for model, _ in nodes], *pods, pools="".join(pool for _, pool in nodes))

    def known(pool: str) -> set[str]:
        return {model for model, there in nodes if pool in {"", there}} - {UNKNOWN}

    def is_right(seats: Sequence[tuple[str, str]]) -> bool:
        together = set()
        for (model, there), (pool, is_mixed) in zip(seats, asked, strict=True):
            if pool not in {"", there}:
                return False
            if not is_mixed and len(known(pool)) > 1:
                together.add(model)
        return len(together - {UNKNOWN}) <= 1

    if any(is_right(seats) for seats in permutations(nodes, len(asked))):
        assert is_right([nodes[int(world.engine.place(waiting).node[1:])] for waiting in pods])
    else:
        assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT


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
