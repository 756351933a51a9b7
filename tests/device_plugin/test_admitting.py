"""Admission calls are matched with pods: the same rules for whole chips, static vNPUs and AI cores."""

import asyncio
from collections.abc import Sequence

import pytest

from ascend.daemon.observable import Observable
from ascend.errors import Refusal, Unreachable
from ascend.kube.objects import Pod
from device_plugin.device_types import CORES
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.health.snapshot import Chip, Snapshot
from device_plugin.ledger.allocations import Allocation
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from tests.device_plugin.books import TYPES, Books, serve, silent

pytestmark = pytest.mark.looptime


class Node:
    """A matcher; the kubelet and the API server answer what the test says.

    Attributes:
        listed: the kubelet's list of pods; None: it does not answer.
        api: the API server's list of pods.
        asked: who was asked.
    """

    def __init__(self, books: Books) -> None:
        self.books = books
        numbers = (
            range(8) if books.device_type == CORES else [each for number in range(8) for each in books.ids(number)]
        )
        facts = tuple(ChipFacts(number, number, hbm_mb=65536) for number in numbers)
        server = Inventory("Ascend910B", facts, ai_cores=20)
        snapshots: Observable[Snapshot | None] = Observable(Snapshot(server, tuple(map(Chip, facts))))
        self.listed: list[Pod] | None = []
        self.api: list[Pod] = []
        self.asked: list[str] = []
        self.matcher = AdmissionMatcher(
            snapshots=snapshots,
            devices=books.devices,
            finder=AdmittedPodFinder(
                books.pods, books.allocations, kubelet_pods=self._kubelet_pods, api_pods=self._api_pods
            ),
            refresh=self._refresh,
            on_allocation=books.claimed.append,
        )

    async def _kubelet_pods(self) -> Sequence[Pod]:
        self.asked.append("kubelet")
        if self.listed is None:
            raise Unreachable("the kubelet does not answer")
        return self.listed

    async def _api_pods(self) -> Sequence[Pod]:
        self.asked.append("api")
        return self.api

    async def _refresh(self) -> None:
        self.asked.append("refresh")
        known = {each.uid for each in self.api}
        for pod in [each for each in self.books.pods if each.uid not in known]:
            self.books.pods.on_delete(self.books.pod(pod.name, uid=pod.uid))
        self.books.show(*self.api)

    def show(self, *pods: Pod) -> None:
        """Have watch, kubelet and API server show pods."""
        self.books.show(*pods)
        self.api += pods
        self.listed = [*(self.listed or []), *pods]

    def names(self, number: int) -> list[str]:
        """The ids with a number."""
        return [self.books.device_type.device_name(each) for each in self.books.ids(number)]

    async def admit(self) -> Allocation:
        """Admit as a kubelet does that offers all ids: ask for a preference, use it, and allocate."""
        names = [name for number in range(8) for name in self.names(number)]
        ids = await self.matcher.prefer(names, [], self.books.count) or self.names(7)
        return (await self.matcher.allocate(ids)).allocation


@pytest.fixture(params=TYPES, ids=["chips", "vNPUs", "AI cores"])
def node(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Node:
    serve(monkeypatch, silent, None)
    return Node(Books(request.param))


async def test_the_kubelet_is_asked_once_for_each_container(node: Node) -> None:
    node.show(node.books.pod("one", 2))
    allocation = await node.admit()
    assert (allocation.pod, allocation.chips) == ("default/one", node.books.chips(2))
    assert allocation.name
    assert allocation.matches_kubelet
    assert node.books.claimed == [allocation]
    assert node.asked == ["kubelet"]


async def test_a_repeated_call_gets_the_same_answer(node: Node) -> None:
    node.show(node.books.pod("one", 2))
    first = await node.matcher.allocate(node.names(2))
    assert await node.matcher.allocate(node.names(2)) == first
    assert len(node.books.claimed) == 1


async def test_of_several_candidates_the_one_that_the_kubelet_lists_is_under_admission(node: Node) -> None:
    late = node.books.pod("late", 1)
    node.show(node.books.pod("early", 0), late)
    node.listed = [late]
    assert (await node.admit()).pod == "default/late"


async def test_without_the_kubelets_list_a_guess_is_not_taken_for_a_match(node: Node) -> None:
    node.show(node.books.pod("one", 0))
    node.listed = None
    assert (await node.admit()).chips == node.books.chips(0)
    assert node.asked == ["kubelet", "kubelet"]


async def test_what_a_pod_created_and_deleted_unseen_had_goes_to_the_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, node.books.kubelet({}), None)
    node.books.allocations.give(whole(node.books, "ghost", 0), node.books.ids(0))
    node.show(node.books.pod("next", 0))
    assert (await node.admit()).pod == "default/next"
    assert "uid-ghost" not in {each.uid for each in node.books.devices.ledger.holding}


async def test_a_forged_pod_in_the_watch_causes_no_request(node: Node) -> None:
    node.books.show(node.books.pod("holder", 0, started=True))
    node.books.allocations.add(whole(node.books, "holder", 0))
    forged = node.books.pod("forged", 0)
    node.show(forged)
    with pytest.raises(Refusal, match=r"(held by pod default/holder|pod default/holder has it as a whole)"):
        await node.admit()
    assert set(node.asked) == {"kubelet"}
    assert forged.uid in node.books.allocations.refused


def whole(books: Books, name: str, number: int) -> Allocation:
    """What a pod was given that leaves nothing to others."""
    if books.device_type != CORES:
        return books.allocation(name, number)
    return Allocation(f"uid-{name}", f"default/{name}", books.chips(number), tuple(range(60, 80)), device_type=CORES)


async def test_a_pod_that_ends_while_the_watch_catches_up_gets_nothing(node: Node) -> None:
    node.books.allocations.add(whole(node.books, "ghost", 0))
    node.listed = [node.books.pod("late", 0)]
    with pytest.raises(Refusal, match="has ended before it got its"):
        await node.matcher.allocate(node.names(0))


async def test_a_call_for_no_device_or_an_unknown_one_is_refused_at_once(node: Node) -> None:
    for ids in ([], ["npu-0"]):
        with pytest.raises(Refusal, match=r"no device|npu-0"):
            await node.matcher.allocate(ids)
    assert asyncio.get_running_loop().time() < 1


async def test_a_call_that_fits_no_pod_is_refused_in_time(node: Node) -> None:
    with pytest.raises(Refusal, match="no pod bound to this node waits for"):
        await node.matcher.allocate(node.names(0))
    assert asyncio.get_running_loop().time() <= 3
