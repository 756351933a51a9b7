"""Pods that request a vNPU: which one they get, and why they are refused."""

from typing import Any

import pytest

from allocator.decision.preemption import Preemption
from allocator.leadership.handover import HandOver
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import Suggestion
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, REAL
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.vnpus import Vnpu
from tests.allocator.builders import GROUP, World, node, owned_by, pod, report
from tests.allocator.vnpus import cut, cut_node, vnpu_pod


def place(world: World, name: str, suffix: str = "2c", **more: Any) -> tuple[str, str]:
    """Place a pod, show it bound, and return its node and vNPU."""
    made = world.engine.place(vnpu_pod(name, suffix, **more))
    assert made.take.vnpu is not None
    world.add(vnpu_pod(name, suffix, vnpu=made.take.vnpu, node=made.node, **more))
    return made.node, made.take.vnpu.name


def test_the_chip_with_the_most_parts_in_use_comes_first() -> None:
    world = World(vnpus_per_job=0)
    world.add(cut_node("a", cut([0, 1], parts=2)), cut_node("b", cut([0, 1], parts=2)))
    used = Vnpu("2c", 1, 102)
    world.add(vnpu_pod("old", vnpu=used, node="b"))
    # The chip of the other pod; then the other chip of that node; then an idle node.
    assert [place(world, name) for name in ("p", "q", "r", "s")] == [
        ("b", "Ascend910-2c-103-1"),
        ("b", "Ascend910-2c-100-0"),
        ("b", "Ascend910-2c-101-0"),
        ("a", "Ascend910-2c-100-0"),
    ]


def test_a_reserved_vnpu_is_not_free_and_is_free_again_when_released() -> None:
    world = World()
    world.add(cut_node("n1", cut([0], parts=1)))
    first = world.engine.place(vnpu_pod("p"))
    assert world.engine.place(vnpu_pod("p")) == first
    assert world.refusal(vnpu_pod("q")).reason is Reason.NO_FREE_VNPU
    world.engine.release("uid-p")
    assert world.engine.place(vnpu_pod("q")).take == first.take


def test_nodes_say_which_sizes_they_have_and_that_none_is_free() -> None:
    world = World()
    world.add(node("whole"), cut_node("small", cut([0], "2c")), cut_node("full", cut([0], "4c", parts=1)))
    world.add(vnpu_pod("old", "4c", vnpu=Vnpu("4c", 0, 100), node="full"))
    refused = world.engine.filter(vnpu_pod("p", "4c")).refused
    assert {name: (each.reason, each.message) for name, each in refused.items()} == {
        "whole": (Reason.NO_SUCH_VNPU, "1 vNPU Ascend910-4c requested, the node has no vNPUs"),
        "small": (Reason.NO_SUCH_VNPU, "1 vNPU Ascend910-4c requested, the node has only Ascend910-2c"),
        "full": (Reason.NO_FREE_VNPU, "1 vNPU Ascend910-4c requested, 0 free of 1 healthy"),
    }
    summary = world.refusal(vnpu_pod("p", "4c"))
    assert summary.message.startswith("pod default/p: 1 vNPU Ascend910-4c fits on none of 3 nodes: ")


def test_the_kubelet_has_to_offer_the_resource() -> None:
    world = World()
    world.add(cut_node("n1", cut([0]), allocatable={}))
    assert world.refusal(vnpu_pod("p")).reason is Reason.NO_ROOM_AT_KUBELET


def test_a_node_whose_chips_are_all_cut_takes_vnpus_and_no_chips() -> None:
    world = World()
    world.add(cut_node("n1", cut(range(8))))
    assert world.cluster.nodes["n1"].product is not None
    assert world.refusal(pod("whole", 1)).reason is Reason.NOT_ENOUGH_CHIPS
    assert place(world, "p") == ("n1", "Ascend910-2c-100-0")
    offered = cut_node("n2", cut(range(8)), allocatable={})
    world.add(offered)
    assert world.engine.filter(vnpu_pod("q")).refused["n2"].reason is Reason.RESOURCE_NOT_OFFERED


def test_whole_chips_beside_cut_ones_are_placed_as_before() -> None:
    world = World()
    world.add(cut_node("n1", cut(range(4))))
    assert place(world, "p")[0] == "n1"
    assert world.engine.place(pod("whole", 4)).take.chips == (4, 5, 6, 7)


def test_no_part_of_an_unhealthy_chip_is_given() -> None:
    world = World()
    world.add(cut_node("n1", cut([0, 1], parts=1)), report("n1", unhealthy=[0]))
    assert place(world, "p") == ("n1", "Ascend910-2c-101-1")
    assert world.refusal(vnpu_pod("q"), ["n1"]).message == "1 vNPU Ascend910-2c requested, 0 free of 1 healthy"


def test_what_the_plugin_reports_counts_beside_what_was_written() -> None:
    world = World()
    first, second, third = cut([0], parts=3)
    world.add(cut_node("n1", [first, second, third]))
    world.add(vnpu_pod("swapped", vnpu=first, real=second, node="n1"))
    assert place(world, "p") == ("n1", third.name)


def test_a_pod_of_unknown_vnpu_closes_the_parts_of_its_node_only() -> None:
    world = World()
    world.add(cut_node("n1", cut([0])), vnpu_pod("foreign", node="n1"))
    refusal = world.refusal(vnpu_pod("p"), ["n1"])
    assert refusal.reason is Reason.UNREADABLE_POD
    assert "pod default/foreign is bound with 1 vNPU Ascend910-2c" in refusal.message
    assert world.engine.place(pod("whole", 4)).take.chips == (4, 5, 6, 7)
    for text in ("Ascend910-4c-100-0", "Ascend910-2c", "x"):
        world.add(vnpu_pod("foreign", node="n1", annotations={f"{RESOURCE}-2c": text}))
        assert world.refusal(vnpu_pod("p")).reason is Reason.UNREADABLE_POD
    world.add(vnpu_pod("foreign", node="n1", annotations={REAL: "Ascend910-2c-100-0"}))
    assert place(world, "p") == ("n1", "Ascend910-2c-101-0")


def test_a_pod_of_unknown_vnpu_closes_only_those_of_its_size() -> None:
    world = World()
    world.add(cut_node("n1", [*cut([0], "2c"), *cut([1], "4c", parts=2, first=200)]))
    world.add(vnpu_pod("foreign", "7c", node="n1", phase="Running"))
    assert place(world, "p") == ("n1", "Ascend910-2c-100-0")
    world.add(vnpu_pod("lost", "4c", node="n1", phase="Running"))
    assert world.refusal(vnpu_pod("q", "4c"), ["n1"]).message == (
        "the free vNPUs Ascend910-4c are unknown: "
        "pod default/lost is bound with 1 vNPU Ascend910-4c, but no annotation names it"
    )
    assert place(world, "r") == ("n1", "Ascend910-2c-101-0")


def test_a_pod_without_a_vnpu_takes_no_more_than_one_where_our_plugin_serves() -> None:
    world = World()
    world.add(cut_node("n1", cut([1], "4c", parts=2, first=200)), report("n1", ours=True))
    world.add(vnpu_pod("lost", "4c", node="n1", phase="Running"))
    assert place(world, "p", "4c")[0] == "n1"
    assert world.refusal(vnpu_pod("q", "4c"), ["n1"]).reason is not Reason.UNREADABLE_POD


def test_a_chip_is_not_free_while_a_pod_has_a_part_of_it() -> None:
    # It was cut, and is whole again in the annotation.
    world = World()
    part = Vnpu("2c", 0, 100)
    world.add(node("n1"), vnpu_pod("old", vnpu=part, node="n1"))
    offer = world.cluster.nodes["n1"].offer
    assert isinstance(offer, Vacancy)
    assert offer.free == 0xFE
    assert offer.room == 8
    # It was whole, and is cut now.
    world.add(cut_node("n2", cut([1])), pod("whole", 1, node="n2", chips=[1]))
    assert world.engine.filter(vnpu_pod("p")).refused["n2"].reason is Reason.NO_FREE_VNPU


@pytest.mark.parametrize("recut", [Vnpu("2c", 2, 100), Vnpu("4c", 1, 100)])
def test_a_vdev_id_that_is_used_again_is_not_free_while_a_pod_has_it(recut: Vnpu) -> None:
    old, other = Vnpu("2c", 1, 100), Vnpu(recut.suffix, recut.chip, 101)
    world = World()
    world.add(cut_node("n1", [recut, other]), vnpu_pod("old", vnpu=old, node="n1"))
    assert place(world, "p", recut.suffix) == ("n1", other.name)
    # The same while it is only reserved.
    world = World()
    world.add(cut_node("n1", [old]))
    world.engine.place(vnpu_pod("old"))
    world.add(cut_node("n1", [recut, other]))
    assert place(world, "p", recut.suffix) == ("n1", other.name)


def test_no_part_is_given_of_a_chip_that_is_reserved_as_a_whole() -> None:
    world = World()
    world.add(cut_node("n1", []))
    assert world.engine.place(pod("whole", 4)).take.chips == (0, 1, 2, 3)
    world.add(cut_node("n1", cut([1, 5], parts=1)))
    assert place(world, "p") == ("n1", "Ascend910-2c-101-5")
    assert world.engine.filter(vnpu_pod("q")).refused["n1"].reason is Reason.NO_FREE_VNPU


@pytest.mark.parametrize(
    ("annotations", "labels", "reason", "words"),
    [
        ({}, {"tor-affinity": "large-model-schema"}, Reason.UNSUPPORTED_POLICY, "tor-affinity"),
        ({"sp-block": "16"}, {}, Reason.UNSUPPORTED_POLICY, "this one requests 1 vNPU Ascend910-2c; remove"),
        ({"huawei.com/schedule_policy": "chip8-node8"}, {}, Reason.WRONG_PRODUCT, "910B-8"),
    ],
)
def test_a_vnpu_with_what_only_whole_chips_have_is_refused(
    annotations: dict[str, str], labels: dict[str, str], reason: Reason, words: str
) -> None:
    world = World()
    world.add(cut_node("n1", cut([0])))
    with pytest.raises(Refusal) as refused:
        world.engine.place(vnpu_pod("p", annotations=annotations, labels=labels), ["n1"])
    assert refused.value.reason is reason
    assert words in refused.value.message
    place(world, "q", labels={"tor-affinity": "null"})


def test_chips_and_a_vnpu_in_one_pod_are_refused() -> None:
    both = pod("both", containers=[Container("main", Resources(limits={RESOURCE: "1", f"{RESOURCE}-2c": "1"}))])
    world = World()
    world.add(cut_node("n1", cut([0])))
    with pytest.raises(Refusal, match="requests both whole chips and vNPUs"):
        world.engine.place(both)


def of_job(name: str) -> Pod:
    return owned_by(vnpu_pod(name), "PyTorchJob", "kubeflow.org/v1")


def test_the_limit_of_vnpus_of_a_job_can_be_lifted() -> None:
    for most, fit in ((1, 1), (2, 2), (0, 3)):
        world = World(vnpus_per_job=most)
        world.add(cut_node("n1", cut([0])))
        pods = [of_job(name) for name in "abc"]
        for each in pods[:fit]:
            world.add(each)
            world.engine.place(each)
        for each in pods[fit:]:
            refusal = world.refusal(each)
            assert refusal.reason is Reason.INVALID_REQUEST
            assert f"a job may have {most if most > 1 else 'one'}" in refusal.message


def of_set(rank: int, **more: Any) -> Pod:
    labels = {"apps.kubernetes.io/pod-index": str(rank)}
    return owned_by(vnpu_pod(f"train-{rank}", labels=labels, **more), "StatefulSet", "apps/v1")


def test_of_the_waiting_pods_of_a_job_the_first_one_may_have_the_vnpu() -> None:
    world = World()
    vnpus = cut([0])
    world.add(cut_node("n1", vnpus), of_set(0, vnpu=vnpus[0], node="n1"), of_set(1))
    assert world.refusal(of_set(1)).reason is Reason.INVALID_REQUEST
    # A fault deletes the first, and its controller creates it again: each only waits.
    world.add(of_set(0))
    assert world.refusal(of_set(1)).reason is Reason.INVALID_REQUEST
    world.engine.place(of_set(0))
    assert world.refusal(of_set(1)).reason is Reason.INVALID_REQUEST


def test_a_pod_that_has_its_vnpu_keeps_it_when_an_earlier_one_comes() -> None:
    world = World()
    world.add(cut_node("n1", cut([0])), of_set(1))
    made = world.engine.place(of_set(1))
    world.add(of_set(0))
    assert world.engine.place(of_set(1)) == made
    assert world.refusal(of_set(0)).reason is Reason.INVALID_REQUEST


def test_a_gang_of_pods_with_vnpus_is_placed_together_or_not_at_all() -> None:
    world = World(vnpus_per_job=0)
    world.add(cut_node("a", cut([0], parts=2)), cut_node("b", cut([0], parts=1)))
    pods = [vnpu_pod(f"train-{rank}", annotations={GROUP: "train", MIN_AVAILABLE: "4"}) for rank in range(4)]
    world.add(*pods)
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "4 pods must be placed together" in refusal.message
    assert "1 vNPU Ascend910-2c" in refusal.message
    world.add(cut_node("b", cut([0], parts=2)))
    seats = [world.engine.place(each) for each in pods]
    assert {(each.node, *each.take.names) for each in seats} == {
        (name, vnpu.name) for name in "ab" for vnpu in cut([0], parts=2)
    }


def test_a_binding_of_unknown_outcome_keeps_its_vnpu() -> None:
    world = World()
    world.add(cut_node("n1", cut([0], parts=1)))
    world.engine.place(vnpu_pod("p"))
    world.ledger.advance("uid-p", Stage.DOUBTFUL)
    world.now_s += 1000
    assert world.refusal(vnpu_pod("q")).reason is Reason.NO_FREE_VNPU


def victim(world: World, preemptor: Pod, name: str = "n1") -> list[str] | Refusal:
    found = Preemption(world.cluster, world.ledger, world.engine).victims(preemptor, name)
    return found if isinstance(found, Refusal) else [each.pod for each in found.victims]


def test_the_least_important_pod_with_a_vnpu_of_the_size_is_preempted() -> None:
    world = World()
    two, four = cut([0], parts=3), cut([1], "4c", parts=1, first=200)
    world.add(cut_node("n1", [*two, *four]), vnpu_pod("other-size", "4c", vnpu=four[0], node="n1"))
    for priority, vnpu in zip((3, 1, 2), two, strict=True):
        world.add(vnpu_pod(f"p{priority}", vnpu=vnpu, node="n1", priority=priority, phase="Running"))
    urgent = vnpu_pod("urgent", priority=3)
    assert victim(world, urgent) == ["default/p1"]
    assert victim(world, pod("whole", 1, priority=9)) == []
    low = victim(world, vnpu_pod("low", priority=1))
    assert isinstance(low, Refusal)
    assert low.reason is Reason.NO_FREE_VNPU
    world.add(vnpu_pod("p3", vnpu=two[0], node="n1", priority=3, terminating=True))
    assert victim(world, urgent) == ["default/p3"]


async def test_victims_of_the_scheduler_for_other_resources_stay() -> None:
    world = World()
    (only,) = cut([0], parts=1)
    world.add(cut_node("n1", [only]), vnpu_pod("low", vnpu=only, node="n1", phase="Running"))
    world.add(pod("chips", 1, node="n1", chips=[5], phase="Running"))
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    urgent = vnpu_pod("urgent", priority=9)
    chosen = await preemption.improve(urgent, {"n1": Suggestion(("uid-low", "uid-chips"))})
    assert chosen is not None
    assert {each.uid for each in chosen.victims} == {"uid-low", "uid-chips"}


async def test_a_gang_with_vnpus_preempts_nothing() -> None:
    world = World(vnpus_per_job=0)
    (only,) = cut([0], parts=1)
    world.add(cut_node("n1", [only]), vnpu_pod("low", vnpu=only, node="n1", phase="Running"))
    marks = {GROUP: "train", MIN_AVAILABLE: "2"}
    pods = [vnpu_pod(f"train-{rank}", annotations=marks, priority=9) for rank in range(2)]
    world.add(*pods)
    with pytest.raises(Refusal, match="preempt no others"):
        await Preemption(world.cluster, world.ledger, world.engine).improve(pods[0], {"n1": Suggestion(("uid-low",))})


def test_the_note_to_the_next_leader_has_vnpus() -> None:
    world = World()
    world.add(cut_node("n1", cut([0], parts=2)), vnpu_pod("p"))
    made = world.engine.place(vnpu_pod("p"))
    world.ledger.advance("uid-p", Stage.DOUBTFUL, predicate_time=5)
    note = HandOver(world.cluster, world.ledger).write()
    assert note is not None
    assert made.take.vnpu is not None
    for held, read in ((None, 1), (made.take.vnpu, 0), (Vnpu("4c", 1, made.take.vnpu.vdev_id), 0)):
        successor = World()
        successor.add(cut_node("n1", cut([0], parts=2)), vnpu_pod("p"))
        if held is not None:
            successor.add(vnpu_pod("q", held.suffix, vnpu=held, node="n1"))
        taken = HandOver(successor.cluster, successor.ledger).read(note)
        assert [(each.take, each.predicate_time) for each in taken] == [(made.take, 5)] * read
    with pytest.raises(ValueError, match="not a vNPU name"):
        HandOver(world.cluster, world.ledger).read('[["u","d/p","n1",[],5,"x"]]')
