"""Events on pods that ask for something without effect: what they say, and that there is one for each job."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from allocator.observe.notices import REASON, notices
from allocator.rules.unsupported import without_effect
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.events import Regarding
from ascend.kube.objects import Metadata, Pod
from ascend.kube.workloads import StatefulSet
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP, World, owned_by, pod
from tests.allocator.harness import events_of, pod_manifest, running, until

FAULTS = {"fault-scheduling": "grace"}


class Scene:
    """A cluster whose notices are recorded."""

    def __init__(self) -> None:
        self.world = World()
        self.leads = True
        self.most = 1000
        self.posted: list[tuple[str, str]] = []
        self.notices = notices(self.world.cluster, self._publish, lambda: self.leads)
        self.notices.post()

    def _publish(self, regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        assert (regarding.kind, reason, action) == ("Pod", REASON, "Notify")
        if len(self.posted) >= self.most:
            return False
        self.posted.append((regarding.name, note))
        return True

    def told(self, *pods: Pod) -> list[str]:
        """The pods that were told after these were seen."""
        self.world.add(*pods)
        for _ in range(len(pods) + 1):
            self.notices.post()
        return [name for name, _ in self.posted]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def member(name: str, job: str, **labels: str) -> Pod:
    return owned_by(pod(name, 8, labels=labels or FAULTS), "StatefulSet", name=job)


def test_the_first_pod_of_each_job_is_told_once(scene: Scene) -> None:
    assert scene.told(*(member(f"a-{n}", "a") for n in range(3)), member("b-0", "b")) == ["a-0", "b-0"]
    assert scene.told(member("a-0", "a"), member("a-3", "a")) == ["a-0", "b-0"]
    assert scene.posted[0][1] == "; ".join(without_effect(member("a-0", "a")))


def test_a_job_that_is_created_again_is_told_again(scene: Scene) -> None:
    first = [member(f"a-{n}", "a") for n in range(2)]
    assert scene.told(*first) == ["a-0"]
    scene.world.cluster.pod_deleted(first[0])
    assert scene.told(member("a-2", "a")) == ["a-0"]  # of the same job
    for each in (first[1], member("a-2", "a")):
        scene.world.cluster.pod_deleted(each)
    assert scene.told(*(member(f"a-{n}", "a") for n in range(3, 5))) == ["a-0", "a-3"]


def test_more_pods_of_jobs_that_were_told_do_not_delay_the_next_job(scene: Scene) -> None:
    assert scene.told(*(member(f"{job}-0", job) for job in "abc")) == ["a-0", "b-0", "c-0"]
    scene.world.add(*(member(f"{job}-1", job) for job in "abc"), member("d-0", "d"))
    scene.notices.post()
    assert scene.posted[-1][0] == "d-0"


def test_a_job_that_asks_for_something_else_is_told_again(scene: Scene) -> None:
    scene.told(member("a-0", "a"))
    assert scene.told(member("a-1", "a", **{"fault-scheduling": "force"})) == ["a-0", "a-1"]


def test_pods_that_ask_for_nothing_else_or_run_already_are_not_told(scene: Scene) -> None:
    running_one = pod("runs", 8, node="n1", chips=range(8), phase="Running", labels=FAULTS)
    assert scene.told(pod("a", 8), pod("b", 8, labels={"fault-scheduling": "off"}), running_one) == []


def test_a_pod_that_was_placed_meanwhile_is_still_told(scene: Scene) -> None:
    scene.world.add(member("a-0", "a"), pod("a-0", 8, node="n1", chips=range(8), phase="Running", labels=FAULTS))
    assert scene.told() == ["a-0"]


def test_what_the_rate_of_events_drops_is_posted_later(scene: Scene) -> None:
    scene.most = 1
    assert scene.told(member("a-0", "a"), member("b-0", "b")) == ["a-0"]
    scene.most = 2
    assert scene.told() == ["a-0", "b-0"]


def test_only_the_leader_posts_and_a_new_one_looks_at_all_waiting_pods(scene: Scene) -> None:
    scene.leads = False
    scene.notices.post()
    assert scene.told(member("a-0", "a"), member("b-0", "b")) == []
    scene.world.add(pod("b-0", 8, node="n1", chips=range(8), phase="Running", labels=FAULTS))
    scene.leads = True
    assert scene.told() == ["a-0"]


def test_what_was_due_when_the_leadership_was_lost_is_not_posted_later(scene: Scene) -> None:
    scene.world.add(member("a-0", "a"))
    scene.leads = False
    scene.notices.post()
    scene.world.add(pod("a-0", 8, node="n1", chips=range(8), phase="Running", labels=FAULTS))
    scene.leads = True
    assert scene.told() == []


@pytest.mark.parametrize(("resource", "label"), [(RESOURCE, "fault-scheduling"), ("huawei.com/Ascend310P", "")])
async def test_a_pod_that_no_scheduler_asks_about_gets_the_event(tmp_path: Path, resource: str, label: str) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        manifest = pod_manifest("a", None, labels={label: "grace"} if label else {})
        manifest["spec"]["containers"][0]["resources"] = {"limits": {resource: "1"}}
        created = await server.create(manifest)
        await until(lambda: created["metadata"]["uid"] in allocator.app.cluster.pods)
        (event,) = await events_of(allocator)
        assert (event["reason"], event["type"], event["regarding"]["name"]) == (REASON, "Warning", "a")
        assert (label or f"resource {resource}") in event["note"]


def test_a_group_of_a_kind_that_is_not_served_is_told(scene: Scene) -> None:
    grouped = [pod(f"g-{at}", 8, annotations={GROUP: "train"}) for at in range(2)]
    assert scene.told(*grouped) == ["g-0"]
    assert (
        "PodGroup.scheduling.volcano.sh default/train, but the API server does not serve that kind"
        in scene.posted[0][1]
    )


def test_a_group_whose_minimum_is_known_is_not_told(scene: Scene) -> None:
    scene.world.cluster.jobs.on_watched(VOLCANO)
    assert scene.told(pod("g", 8, annotations={GROUP: "train"})) == []
    scene.world.cluster.jobs.on_unserved(VOLCANO)
    assert scene.told(pod("m", 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})) == []


@pytest.mark.parametrize("is_in_template", [True, False])
def test_a_setting_on_the_object_and_not_in_its_template_is_told(scene: Scene, *, is_in_template: bool) -> None:
    metadata = Metadata("train", "default", "u", annotations={MIN_AVAILABLE: "2", "other": "x"})
    scene.world.cluster.jobs.owners.apply(StatefulSet(metadata=metadata))
    annotations = {MIN_AVAILABLE: "2"} if is_in_template else {}
    told = scene.told(owned_by(pod("train-0", 8, annotations=annotations), "StatefulSet", "apps/v1"))
    assert told == ([] if is_in_template else ["train-0"])
    if told:
        assert scene.posted[0][1] == (
            "annotation huawei.com/schedule_minAvailable on StatefulSet default/train: settings on a StatefulSet have "
            "no effect; write it in the metadata of its pod template"
        )


def test_jobs_of_a_namespace_without_events_left_do_not_keep_others_from_being_told(scene: Scene) -> None:
    def of(namespace: str, number: int) -> Pod:
        made = member(f"{namespace}-{number}", f"job-{number}")
        return replace(made, metadata=replace(made.metadata, namespace=namespace, uid=made.name))

    post = scene._publish

    def publish(regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        return regarding.namespace != "busy" and post(regarding, reason, note, action=action)

    scene.notices._publish = publish
    scene.world.add(*(of("busy", number) for number in range(3_000)), *(of("quiet", number) for number in range(5)))
    for _ in range(10):
        scene.notices.post()
    assert [name for name, _ in scene.posted] == [f"quiet-{number}" for number in range(5)]
    assert sum(map(len, scene.notices._due.values())) <= 1_000
