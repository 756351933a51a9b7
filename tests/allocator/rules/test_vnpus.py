"""Which vNPU of a node a pod gets: the rule in few lines, over random nodes."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, capacity, judge
from allocator.rules.vnpus import ChosenVnpu, vnpus_left
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.products import ASCEND_910A
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.vnpus import Vnpu

SIZES = ("2c", "4c")


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[Vnpu], set[Vnpu], int, dict[str, int]]:
    """The vNPUs of a node, those that pods hold, the excluded chips, and what the kubelet has."""
    cut = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(SIZES)), max_size=8))
    vnpus = [Vnpu(size, chip, 100 + number) for number, (chip, size) in enumerate(cut)]
    held = {each for each in vnpus if draw(st.booleans())}
    excluded = chip_set(draw(st.sets(st.integers(0, 3), max_size=2)))
    allocatable = {size: draw(st.integers(0, 8)) for size in SIZES}
    return vnpus, held, excluded, allocatable


@given(nodes(), st.sampled_from(SIZES))
def test_the_choice_is_free_and_on_the_chip_with_the_most_in_use(
    made: tuple[list[Vnpu], set[Vnpu], int, dict[str, int]], size: str
) -> None:
    vnpus, held, excluded, allocatable = made
    counted = Counter(each.suffix for each in held)
    left = vnpus_left(vnpus, excluded=excluded, held=held, counted=counted, allocatable=allocatable)
    healthy = [each for each in vnpus if not excluded >> each.chip & 1]
    free = [each for each in healthy if each.suffix == size and each not in held]
    chosen = left.choose(size)
    if isinstance(chosen, ChosenVnpu):
        used = Counter(each.chip for each in held)
        assert chosen.vnpu in free
        assert chosen.beside == used[chosen.vnpu.chip] == max(used[each.chip] for each in free)
        assert chosen.on_node == sum(each in held for each in healthy)
        after = left.without([chosen.vnpu])
        assert set(after.free) == set(left.free) - {chosen.vnpu}
        return
    if not any(each.suffix == size for each in vnpus):
        assert chosen.reason is Reason.NO_SUCH_VNPU
    elif not free:
        assert chosen.reason is Reason.NO_FREE_VNPU
    else:
        assert chosen.reason is Reason.NO_ROOM_AT_KUBELET
        assert allocatable[size] <= counted[size]


@given(nodes(), st.sampled_from(SIZES))
def test_taking_one_is_the_same_as_reading_the_node_with_one_more_held(
    made: tuple[list[Vnpu], set[Vnpu], int, dict[str, int]], size: str
) -> None:
    vnpus, held, excluded, allocatable = made
    counted = Counter(each.suffix for each in held)
    left = vnpus_left(vnpus, excluded=excluded, held=held, counted=counted, allocatable=allocatable)
    chosen = left.choose(size)
    if isinstance(chosen, Refusal):
        return
    more = held | {chosen.vnpu}
    anew = vnpus_left(
        vnpus, excluded=excluded, held=more, counted=counted + Counter([size]), allocatable=allocatable
    )  # fmt: skip
    after = left.without([chosen.vnpu])
    assert (after.free, after.used) == (anew.free, anew.used)
    # The room is limited by what is free in both, in another order.
    for mine, other in zip(after.sizes, anew.sizes, strict=True):
        free = sum(each.suffix == mine.suffix for each in after.free)
        assert min(mine.room, free) == min(other.room, free)


@given(nodes(), st.sampled_from(SIZES), st.booleans())
def test_the_capacity_is_what_fits_one_after_the_other(
    made: tuple[list[Vnpu], set[Vnpu], int, dict[str, int]],
    size: str,
    sub_healthy: bool,  # noqa: FBT001
) -> None:
    vnpus, held, excluded, allocatable = made
    counted = Counter(each.suffix for each in held)
    left = vnpus_left(vnpus, excluded=excluded, held=held, counted=counted, allocatable=allocatable)
    vacancy = Vacancy(ASCEND_910A, 4, 0xF0, 4, sub_healthy=sub_healthy, vnpus=left)
    request = ChipRequest(0, vnpu=size)
    number, _ = capacity(vacancy, request)
    seen: set[Vnpu] = set()
    for _ in range(number):
        fit = judge(vacancy, request)
        assert isinstance(fit, Fit)
        assert fit.take.vnpu is not None
        assert fit.take.vnpu not in seen
        assert vacancy.has(fit.take, request)
        seen.add(fit.take.vnpu)
        vacancy = vacancy.without(fit.take)
        assert not vacancy.has(fit.take, request)
    assert isinstance(judge(vacancy, request), Refusal)
    # Whole chips are not concerned.
    assert vacancy.free == 0xF0
    assert vacancy.without(Take.whole((4,))).vnpus == vacancy.vnpus


def test_a_score_orders_nodes_as_their_keys_do() -> None:
    vnpus = [Vnpu("2c", chip, 100 + number) for number, chip in enumerate((0, 0, 0, 1, 1, 1))]
    fits = []
    for held in ([], vnpus[:1], vnpus[:2], [vnpus[0], vnpus[3]], [*vnpus[:2], vnpus[3]]):
        for sub_healthy in (False, True):
            allocatable, counted = {"2c": 6}, {"2c": len(held)}
            left = vnpus_left(vnpus, excluded=0, held=held, counted=counted, allocatable=allocatable)
            fit = judge(Vacancy(ASCEND_910A, 6, 0, 6, sub_healthy=sub_healthy, vnpus=left), ChipRequest(0, vnpu="2c"))
            assert isinstance(fit, Fit)
            fits.append(fit)
    assert [each.score for each in sorted(fits, key=lambda fit: fit.key)] == sorted(
        (each.score for each in fits), reverse=True
    )
