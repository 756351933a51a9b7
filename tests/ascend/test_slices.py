"""How the chips of a pod are divided among its containers, against what the kubelet does with them."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import RESOURCE
from ascend.slices import ContainerRequest, choose, deal, effective_request
from sandbox.pods import FullPod

KINDS = {"i": "init", "s": "sidecar", "a": "app"}


def pod(text: str) -> tuple[ContainerRequest, ...]:
    """A pod from a text: ``i4 s1 a2`` is an init container of 4 chips, a sidecar of 1 and an app container of 2."""
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
def test_a_pod_requests_the_most_that_runs_at_the_same_time(text: str, request_: int) -> None:
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
def test_containers_keep_chips_in_order_and_init_containers_borrow(text: str, chips: str, dealt: list[str]) -> None:
    assert slices(text, chips) == dealt


def test_chips_given_to_another_container_are_replaced() -> None:
    requests = pod("i3 a2 a2")
    kept = {requests[1].container: (1, 2)}
    chosen = choose(requests[2], requests, (0, 1, 2, 3), kept=kept, among={0, 3, 4, 5}, must_include={0})
    assert chosen == (0, 3)


def test_a_slice_does_not_depend_on_known_slices_before_it() -> None:
    requests = pod("a2 a1 a1")
    assert choose(requests[2], requests, (5, 4, 0, 7), kept={}) == (7,)


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
def test_a_choice_the_kubelet_cannot_follow_is_none(
    among: str, must_include: str, chosen: tuple[int, ...] | None
) -> None:
    (request,) = pod("a2")
    offered, required = set(map(int, among)), set(map(int, must_include))
    assert choose(request, [request], (5, 4), kept={}, among=offered, must_include=required) == chosen


@st.composite
def pods(draw: st.DrawFn) -> tuple[ContainerRequest, ...]:
    """Pods of at most 24 chips; init containers and sidecars come before app containers."""
    first = draw(st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), st.integers(1, 4)), max_size=3))
    then = draw(st.lists(st.integers(1, 4), max_size=3))
    kinds = [*first, *(("app", count) for count in then)]
    return tuple(ContainerRequest(f"c{number}", kind, count) for number, (kind, count) in enumerate(kinds))  # type: ignore[arg-type]  # one of the kinds


@given(pods())
def test_the_request_equals_what_scheduler_and_kubelet_count(requests: tuple[ContainerRequest, ...]) -> None:
    def container(request: ContainerRequest) -> dict[str, object]:
        policy = {"restartPolicy": "Always"} if request.kind == "sidecar" else {}
        return {"name": request.container, "resources": {"limits": {RESOURCE: str(request.count)}}, **policy}

    spec = {
        "initContainers": [container(request) for request in requests if request.kind != "app"],
        "containers": [container(request) for request in requests if request.kind == "app"],
    }
    assert effective_request(requests) == FullPod(spec=spec).requests.get(RESOURCE, 0)


@given(pods(), st.randoms(use_true_random=False))
def test_without_init_containers_each_container_gets_its_slice(
    requests: tuple[ContainerRequest, ...], rng: random.Random
) -> None:
    requests = tuple(request for request in requests if request.keeps)
    chips = rng.sample(range(24), effective_request(requests))
    kept: dict[str, tuple[int, ...]] = {}
    for request in requests:
        chosen = choose(request, requests, chips, kept=kept, among=range(24))
        assert chosen is not None
        kept[request.container] = chosen
    assert kept == deal(requests, chips)
    assert [chip for each in kept.values() for chip in each] == chips


@given(pods(), st.randoms(use_true_random=False))
def test_a_kubelet_that_follows_gives_the_pod_exactly_its_chips(
    requests: tuple[ContainerRequest, ...], rng: random.Random
) -> None:
    chips = rng.sample(range(24), effective_request(requests))
    free, reusable = set(range(24)), set[int]()
    kept: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for request in requests:
        # The device manager takes what it can reuse, in any order, and then requests a preference
        # (docs/spec/kubelet.md#getpreferredallocation).
        given_ids = set(rng.sample(sorted(reusable), min(request.count, len(reusable))))
        if len(given_ids) < request.count:
            preferred = choose(request, requests, chips, kept=kept, among=free | given_ids, must_include=given_ids)
            assert preferred is not None
            given_ids = set(preferred)
        handed = choose(request, requests, chips, kept=kept, must_include=given_ids)
        assert handed is not None
        assert set(handed) == given_ids
        assert list(handed) == [chip for chip in chips if chip in given_ids]
        assert not given_ids & {chip for each in kept.values() for chip in each}
        free -= given_ids
        seen |= given_ids
        if request.keeps:
            kept[request.container] = handed
            reusable -= given_ids
        else:
            reusable |= given_ids
    assert seen == set(chips)
