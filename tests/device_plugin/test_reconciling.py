"""The plugin's ledger follows the kubelet's: the same rules for whole chips, static vNPUs and AI cores."""

import asyncio
import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from ascend.errors import Unreachable
from device_plugin.device_types import CORES, DeviceType
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.pods import core_keeper, cut_vnpus
from tests.device_plugin.api import running, until
from tests.device_plugin.books import TYPES, Books, serve, silent


@pytest.fixture(params=TYPES, ids=["chips", "vNPUs", "AI cores"])
def books(request: pytest.FixtureRequest) -> Books:
    return Books(request.param)


Patch = pytest.MonkeyPatch


async def test_without_the_kubelets_ledger_only_claims_are_restored(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, silent)
    books.show(
        books.pod("claimed", 2, claims=2, started=True),
        books.pod("unclaimed", 0, started=True),
        books.pod("over", 3, claims=3, phase="Failed"),
    )
    await books.reconciler.restore()
    assert books.entries == {"default/claimed": 2}
    assert books.claimed == []


async def test_a_hand_over_that_a_new_kubelet_lost_is_dropped(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"lost": None, "known": 1}))
    for number, name in enumerate(("lost", "known")):
        books.show(books.pod(name, number))
        books.answer(name, number)
    await books.reconciler.forget_lost()
    assert books.entries == {"default/known": 1}


async def test_a_new_kubelet_with_two_pods_of_a_name_knows_no_hand_over(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"one": 0}, ambiguous=["one"]))
    books.show(books.pod("one", 0))
    books.answer("one", 0)
    await books.reconciler.forget_lost()
    assert books.entries == {}


async def test_swapped_pods_are_claimed_with_what_they_have(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"first": 1, "second": 0, "third": 2}))
    for number, name in enumerate(("first", "second", "third")):
        books.answer(name, number)
    for number, name in enumerate(("first", "second", "third")):
        books.show(books.pod(name, number, started=True))
    async with running(books.run()):
        await until(lambda: len(books.on_event) == 2)
        await until(lambda: not books.allocations.unconfirmed)
    assert books.entries == books.counted == {"default/first": 1, "default/second": 0, "default/third": 2}
    assert books.claims == {"default/first": 1, "default/second": 0}
    sentences = {pod: sentence for pod, _, sentence in books.on_event}
    assert sentences["default/first"].startswith("it was given ")
    assert "the kubelet could not be asked which of several pods it admitted" in sentences["default/first"]
    assert {reason for _, reason, _ in books.on_event} == {"NPUAllocationMismatch"}
    assert books.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 2


async def test_a_hand_over_is_compared_with_the_kubelets_ledger_once(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"first": 0}))
    books.answer("first", 0)
    books.show(books.pod("first", 0, started=True))
    async with running(books.run()):
        await until(lambda: not books.allocations.unconfirmed)
    assert (books.entries, books.claimed, books.on_event) == ({"default/first": 0}, [], [])


async def test_a_hand_over_to_a_pod_not_admitted_moves_to_the_pod_that_has_it(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"real": 0}))
    books.answer("guess", 0)
    books.answer("other", 3)
    books.show(books.pod("guess", 0), books.pod("other", 3), books.pod("real", 1, started=True))
    async with running(books.run()):
        await until(lambda: books.on_event)
    assert books.entries == {"default/real": 0, "default/other": 3}
    assert books.claims == {"default/real": 0}


async def test_a_hand_over_to_a_deleted_pod_moves_to_the_pod_that_has_it(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"real": 0}))
    books.answer("guess", 0)
    books.answer("ended", 2)
    books.allocations.drop("uid-guess")
    books.allocations.drop("uid-ended")
    books.show(books.pod("real", 1, started=True))
    async with running(books.run()):
        await until(lambda: books.on_event)
    assert books.entries == {"default/real": 0}
    books.answer("next", 3)
    assert frozenset(books.ids(0)) in books.allocations.answers


@pytest.mark.parametrize("shown", ["failed", "deleted", "still pending", "failed long before"])
async def test_a_pod_has_what_the_only_candidate_was_given_that_its_call_was_mistaken_for(
    books: Books, monkeypatch: Patch, shown: str
) -> None:
    # The kubelet turned "away" away by itself, and asked for "real", which the watch showed later.
    serve(monkeypatch, books.kubelet({"real": 0}))
    away = books.pod("away", 0)
    books.show(away)
    books.answer("away", 0)
    async with running(books.run()):
        if shown == "deleted":
            books.pods.on_delete(away)
        elif shown != "still pending":
            books.show(books.pod("away", 0, phase="Failed"))
        if shown == "failed long before":
            books.answer("unseen", 3)  # so that the kubelet's ledger is read
            await until(lambda: "default/unseen" not in books.entries)
        books.show(books.pod("real", 1))
        books.show(books.pod("real", 1, started=True))
        await until(lambda: "default/real" in books.entries)
    assert books.entries == {"default/real": 0}
    assert books.claims == {"default/real": 0}


async def test_a_misattributed_answer_moves_to_a_pod_found_admitted_meanwhile(books: Books, monkeypatch: Patch) -> None:
    books.answer("guess", 0)
    books.answer("other", 1)
    books.show(books.pod("guess", 0), books.pod("other", 1), books.pod("real", 2, started=True))

    def held() -> Mapping[str, int]:
        books.show(books.pod("guess", 0, started=True))
        return {"real": 0, "guess": 1}

    serve(monkeypatch, books.kubelet(held))
    async with running(books.run()):
        await until(lambda: len(books.on_event) == 2)
    assert books.entries == {"default/real": 0, "default/guess": 1}


async def test_a_misattributed_answer_is_kept_until_its_pod_is_admitted(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"first": 1, "second": 0}))
    books.answer("first", 0)
    books.answer("second", 1)
    books.show(books.pod("first", 0), books.pod("second", 1, started=True))
    async with running(books.run()):
        await until(lambda: len(books.on_event) == 1)
        books.show(books.pod("first", 0, started=True))
        await until(lambda: len(books.on_event) == 2)
    assert books.entries == {"default/first": 1, "default/second": 0}


async def test_a_chain_of_wrong_guesses_is_resolved(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"first": 1, "last": 0}))
    books.answer("first", 0)
    books.answer("gone", 1)
    books.allocations.drop("uid-gone")
    books.show(books.pod("first", 0, started=True), books.pod("last", 2, started=True))
    async with running(books.run()):
        await until(lambda: len(books.on_event) == 2)
    assert books.entries == {"default/first": 1, "default/last": 0}


@pytest.mark.parametrize("other_first", [True, False])
async def test_a_call_answered_while_the_ledger_is_read_is_not_judged_by_it(
    books: Books, monkeypatch: Patch, *, other_first: bool
) -> None:
    # The kubelet has freed the ids of "ended" and given them to "next" meanwhile.
    for name in ("next", "ended") if other_first else ("ended", "next"):
        books.show(books.pod(name, 0, started=name == "ended"))
    reads = 0

    def held() -> Mapping[str, int]:
        nonlocal reads
        reads += 1
        if reads == 1:
            books.answer("next", 0)
        return {"ended": 0} if reads == 1 else {"next": 0}

    serve(monkeypatch, books.kubelet(held))
    async with running(books.run()):
        await until(lambda: reads)
        assert books.entries == {"default/next": 0}
        books.pods.on_delete(books.pod("ended"))
        books.show(books.pod("next", 0, started=True))
        await until(lambda: not books.allocations.unconfirmed)
    assert (books.entries, books.claimed) == ({"default/next": 0}, [])


async def test_a_pod_created_and_deleted_unseen_keeps_nothing_of_a_quiet_node(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({}))
    async with running(books.run()):
        await until(lambda: books.pods.changes.waiters)
        books.answer("ghost", 0)
        await until(lambda: not books.entries)


async def test_a_pod_that_the_watch_shows_late_keeps_what_it_was_just_given(books: Books, monkeypatch: Patch) -> None:
    """The kubelet notes what it gave a pod some time after the answer; until then its ledger lacks the pod."""
    monkeypatch.setattr(cut_vnpus, "HANDING_OVER_S", 0.0)
    serve(monkeypatch, books.kubelet({}), retry_s=10.0)
    # The kubelet's ledger is read whenever there is a vNPU of nobody.
    books.driver.vnpus.add(books.vnpu(7))
    books.driver.in_containers.add(books.vnpu(7))
    async with running(books.run()):
        await until(lambda: books.pods.changes.waiters)
        for number in range(20):
            books.answer("late", 0) if number == 0 else books.show(books.pod("other", 1))
            await asyncio.sleep(0.005)
    assert books.entries == {"default/late": 0}


async def test_the_entry_of_a_pods_successor_is_not_the_pods_own(books: Books, monkeypatch: Patch) -> None:
    # The watch shows neither the end of the first pod nor the second one of its name yet.
    reads = 0

    def held() -> Mapping[str, int]:
        nonlocal reads
        reads += 1
        return {"one": 1}

    serve(monkeypatch, books.kubelet(held))
    books.answer("one", 0)
    books.answer("one", 1, uid="uid-again")
    books.show(books.pod("one", 0, started=True))
    async with running(books.run()):
        await until(lambda: reads > 3)
        assert {each.uid: each.chips for each in books.allocations} == {
            "uid-one": books.chips(0),
            "uid-again": books.chips(1),
        }
        books.pods.on_delete(books.pod("one"))
        books.show(books.pod("one", 1, uid="uid-again", started=True))
        await until(lambda: not books.allocations.unconfirmed)
    assert {each.uid: each.chips for each in books.allocations} == {"uid-again": books.chips(1)}
    assert books.claimed == []


async def test_two_pods_of_one_name_in_the_ledger_prove_nothing(books: Books, monkeypatch: Patch) -> None:
    serve(monkeypatch, books.kubelet({"one": 0}, ambiguous=["one"]))
    books.driver.vnpus.add(books.vnpu(0))
    books.show(books.pod("one", 0, started=True))
    await books.reconciler.restore()
    assert books.entries == {}


@pytest.mark.parametrize("known", ["before", "again"])
async def test_a_waiting_pod_has_the_entry_of_its_name_only_if_the_kubelet_knows_the_pod(
    books: Books, monkeypatch: Patch, known: str
) -> None:
    serve(monkeypatch, books.kubelet({"one": 0}))
    books.driver.vnpus.add(books.vnpu(0))
    books.show(books.pod("one", 0, uid="again"))
    books.kubelet_pods = [books.pod("one", 0, uid=known)]
    await books.reconciler.restore()
    assert books.entries == ({"default/one": 0} if known == "again" else {})


async def test_a_pod_that_the_kubelet_is_about_to_ask_for_goes_on_waiting(books: Books, monkeypatch: Patch) -> None:
    # An entry that may be that of an earlier pod is why the kubelet is asked which pods it knows.
    serve(monkeypatch, books.kubelet({"new": 0, "next": None}))
    books.driver.vnpus.add(books.vnpu(1))
    books.show(books.pod("new", 0), books.pod("next", 1))
    books.kubelet_pods = [books.pod("next", 1)]
    await books.reconciler.restore()
    assert (books.entries, books.on_event) == ({}, [])


async def test_a_reading_of_the_kubelets_ledger_that_failed_once_leaves_no_vnpu(monkeypatch: Patch) -> None:
    monkeypatch.setattr(cut_vnpus, "HANDING_OVER_S", 0.0)
    monkeypatch.setattr(core_keeper, "RETRY_LIMIT_S", 0.001)
    books, failures = Books(CORES), 0
    books.driver.vnpus.add(books.vnpu(7))  # of a pod that has ended, but not its container
    books.driver.in_containers.add(books.vnpu(7))

    def held() -> Mapping[str, int]:
        nonlocal failures
        failures -= 1
        if failures == 0:
            raise Unreachable("the kubelet restarts")
        return {}

    serve(monkeypatch, books.kubelet(held))
    async with running(books.run()):
        await until(lambda: books.devices.ledger.is_settled.value and books.devices.ledger.used)
        failures = 1
        await until(lambda: failures <= 0)
        books.driver.in_containers.clear()
        await until(lambda: not books.driver.vnpus)


async def test_a_pod_that_runs_without_its_devices_is_told_once_and_counted_until_it_ends(
    books: Books, monkeypatch: Patch
) -> None:
    reads = 0

    def held() -> Mapping[str, None]:
        nonlocal reads
        reads += 1
        return {"one": None}

    serve(monkeypatch, books.kubelet(held))
    one = books.pod("one", 0, started=True)
    async with running(books.run()):
        for number in range(20):
            books.show(one)
            await until(lambda: books.on_event)
            await asyncio.sleep(0.001)
            if number == 0:
                reads = 0
        assert books.without == 1
        assert reads <= 1
        books.pods.on_delete(one)
        await until(lambda: books.without == 0)
    ((key, reason, sentence),) = books.on_event
    assert (key, reason) == ("default/one", "NPURunsWithoutChips")
    assert "the kubelet did not know the resource when it admitted the pod" in sentence
    assert books.entries == {}


@pytest.mark.looptime
async def test_the_kubelets_ledger_is_read_once_a_second_at_most_and_with_backoff(
    books: Books, monkeypatch: Patch
) -> None:
    reads: list[float] = []

    async def failing(_socket: Path, _device_type: DeviceType) -> PodResources:
        reads.append(asyncio.get_running_loop().time())
        raise Unreachable("nobody there")

    serve(monkeypatch, failing, None)
    async with running(books.run()):
        await asyncio.sleep(10)
        reads.clear()
        books.show(books.pod("puzzling", 0, started=True))
        await asyncio.sleep(60)
        assert len(reads) <= 8
        for number in range(100):
            books.show(books.pod(f"puzzling-{number}", 0, started=True))
            await asyncio.sleep(0.1)
        assert len(reads) > 5
        assert min(later - earlier for earlier, later in itertools.pairwise(reads)) >= 1.0


# The kubelet has lost its checkpoint.


async def settled(books: Books, monkeypatch: Patch, **held: int) -> None:
    """Let the reconciler read a kubelet's ledger that has these devices, and nothing for the other pods."""
    serve(monkeypatch, books.kubelet(lambda: {each.name: held.get(each.name) for each in books.pods}))
    async with running(books.run()):
        await books.reconciler.restore()


async def test_a_claim_stands_for_the_kubelets_ledger_if_that_has_nothing(books: Books, monkeypatch: Patch) -> None:
    books.show(books.pod("one", 0, claims=0, started=True))
    await settled(books, monkeypatch)
    assert books.entries == {"default/one": 0}
    ((_, reason, sentence),) = books.on_event
    assert reason == "NPUAllocationMismatch"
    assert sentence.startswith("it keeps ")
    assert "was the kubelet's checkpoint lost?" in sentence


async def test_a_claim_never_beats_what_another_pod_has_in_the_kubelets_ledger(
    books: Books, monkeypatch: Patch
) -> None:
    books.show(books.pod("forger", 0, claims=0, started=True), books.pod("owner", 0, started=True))
    await settled(books, monkeypatch, owner=0)
    assert books.entries == {"default/owner": 0}
    assert [(key, reason) for key, reason, _ in books.on_event] == [("default/forger", "NPURunsWithoutChips")]
    assert books.without == 1


async def test_a_believed_claim_gives_way_to_an_entry_of_the_kubelets_ledger(books: Books, monkeypatch: Patch) -> None:
    books.show(books.pod("forger", 0, claims=0, started=True))
    await settled(books, monkeypatch)
    assert books.entries == {"default/forger": 0}
    books.show(books.pod("owner", 0, started=True))
    await settled(books, monkeypatch, owner=0)
    assert books.entries == {"default/owner": 0}


async def test_a_claim_that_was_believed_at_the_start_gives_way_to_the_kubelets_ledger(
    books: Books, monkeypatch: Patch
) -> None:
    serve(monkeypatch, silent)
    books.driver.vnpus.add(books.vnpu(1))
    books.show(books.pod("owner", 0, claims=0, started=True), books.pod("forger", 1, claims=0, started=True))
    await books.reconciler.restore()
    assert books.entries == {"default/owner": 0, "default/forger": 0}
    await settled(books, monkeypatch, owner=0, forger=1)
    assert books.entries == books.counted == {"default/owner": 0, "default/forger": 1}
    assert not books.allocations.believed


async def test_of_two_claims_to_a_device_neither_is_entered(books: Books, monkeypatch: Patch) -> None:
    for name in ("one", "two"):
        books.show(books.pod(name, 0, claims=0, started=True))
    books.show(books.pod("three", 1, claims=1, started=True))
    await settled(books, monkeypatch)
    assert books.entries == {"default/three": 1}
    assert {key for key, reason, _ in books.on_event if reason == "NPUAllocationMismatch"} == {
        "default/one",
        "default/two",
        "default/three",
    }


async def test_ids_given_again_by_a_kubelet_that_lost_them_take_nothing_from_their_pod(
    books: Books, monkeypatch: Patch
) -> None:
    # The kubelet had no preference in time, and gives a pod the ids of devices that it does not know to be in use.
    books.allocations.add(books.allocation("old", 0))
    books.show(books.pod("old", 0, claims=0, started=True))
    books.answer("guess", 2, ids=0)
    books.show(books.pod("guess", 2), books.pod("new", 3, started=True))
    await settled(books, monkeypatch, new=0)
    assert books.entries == {"default/old": 0, "default/new": 2}
