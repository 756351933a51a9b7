"""Jobs with more blocks than the makers advise: who is told, and how often."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from allocator.observe.notices import CANNOT_SCALE, FEW_SUPER_PODS, advice
from allocator.rules.asked import SuperPodLimits
from allocator.superpods.choice import advise
from allocator.superpods.demand import Demand
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World, pod
from tests.allocator.harness import events_of, pod_manifest, review, running, until
from tests.allocator.superpods.world import job, super_pods
from tests.npuctl.manifests import super_pod_node

ADVICE = (
    "it has 3 blocks, and the cluster 1 SuperPod with usable servers: the makers advise fewer blocks than SuperPods; "
    "it is not refused for that, and several blocks may be in one SuperPod"
)


class Scene:
    """The Events about the advice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.leads = self.has_room = True
        self.posted: list[tuple[str, str]] = []
        self.advice = advice(world.engine, self._publish, lambda: self.leads)
        self.advice.post()

    def _publish(self, regarding: Regarding, reason: str, note: str, **_more: Any) -> bool:
        assert (regarding.kind, reason) == ("Pod", FEW_SUPER_PODS)
        if self.has_room:
            self.posted.append((regarding.name.partition("-")[0], note))
        return self.has_room

    def told(self) -> list[tuple[str, str]]:
        for _ in range(3):
            self.advice.post()
        return self.posted


@pytest.mark.parametrize(
    ("blocks", "number", "is_told"), [(1, 1, False), (2, 3, False), (2, 2, True), (3, 2, True), (2, 1, True)]
)
def test_a_job_of_several_blocks_should_have_fewer_than_there_are_super_pods(
    *, blocks: int, number: int, is_told: bool
) -> None:
    assert bool(advise(Demand(2, blocks, SuperPodLimits(48, 2)), number)) is is_told


def test_a_job_is_told_once_and_placed() -> None:
    scene = Scene(super_pods(8))
    scene.world.add(*(pods := job(6)))
    assert scene.told() == [("train", ADVICE)]
    scene.world.add(*job(6, name="other"), *job(2, name="small"), pod("single", 16))
    assert scene.told() == [("train", ADVICE), ("other", ADVICE)]
    scene.world.add(*pods)
    assert len(scene.told()) == 2
    assert scene.world.engine.place(pods[0]).node == "0-0"
    assert scene.world.engine.warnings(pods[0]) == (ADVICE,)


def test_a_job_whose_pods_appear_one_after_another_is_told_once() -> None:
    scene = Scene(super_pods(8))
    for each in job(6):
        scene.world.add(each)
        assert scene.told() == [("train", ADVICE)]


def test_a_job_that_is_created_again_is_told_again() -> None:
    scene = Scene(super_pods(8))
    scene.world.add(*(pods := job(6)))
    assert scene.told() == [("train", ADVICE)]
    for each in pods:
        scene.world.cluster.pod_deleted(each)
    scene.world.add(*(replace(each, metadata=replace(each.metadata, uid=f"{each.uid}-again")) for each in pods))
    assert scene.told() == [("train", ADVICE)] * 2


def test_a_new_leader_tells_jobs_that_wait_already_and_a_follower_none() -> None:
    scene = Scene(super_pods(8))
    scene.leads = False
    scene.advice.post()
    scene.world.add(*job(6))
    assert scene.told() == []
    scene.leads = True
    assert scene.told() == [("train", ADVICE)]


def test_an_event_that_could_not_be_posted_is_posted_later() -> None:
    scene = Scene(super_pods(8))
    scene.has_room = False
    scene.world.add(*job(6))
    assert scene.told() == []
    scene.has_room = True
    assert scene.told() == [("train", ADVICE)]


def test_a_job_that_is_refused_or_has_no_blocks_is_told_nothing() -> None:
    scene = Scene(super_pods(8))
    scene.world.add(*job(5), *job(3, None, name="one"))  # 5 pods are no whole number of blocks of 2
    assert scene.told() == []
    without = Scene(World())
    without.world.add(*job(6))
    assert without.told() == []


async def test_the_author_of_a_job_is_told_at_its_creation_and_by_an_event(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, webhooks=["pods"]) as allocator:
        for index in range(8):
            await server.create(super_pod_node(0, index))
        await until(lambda: len(allocator.app.cluster.nodes) == 8)
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
        annotations = {MIN_AVAILABLE: "6", "sp-block": "32", RANK: "0"}
        manifest = pod_manifest("train-0", 16, ownerReferences=[owner], annotations=annotations)
        manifest["spec"]["nodeSelector"] = {"accelerator-type": "module-a3-16-super-pod"}
        assert (await review(allocator, "pods", manifest))["warnings"] == [ADVICE]
        await server.create(manifest)
        (event,) = await events_of(allocator)
        assert (event["reason"], event["regarding"]["name"], event["note"]) == (FEW_SUPER_PODS, "train-0", ADVICE)


async def test_the_author_of_a_job_that_can_not_be_scaled_up_is_told_at_its_first_pod(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path, webhooks=["pods"]) as allocator:
        await server.create(super_pod_node(0, 0))
        spec = {"replicas": 1, "selector": {}, "template": {}}
        made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "serve", "namespace": "default"}}
        await server.create({**made, "spec": spec})
        await until(lambda: len(allocator.app.cluster.nodes) == 1)
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "serve", "uid": "u", "controller": True}
        manifest = pod_manifest("serve-0", 1, ownerReferences=[owner])
        await until(lambda: bool(allocator.app.engine.warnings(msgspec.convert(manifest, Pod))))
        (told,) = (await review(allocator, "pods", manifest))["warnings"]
        assert told.startswith("if StatefulSet default/serve is scaled up, its further pods may be refused: ")
        await server.create(manifest)
        (event,) = await events_of(allocator)
        assert (event["reason"], event["regarding"]["name"], event["note"]) == (CANNOT_SCALE, "serve-0", told)
