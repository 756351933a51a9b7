"""How a pod's chips are dealt out to its containers, against what the kubelet does with them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import RESOURCE
from ascend.slices import ContainerRequest, choose, deal, effective_request
from sandbox.pods import FullPod

KINDS = {"i": "init", "s": "sidecar", "a": "app"}


def pod(text: str) -> tuple[ContainerRequest, ...]:
    """``i4 s1 a2``: an init container of four, then a sidecar of one, then an app container of two."""
    return tuple(
        ContainerRequest(f"{each}-{number}", KINDS[each[0]], int(each[1:]))  # type: ignore[arg-type]  # one of the kinds
        for number, each in enumerate(text.split())
    )


def slices(text: str, chips: str) -> list[str]:
    dealt = deal(pod(text), [int(chip) for chip in chips])
    return ["".join(map(str, each)) for each in dealt.values()]


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("", 0),
        ("a2", 2),
        ("a2 a2", 4),
        ("i4 a2", 4),
        ("i1 a2", 2),
        ("i4 i2 a1", 4),
        ("s1 a2", 3),
        ("s1 i4 a2", 5),
        ("i4 s1 a2", 4),
        ("i2 s1 i2 a1", 3),
    ],
)
def test_a_pod_needs_the_most_that_its_containers_need_at_one_time(text: str, request_: int) -> None:
    assert effective_request(pod(text)) == request_


@pytest.mark.parametrize(
    ("text", "chips", "dealt"),
    [
        ("a2", "54", ["54"]),
        ("a2 a1 a1", "5407", ["54", "0", "7"]),
        ("i4 a2 a2", "5407", ["5407", "54", "07"]),
        ("i2 a2 a2", "5407", ["54", "54", "07"]),
        ("s1 i2 a3", "5407", ["5", "40", "407"]),
        ("i2 s1 a1", "54", ["54", "5", "4"]),
    ],
)
def test_those_that_keep_chips_get_them_one_after_the_other_and_init_containers_the_first_that_are_left(
    text: str, chips: str, dealt: list[str]
) -> None:
    assert slices(text, chips) == dealt


def test_what_the_kubelet_gave_to_another_container_is_made_up_for() -> None:
    asks = pod("i3 a2 a2")
    kept = {asks[1].container: (1, 2)}
    chosen = choose(asks[2], asks, (0, 1, 2, 3), kept=kept, among={0, 3, 4, 5}, must_include={0})
    assert chosen == (0, 3)


def test_a_container_gets_its_slice_also_where_nobody_knows_what_those_before_it_were_given() -> None:
    asks = pod("a2 a1 a1")
    assert choose(asks[2], asks, (5, 4, 0, 7), kept={}) == (7,)


@pytest.mark.parametrize(
    ("among", "must_include", "chosen"),
    [
        ("01234567", "", (5, 4)),
        ("0123467", "", None),
        ("0123467", "5", (5, 4)),
        ("01234567", "1", None),
        ("", "", None),
        ("45", "45", (5, 4)),
    ],
)
def test_a_choice_the_kubelet_can_not_follow_is_none(
    among: str, must_include: str, chosen: tuple[int, ...] | None
) -> None:
    (ask,) = pod("a2")
    assert (
        choose(ask, [ask], (5, 4), kept={}, among=set(map(int, among)), must_include=set(map(int, must_include)))
        == chosen
    )


@st.composite
def pods(draw: st.DrawFn) -> tuple[ContainerRequest, ...]:
    """Pods of at most 24 chips; init containers and sidecars come before app containers."""
    first = draw(st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), st.integers(1, 4)), max_size=3))
    then = draw(st.lists(st.integers(1, 4), max_size=3))
    kinds = [*first, *(("app", count) for count in then)]
    return tuple(ContainerRequest(f"c{number}", kind, count) for number, (kind, count) in enumerate(kinds))  # type: ignore[arg-type]  # one of the kinds


@given(pods())
def test_the_request_is_what_scheduler_and_kubelet_count(asks: tuple[ContainerRequest, ...]) -> None:
    def container(ask: ContainerRequest) -> dict[str, object]:
        policy = {"restartPolicy": "Always"} if ask.kind == "sidecar" else {}
        return {"name": ask.container, "resources": {"limits": {RESOURCE: str(ask.count)}}, **policy}

    spec = {
        "initContainers": [container(ask) for ask in asks if ask.kind != "app"],
        "containers": [container(ask) for ask in asks if ask.kind == "app"],
    }
    assert effective_request(asks) == FullPod(spec=spec).requests.get(RESOURCE, 0)


@given(pods(), st.randoms(use_true_random=False))
def test_without_init_containers_every_container_gets_its_slice(asks: tuple[ContainerRequest, ...], rng: random.Random) -> None:
    asks = tuple(ask for ask in asks if ask.keeps)
    chips = rng.sample(range(24), effective_request(asks))
    kept: dict[str, tuple[int, ...]] = {}
    for ask in asks:
        chosen = choose(ask, asks, chips, kept=kept, among=range(24))
        assert chosen is not None
        kept[ask.container] = chosen
    assert kept == deal(asks, chips)
    assert [chip for each in kept.values() for chip in each] == chips


@given(pods(), st.randoms(use_true_random=False))
def test_led_by_it_the_kubelet_gives_the_pod_its_chips_and_no_others(asks: tuple[ContainerRequest, ...], rng: random.Random) -> None:
    chips = rng.sample(range(24), effective_request(asks))
    free, reusable = set(range(24)), set[int]()
    kept: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for ask in asks:
        # The device manager: first what it can recycle, in no order; then it asks for a preference (spec §1.7).
        given_ids = set(rng.sample(sorted(reusable), min(ask.count, len(reusable))))
        if len(given_ids) < ask.count:
            preferred = choose(ask, asks, chips, kept=kept, among=free | given_ids, must_include=given_ids)
            assert preferred is not None
            given_ids = set(preferred)
        handed = choose(ask, asks, chips, kept=kept, must_include=given_ids)
        assert handed is not None
        assert set(handed) == given_ids
        assert list(handed) == [chip for chip in chips if chip in given_ids]
        assert not given_ids & {chip for each in kept.values() for chip in each}
        free -= given_ids
        seen |= given_ids
        if ask.keeps:
            kept[ask.container] = handed
            reusable -= given_ids
        else:
            reusable |= given_ids
    assert seen == set(chips)
