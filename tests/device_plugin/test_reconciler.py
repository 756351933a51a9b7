"""The plugin's ledger after a restart, and its differences from the kubelet's ledger."""

import asyncio
from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL, write_claim
from ascend.chips import RESOURCE, join_names
from ascend.errors import Unreachable
from ascend.kube.objects import PODS, Pod
from device_plugin.device_types import DeviceType
from device_plugin.kubelet.pod_resources import PodResources, read_ledger
from device_plugin.ledger.adoption import adopt
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart
from device_plugin.ledger.node_pods import NodePod, read_pod
from device_plugin.pods import reconciler as reconcile_module
from tests.device_plugin.api import running, until
from tests.device_plugin.books import Books
from tests.device_plugin.builders import pod, vnpu_pod
from tests.device_plugin.whole import Whole, asking, check_hand_over, whole_node, written
from tests.sandbox.kubelet.peer import Plugin as Peer


async def unclaim(whole: Whole, name: str) -> None:
    """Remove a pod's claim, as if the plugin had died before it wrote it."""
    undone = {REAL: None, KUBELET_IDS: None, CONFIGURATION: None, PREDICATE_TIME: "1"}
    await whole.client.patch(PODS, name, {"metadata": {"annotations": undone}}, namespace="default")
    await until(lambda: REAL not in (found.metadata.annotations if (found := whole.find(name)) else {REAL: ""}))


async def run_with_ids(whole: Whole, name: str, chips: tuple[int, ...], kubelet_ids: tuple[int, ...]) -> None:
    """Run a pod whose ids in the kubelet's ledger differ from its chips; no plugin runs afterwards."""
    kubelet = whole.node.kubelet
    async with Peer(kubelet.socket_dir) as peer:
        peer.prefer = lambda _available, _chosen, _size: [f"Ascend910-{chip_id}" for chip_id in kubelet_ids]
        await peer.register()
        await kubelet.until(lambda: kubelet.allocatable(RESOURCE) == 8)
        await whole.bind(name, *chips)
        await until(lambda: (found := whole.find(name)) is not None and found.status.phase == "Running")


async def test_the_ledger_is_the_same_after_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            await whole.bind("one", 5, 4)
            await whole.bind("two", 0, 1, 2, 3)
            await whole.claimed("one")
            await whole.claimed("two")
            before = {each.pod: each.chip_set for each in plugin.allocations}
        async with whole.plugin() as plugin:
            assert {each.pod: each.chip_set for each in plugin.allocations} == before
            await whole.bind("three", 7, 6)
            check_hand_over(whole, await whole.claimed("three"))
            assert plugin.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 0


async def test_a_missing_claim_is_written_after_the_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("one", 5, 4)
            await whole.claimed("one")
        await unclaim(whole, "one")
        async with whole.plugin() as plugin:
            one = await whole.claimed("one")
            check_hand_over(whole, one)
            assert (await whole.annotations("one"))[CONFIGURATION].startswith('{"pod_name":"one"')
            (entry,) = plugin.allocations
            assert (entry.uid, entry.chips) == (one.uid, (5, 4))


async def test_if_the_kubelets_ids_differ_the_claim_has_both(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (6, 7))
        async with whole.plugin() as plugin:
            one = await whole.claimed("one")
            assert one.metadata.annotations[ALLOCATED] == one.metadata.annotations[REAL] == "Ascend910-0,Ascend910-1"
            assert one.metadata.annotations[KUBELET_IDS] == "Ascend910-6,Ascend910-7"
            (entry,) = plugin.allocations
            assert (entry.chips, entry.kubelet_ids, entry.matches_kubelet) == ((0, 1), (6, 7), False)


async def test_ids_that_another_plugin_gives_again_say_nothing_of_the_chips_given_for_them_before(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        await whole.bind("earlier", 6, 7)
        await whole.claimed("earlier")
        await until(lambda: not plugin.allocations.unconfirmed)
        await whole.client.delete(PODS, "earlier", "default", grace_s=0)
        await until(lambda: not [*plugin.allocations])
        await run_with_ids(whole, "one", (0, 1), (6, 7))
        one = await whole.claimed("one")
        assert one.metadata.annotations[REAL] == "Ascend910-0,Ascend910-1"
        assert one.metadata.annotations[KUBELET_IDS] == "Ascend910-6,Ascend910-7"


async def test_a_pod_without_a_grant_is_claimed_with_the_kubelets_chips(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (6, 7))
        await whole.client.patch(PODS, "one", {"metadata": {"annotations": {ALLOCATED: None}}}, namespace="default")
        async with whole.plugin():
            one = await whole.claimed("one")
            assert written(one, REAL) == written(one, KUBELET_IDS) == 0b1100_0000


async def test_missing_hand_overs_are_adopted_once_the_kubelet_answers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "RETRY_S", 0.001)
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (6, 7))
        later = folder / "later.sock"
        books = Books(socket=later)
        one = whole.find("one")
        assert one is not None
        books.pods.on_apply(one)
        await books.reconciler.restore()
        assert books.given == {}
        async with running(books.reconciler.run()):
            later.symlink_to(whole.node.kubelet.pod_resources_socket)
            await until(lambda: books.given)
        assert books.given == {"default/one": ((0, 1), (6, 7))}
        assert [each.uid for each in books.claimed] == [one.uid]


async def test_a_hand_over_of_an_unknown_pod_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_module, "RETRY_S", 0.001)
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (0, 1))
        books = Books(socket=whole.node.kubelet.pod_resources_socket)
        books.allocations.add(Allocation("uid-unseen", "default/one", (0, 1), (0, 1)))
        books.allocations.add(Allocation("uid-orphan", "default/orphan", (2, 3), (2, 3)))
        async with running(books.reconciler.run()):
            await until(lambda: "uid-orphan" not in books.allocations)
            assert "uid-unseen" in books.allocations
        assert books.claimed == []


async def test_the_kubelets_ledger_is_read_by_pod_and_container(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (7, 6))
        ledger = await read_ledger(whole.node.kubelet.pod_resources_socket)
        assert ledger == PodResources({"default/one": {"main": (6, 7)}})


async def test_an_unreadable_ledger_is_unreachable(folder: Path) -> None:
    with pytest.raises(Unreachable, match=r"pod-resources on .*none\.sock"):
        await read_ledger(folder / "none.sock")
    async with whole_node(folder) as whole:
        async with Peer(whole.node.kubelet.socket_dir) as peer:
            peer.health = {"npu-0": "Healthy"}
            await peer.register()
            await whole.node.kubelet.until(lambda: whole.node.kubelet.allocatable(RESOURCE) == 1)
            await whole.bind("one", 0)
            await until(lambda: (found := whole.find("one")) is not None and found.status.phase == "Running")
        with pytest.raises(Unreachable, match="'npu-0' is not a chip name"):
            await read_ledger(whole.node.kubelet.pod_resources_socket)


async def test_a_forged_claim_takes_no_chips_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("holder", 0, 1)
            await whole.claimed("holder")
        with_claim = {ALLOCATED: join_names((0, 1)), **write_claim(chips=(0, 1), kubelet_ids=(0, 1), configuration="")}
        async with whole.plugin() as plugin:
            forged = await whole.bind("forged", 0, 1)
            await whole.client.patch(PODS, "forged", {"metadata": {"annotations": with_claim}}, namespace="default")
            await until(lambda: (found := whole.find("forged")) is not None and found.status.phase == "Failed")
            assert forged.uid not in plugin.allocations
            assert [each.pod for each in plugin.allocations] == ["default/holder"]


async def test_a_changed_claim_is_repaired(folder: Path) -> None:
    # A reader that counts chips by AscendReal would consider the pod's chips free.
    async with whole_node(folder) as whole, whole.plugin():
        await whole.bind("one", 0, 1)
        await whole.claimed("one")
        for change in ("Ascend910-6,Ascend910-7", "nonsense", None):
            spoilt = await whole.client.patch(
                PODS, "one", {"metadata": {"annotations": {REAL: change}}}, namespace="default"
            )
            await until(lambda spoilt=spoilt: _is_after(whole.find("one"), spoilt) and _is_right(whole.find("one")))  # type: ignore[misc]  # bound in a loop
            check_hand_over(whole, await whole.claimed("one"))


def _is_after(pod: Pod | None, earlier: Pod) -> bool:
    return pod is not None and int(pod.metadata.resource_version) > int(earlier.metadata.resource_version)


def _is_right(pod: Pod | None) -> bool:
    return pod is not None and pod.metadata.annotations.get(REAL) == pod.metadata.annotations[ALLOCATED]


async def test_an_ascend_real_from_before_the_hand_over_is_not_a_claim(folder: Path) -> None:
    # Volcano writes it at scheduling time on some pods (docs/spec/hand-over.md#annotations-of-a-pod-with-chips), and a
    # pod's author can.
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("one", 0, 1)
            await whole.claimed("one")
        undone = {REAL: "Ascend910-6,Ascend910-7", KUBELET_IDS: None, CONFIGURATION: None, PREDICATE_TIME: "1"}
        await whole.client.patch(PODS, "one", {"metadata": {"annotations": undone}}, namespace="default")
        await until(lambda: (one := whole.find("one")) is not None and PREDICATE_TIME in one.metadata.annotations)
        async with whole.plugin() as plugin:
            await until(lambda: (one := whole.find("one")) is not None and KUBELET_IDS in one.metadata.annotations)
            check_hand_over(whole, await whole.claimed("one"))
            assert [each.chips for each in plugin.allocations] == [(0, 1)]


async def test_the_kubelets_ledger_overrides_a_claim_changed_before_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("one", 0, 1)
            await whole.claimed("one")
        before = whole.find("one")
        change = {"metadata": {"annotations": {REAL: "Ascend910-6,Ascend910-7"}}}
        await whole.client.patch(PODS, "one", change, namespace="default")
        await until(lambda: whole.find("one") != before)
        async with whole.plugin() as plugin:
            await until(lambda: (one := whole.find("one")) is not None and written(one, REAL) == 0b11)
            assert [each.chips for each in plugin.allocations] == [(0, 1)]


async def test_containers_are_restored_and_a_partly_admitted_pod_continues(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("many", 5, 4, 7, 6, asks=asking("i1 s1 a2 a1"))
            check_hand_over(whole, await whole.claimed("many"))
        await unclaim(whole, "many")
        async with whole.plugin() as plugin:
            check_hand_over(whole, await whole.claimed("many"))
            (entry,) = plugin.allocations
            assert entry.chips == (5, 4, 7, 6)
            assert [part.container for part in entry.parts] == ["init-0", "sidecar-1", "app-2", "app-3"]
            assert entry.matches_kubelet


async def test_a_pod_with_chips_for_an_init_container_only_is_restored(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await whole.bind("only-init", 5, 4, asks=asking("i2"))
            await whole.claimed("only-init")
        await unclaim(whole, "only-init")
        async with whole.plugin() as plugin:
            one = await whole.claimed("only-init")
            assert written(one, REAL) == written(one, KUBELET_IDS) == 0b11_0000
            assert [each.chips for each in plugin.allocations] == [(5, 4)]


@pytest.mark.parametrize("claimed", [False, True], ids=["MindCluster's", "ours"])
def test_a_vnpu_without_our_claim_is_the_one_that_the_kubelet_has_chosen(*, claimed: bool) -> None:
    two = DeviceType("2c")
    written, chosen = (two.parse(f"Ascend910-2c-{vdev_id}-1") for vdev_id in (100, 101))
    runs = vnpu_pod("old", two.device_name(written), started=True)
    if claimed:
        runs.metadata.annotations.update({REAL: two.device_name(written), PREDICATE_TIME: str(CLAIMED)})
    allocation = adopt(read_pod(runs, 1, two), {"main": (chosen,)}, {}, admitted=True)
    has = written if claimed else chosen
    assert (allocation.chips, allocation.kubelet_ids) == ((has,), (chosen,))
    assert [(part.chips, part.kubelet_ids) for part in allocation.parts] == [((has,), (chosen,))]


async def test_chips_of_another_container_are_distinguished_on_restore() -> None:
    books = Books()
    (many,) = applied(books, pod("many", 0, 0, 1, 2, 3, time=1, asks={"left": 2, "right": 2}))
    allocation = adopt(many, {"left": (0, 7)}, {}, admitted=False)
    assert [(part.container, part.chips, part.kubelet_ids) for part in allocation.parts] == [("left", (0, 1), (0, 7))]
    assert set(allocation.kubelet_ids) == {0, 7, 2, 3}
    assert not allocation.matches_kubelet


def test_an_answer_is_matched_with_its_pod_by_the_kubelets_ids() -> None:
    swapped = read_pod(pod("swapped", 0, 0, 1, 2, time=1, asks={"left": 2, "right": 1}), 1)
    one = ContainerPart("one", keeps=True, chips=(6, 7), kubelet_ids=(4, 5))
    two = ContainerPart("two", keeps=True, chips=(3,), kubelet_ids=(3,))
    answers = {
        frozenset(part.kubelet_ids): Allocation.of_parts("u", "default/u", part.chips, (part,)) for part in (one, two)
    }
    truth = adopt(swapped, {"left": (4, 5), "right": (3,)}, answers, admitted=True)
    assert (truth.uid, truth.chips, truth.kubelet_ids) == ("uid-swapped", (6, 7, 3), (4, 5, 3))
    assert [(part.container, part.chips) for part in truth.parts] == [("left", (6, 7)), ("right", (3,))]
    restored = adopt(swapped, {"left": (0, 1), "right": (2,)}, answers, admitted=True)
    assert [(part.container, part.chips) for part in restored.parts] == [("left", (0, 1)), ("right", (2,))]


def test_answers_of_crossed_pods_are_those_of_the_pods_that_the_kubelet_shows() -> None:
    allocations = Allocations()
    given = {
        uid: ContainerPart("main", keeps=True, chips=ids, kubelet_ids=ids) for uid, ids in (("a", (0,)), ("b", (1,)))
    }
    for uid, part in given.items():
        allocations.give(Allocation.of_parts(uid, f"default/{uid}", part.chips, (part,)), part.kubelet_ids)
    assert allocations.answers_to("b").keys() == {frozenset({0}), frozenset({1})}
    # The call that was taken for a was b's.
    allocations.confirm(Allocation.of_parts("b", "default/b", (0,), (given["a"],)))
    assert allocations.answers_to("b").keys() == {frozenset({0}), frozenset({1})}
    assert allocations.answers_to("a").keys() == allocations.answers_to("later").keys() == {frozenset({1})}


def test_a_pod_whose_calls_were_taken_for_anothers_holds_what_its_init_container_had() -> None:
    real = read_pod(pod("real", 0, 0, 1, time=1, init={"prepare": 2}, asks={"main": 1}), 1)
    prepare = ContainerPart("prepare", keeps=False, chips=(4, 5), kubelet_ids=(4, 5))
    main = ContainerPart("main", keeps=True, chips=(5,), kubelet_ids=(5,))
    answers = {frozenset({5}): Allocation.of_parts("uid-other", "default/other", (4, 5), (prepare, main))}
    truth = adopt(real, {"main": (5,)}, answers, admitted=True)
    assert (truth.chips, truth.kept) == ((4, 5), {"main": (5,)})


def applied(books: Books, *pods: Pod) -> list[NodePod]:
    for each in pods:
        books.pods.on_apply(each)
    return list(books.pods)


@pytest.mark.parametrize(
    ("held", "admitted", "its_own"),
    [
        ({"main": (2, 3)}, False, True),
        ({"main": (0, 1)}, False, False),
        ({"main": (0, 1)}, True, True),
        ({"main": (2,)}, True, False),
        ({"other": (2, 3)}, True, False),
        ({}, False, False),
    ],
)
def test_a_recreated_pod_does_not_adopt_its_predecessors_chips(
    held: dict[str, tuple[int, ...]], *, admitted: bool, its_own: bool
) -> None:
    again = read_pod(pod("again", 2, 2, 3, time=1), 1)
    assert Books().devices.is_its_own(again, held, admitted=admitted, is_known=False) == its_own


async def test_a_waiting_pod_is_not_mistaken_for_a_running_one_of_its_name(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (0, 1))
        books = Books(socket=whole.node.kubelet.pod_resources_socket)
        books.pods.on_apply(pod("one", 2, 6, 7, time=5, uid="uid-again"))
        await books.reconciler.restore()
        assert books.given == {}
        books.pods.on_apply(pod("one", 2, 6, 7, time=5, uid="uid-again", started=True))
        await books.reconciler.restore()
        assert books.given == {"default/one": ((6, 7), (0, 1))}


async def test_a_waiting_pod_with_the_chips_of_its_predecessor_does_not_adopt_its_entry(folder: Path) -> None:
    """The kubelet's ledger has names, not uids, and shows the predecessor for a moment after its deletion is seen."""
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (0, 1))
        books = Books(socket=whole.node.kubelet.pod_resources_socket)
        part = ContainerPart("main", keeps=True, chips=(0, 1), kubelet_ids=(0, 1))
        books.allocations.give(Allocation("uid-earlier", "default/one", (0, 1), (0, 1), (part,)), (0, 1))
        books.allocations.drop("uid-earlier")
        books.pods.on_apply(pod("one", 2, 0, 1, time=5, uid="uid-again"))
        await books.reconciler.restore()
        assert books.given == {}
        # Its own call is answered with the same ids.
        books.allocations.give(Allocation("uid-again", "default/one", (0, 1), (0, 1), (part,)), (0, 1))
        books.pods.on_apply(pod("one", 2, 0, 1, time=5, uid="uid-again", started=True))
        await books.reconciler.restore()
        assert books.given == {"default/one": ((0, 1), (0, 1))}


async def test_a_hand_over_to_a_replaced_pod_is_dropped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile_module, "RETRY_S", 0.001)
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (0, 1))
        books = Books(socket=whole.node.kubelet.pod_resources_socket)
        one = whole.find("one")
        assert one is not None
        books.pods.on_apply(one)
        books.allocations.add(Allocation("uid-earlier", "default/one", (4, 5), (4, 5)))
        async with running(books.reconciler.run()):
            await until(lambda: [each.uid for each in books.allocations] == [one.uid])


async def test_other_ids_in_the_kubelets_ledger_are_counted_and_announced_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile_module, "RETRY_S", 0.001)
    async with whole_node(folder) as whole:
        await run_with_ids(whole, "one", (0, 1), (6, 7))
        books = Books(socket=whole.node.kubelet.pod_resources_socket)
        one = whole.find("one")
        assert one is not None
        async with running(books.reconciler.run()):
            for _ in range(3):
                books.pods.on_apply(one)
                await until(lambda: books.on_event)
                await asyncio.sleep(0)
        sentence = (
            "it was given Ascend910-0,Ascend910-1 as the allocator decided, but the kubelet's ledger has "
            "Ascend910-6,Ascend910-7"
        )
        assert books.on_event == [("default/one", "NPUAllocationMismatch", sentence)]
        assert books.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 1
