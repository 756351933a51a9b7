"""Which gangs are invalid on every node, as far as their pods are known: these are refused before they are complete."""

import re

import pytest

from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod, pod_group, stateful_set

GROUPED = {GROUP: "train"}
MODULE = {TYPE: "module"}


def world_of_group(minimum: int) -> World:
    """A 910A server, and a PodGroup with this minimum."""
    world = World()
    world.add(node("n1", labels=MODULE))
    world.cluster.jobs.on_watched(VOLCANO)
    world.cluster.jobs.group_applied(VOLCANO, pod_group(minimum))
    return world


def in_group(name: str, chips: int | None) -> Pod:
    """A pod of that group."""
    return pod(name, chips, selector=MODULE, annotations=GROUPED)


def test_a_worker_waits_for_its_launcher() -> None:
    world = world_of_group(2)
    worker = in_group("worker", 4)
    for _ in ("before it was seen", "after it was seen"):
        world.engine.validate(worker)
        assert world.engine.filter(worker).refused["n1"].reason is Reason.GANG_INCOMPLETE
        assert world.refusal(worker).reason is Reason.GANG_INCOMPLETE
        assert not world.engine.may_fit(worker)
        world.add(worker)
    world.add(in_group("launcher", None))
    assert world.engine.may_fit(worker)
    assert not world.engine.request_of(worker).distributed
    assert world.engine.place(worker).node == "n1"
    with pytest.raises(Refusal, match="several pods"):
        world.engine.validate(in_group("another", 4))


def test_a_pod_too_many_makes_its_whole_gang_invalid() -> None:
    world = world_of_group(3)
    pods = [in_group(f"train-{number}", 4) for number in range(2)]
    world.engine.validate(pods[0])
    world.add(pods[0])
    refusals = set()
    for seen in (pods[1], in_group("launcher", None)):
        for each in pods[1:] if seen is pods[1] else pods:
            with pytest.raises(Refusal) as refused:
                world.engine.validate(each)
            refusals.add((refused.value.reason, refused.value.message))
        world.add(seen)
    ((reason, sentence),) = refusals
    assert reason is Reason.INVALID_REQUEST
    assert re.search("job default/train .*several pods of 4 chips", sentence)
    for each in pods:
        with pytest.raises(Refusal, match="several pods of 4"):
            world.engine.filter(each)


@pytest.mark.parametrize("chips", [3, 16])
def test_a_size_valid_neither_alone_nor_with_peers_is_refused_early(chips: int) -> None:
    with pytest.raises(Refusal, match=f"pod default/first .* {chips} chips; on 910A servers"):
        world_of_group(2).engine.validate(in_group("first", chips))


@pytest.mark.parametrize("labels", [{}, {"jobset.sigs.k8s.io/replicatedjob-replicas": "2"}])
def test_the_first_pod_is_refused_if_known_peers_make_its_gang_invalid(labels: dict[str, str]) -> None:
    world = world_of_group(2)
    world.cluster.jobs.owners.apply(stateful_set(1 if labels else 2))
    first = pod("train-0", 4, selector=MODULE, annotations=GROUPED, labels=labels)
    with pytest.raises(Refusal, match=r"job default/train .*several pods of 4 chips"):
        world.engine.validate(owned_by(first, "StatefulSet"))


def test_a_stated_minimum_is_validated_like_that_of_a_group() -> None:
    world = World()
    world.add(node("n1", labels=MODULE))
    annotations = {**GROUPED, MIN_AVAILABLE: "2"}
    worker = pod("worker", 4, annotations=annotations, selector=MODULE)
    world.engine.validate(worker)
    world.add(pod("launcher", None, annotations=annotations))
    assert not world.engine.request_of(worker).distributed
    world.add(worker)
    assert world.engine.place(worker).node == "n1"
    with pytest.raises(Refusal, match="several pods"):
        world.engine.request_of(pod("another", 4, annotations=annotations, selector=MODULE))


@pytest.mark.parametrize("key", [GROUP, "scheduling.volcano.sh/group-name"])
@pytest.mark.parametrize("name", ["\x1b[2J", "Train", "a/b", "a b", "-a", "a..b", "ä", "a" * 254, "x" * 100_000])
def test_a_group_name_that_no_object_can_have_is_refused(key: str, name: str) -> None:
    world = World()
    world.add(node("n1", labels=MODULE))
    refusal = world.refusal(pod("train-0", 4, selector=MODULE, annotations={key: name}))
    assert refusal.reason is Reason.INVALID_REQUEST
    assert refusal.message.startswith(f"pod default/train-0: annotation {key}='")
    assert refusal.message.isprintable()
    assert len(refusal.message) < 500


def test_every_name_that_an_object_can_have_names_a_group() -> None:
    for name in ("a", "0", "a-b.c-9", "podgroup-0d8a7a05-6f0e-4b8b-9d0a-0a3f6f1f2b3c", "a" * 253):
        world = World()
        world.add(node("n1", labels=MODULE))
        world.add(grouped := pod("train-0", 4, selector=MODULE, annotations={GROUP: name}))
        assert world.engine.place(grouped, None).node == "n1"
