"""The kubelet has lost its checkpoint of devices while pods run: an empty ledger is no proof that a chip is free."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL, Grant
from ascend.chips import join_names
from ascend.errors import Refusal
from ascend.kube.objects import PODS
from ascend.kube.objects import Pod as ApiPod
from device_plugin.device_types import DeviceType
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.admission import chips_for
from device_plugin.pods import reconciler as reconcile_module
from tests.device_plugin.api import bound_pod, running, seen, until
from tests.device_plugin.books import Books
from tests.device_plugin.builders import pod, snapshot
from tests.device_plugin.whole import check_hand_over, whole_node


@pytest.mark.parametrize("choose_chips", [False, True], ids=["written", "chosen"])
async def test_no_pod_gets_a_running_pods_chips_after_loss_and_a_restart(folder: Path, *, choose_chips: bool) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin(choose_chips=choose_chips):
            await whole.bind("old", 0, 1)
            await whole.claimed("old")
        whole.node.kubelet.forget_devices()
        async with whole.plugin(choose_chips=choose_chips) as plugin:
            await until(lambda: [each.chips for each in plugin.allocations] == [(0, 1)])
            await seen(whole.report, lambda report: report.free == 0xFC)
            forged = bound_pod("forged", 2, Grant((0, 1), 1).annotations())
            await whole.client.create(PODS, forged, "default")
            assert "held by pod default/old" in await whole.failure("forged")
            if choose_chips:
                await whole.client.create(PODS, bound_pod("chosen", 2), "default")
                chosen = await whole.claimed("chosen")
                assert chosen.metadata.annotations[REAL] == "Ascend910-2,Ascend910-3"
            await whole.bind("next", 4, 5)
            check_hand_over(whole, await whole.claimed("next"))
            assert await whole.notes("NPURunsWithoutChips") == []
            (note,) = await whole.notes("NPUAllocationMismatch")
            assert note.startswith("it keeps Ascend910-0,Ascend910-1, which its claim has")
            assert [each.chips for each in plugin.allocations if each.pod == "default/old"] == [(0, 1)]
            await whole.client.delete(PODS, "old", "default")
            await whole.bind("last", 0, 1)
            check_hand_over(whole, await whole.claimed("last"))


def claim(*chips: int) -> Mapping[str, str]:
    """The annotations of a claim."""
    return {REAL: join_names(chips), PREDICATE_TIME: str(CLAIMED)}


def running_pod(name: str, count: int, *written: int, claims: tuple[int, ...] = ()) -> ApiPod:
    """A pod that the kubelet has admitted."""
    return pod(name, count, *written, started=True, annotations=claim(*claims) if claims else {})


async def settled(books: Books, monkeypatch: pytest.MonkeyPatch, held: Mapping[str, tuple[int, ...]]) -> None:
    """Let the reconciler read a kubelet's ledger that has these chips for containers called main."""

    async def read(_socket: Path, _device_type: DeviceType) -> PodResources:
        return PodResources({each.key: {"main": ids} if (ids := held.get(each.key)) else {} for each in books.pods})

    monkeypatch.setattr(reconcile_module, "read_ledger", read)
    async with running(books.reconciler.run()):
        await books.reconciler.restore()


async def test_a_claim_of_another_number_than_requested_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    books.pods.on_apply(running_pod("greedy", 1, 0, claims=(0, 1, 2, 3)))
    await settled(books, monkeypatch, {})
    assert books.given == {}
    assert [reason for _, reason, _ in books.on_event] == ["NPURunsWithoutChips"]


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        (running_pod("other", 1, 5, claims=(0,)), True),
        (running_pod("other", 1, 0), False),
        (running_pod("other", 1, 5, claims=(0, 1)), False),
        (pod("other", 1, 5, annotations=claim(0)), False),
        (pod("other", 1, phase="Failed", annotations=claim(0), started=True), False),
        (pod("other", 0, annotations=claim(0), started=True), False),
    ],
    ids=["claims", "claims nothing", "claims too many", "not admitted", "ended", "requests none"],
)
def test_a_running_pods_claim_holds_its_chips_without_a_hand_over(other: ApiPod, *, is_refused: bool) -> None:
    books = Books()
    books.pods.on_apply(waiting := pod("waiting", 1, 0, time=1))
    books.pods.on_apply(other)
    own = books.pods.get(waiting.uid)
    assert own is not None
    if is_refused:
        with pytest.raises(Refusal, match="held by pod default/other"):
            chips_for(own, snapshot(), {}, books.pods)
    else:
        assert chips_for(own, snapshot(), {}, books.pods) == (0,)
