"""The table of what pods may request and the allocator does not do."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from allocator.rules.finders import KEYS, Asking, Stated
from allocator.rules.rescheduling_labels import KNOWN_VALUES
from allocator.rules.unsupported import UNSUPPORTED, Outcome, refused_demand, requests_other_devices, without_effect
from ascend.annotations import INDEPENDENT, MIN_AVAILABLE, MIXED_MODELS
from ascend.chips import RESOURCE
from ascend.jobs.kind import JobFacts
from ascend.jobs.pod_groups import KUBERNETES, VOLCANO
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.containers import Container, Resources
from ascend.kube.kept import (
    FIELDS,
    GROUP_CLAIMS,
    GROUP_TOPOLOGY,
    MOST_WRONG,
    NETWORK_TOPOLOGY,
    PARENT_GROUP,
    PART_TOPOLOGY,
    SOFT_SHARES,
    TASK_MINIMA,
    TOPOLOGY_MODE,
    settings_among,
)
from ascend.kube.objects import OwnerReference, Pod, SchedulingGroup
from ascend.kube.workloads import PodGroup, PodGroupSpec
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, owned_by, pod, pod_group, stateful_set
from tests.allocator.jobs.manifests import job_object


def requesting(resource: str, quantity: str = "1") -> Pod:
    return pod("a", containers=[Container("main", Resources(limits={resource: quantity}))])


MISSPELT = {
    "ascend-affinity.io/indepedent": INDEPENDENT,
    "Ascend-Affinity.io/Independent": INDEPENDENT,
    "ascend-afinity.io/independent": INDEPENDENT,
    "ascend-affinity.io/independnet": INDEPENDENT,
    "ascend-affinity.io/scheduler": "",
    "huawei.com/schedule_minavailable": MIN_AVAILABLE,
    "huawei.com/schedule-policy": "huawei.com/schedule_policy",
    "huawei.com/schedule_polciy": "huawei.com/schedule_policy",
    "huawei.com/scheduler.softShareDev.aicoreQuotas": "huawei.com/scheduler.softShareDev.aicoreQuota",
    "sp_block": "sp-block",
    "tor-afinity": "tor-affinity",
    "subhealthystrategy": "subHealthyStrategy",
}
"""Keys, and what their author means."""
RIGHT = ("ascend-affinity.io/requeued", "tp-block", "App", "maps", "huawei.com/schedule.filter.faultCode", "x" * 400)
"""Keys of others, or that programs write."""
TOLD = (
    pod("a", 8, labels={"fault-scheduling": "grace"}),
    pod("a", 8, labels={"fault-scheduling": "external-force", "fault-retry-times": "3"}),
    pod("a", 8, labels={"pod-rescheduling": "on"}),
    pod("a", 8, labels={"process-recover-enable": "pause"}),
    pod("a", 8, annotations={"huawei.com/recover_policy_path": "pod"}),
    pod("a", 8, labels={"subHealthyStrategy": "graceExit"}),
    pod("a", 8, labels={"huawei.com/schedule_policy": "chip8-node8"}),
    pod("a", 8, labels={"huawei.com/schedule_minAvailable": "2"}),
    pod("a", 8, labels={"sp-block": "8"}),
    pod("a", 8, annotations={"subHealthyStrategy": "forceExit"}),
    pod("a", 8, annotations={"tor-affinity": "normal-schema"}),
    pod("a", 8, labels={"sp-fit": "idlest"}),
    pod("a", 8, annotations={"super-pod-affinity": "soft"}),
    pod("a", 8, annotations={"fault-scheduling": "force"}),
    pod("a", 8, annotations={"fault-retry-times": "3"}),
    pod("a", 8, annotations={"elastic-scheduling": "on"}),
    pod("a", 8, annotations={"inferserviceid": "s"}),
    pod("a", 8, labels={"huawei.com/recover_policy_path": "pod"}),
    pod("a", 8, labels={"ProcessRecoverStrategy": "x"}),
    pod("a", 8, labels={INDEPENDENT: "true"}),
    pod("a", 8, labels={MIXED_MODELS: "true"}),
    *(pod("a", 8, annotations={key: "true"}) for key in MISSPELT),
    *(pod("a", 8, labels={key: "true"}) for key in MISSPELT),
    pod("a", 8, annotations={MIXED_MODELS: "yes"}),
    *(pod("a", 8, annotations={INDEPENDENT: value}) for value in ("false", "True", "ture", "")),
    pod("a", 8, labels={"app": "mindie-ms-server", "jobID": "mindie"}),
    pod("a", 8, labels={"inferserviceid": "s"}),
    pod("a", 8, labels={"podgroup-sched-enable": "true"}),
    pod("a", 8, annotations={"podgroup-sched-enable": "true"}),
    pod("a", 8, labels={"huawei.com/infer_service_schedule": "x"}),
    pod("a", 8, labels={"ra-block": "16"}),
    pod("a", 8, labels={"huawei.com/affinity-config": "level1=2"}),
    pod("a", 8, annotations={"huawei.com/infer_service_schedule": "x"}),
    pod("a", 8, annotations={"sp-fit": "idlest"}),
    pod("a", 8, annotations={"ra-block": "16"}),
    pod("a", 8, labels={"super-pod-affinity": "soft"}),
    pod("a", 8, annotations={"huawei.com/affinity-config": "level1=2"}),
    pod("a", 8, annotations={PART_TOPOLOGY: "soft"}),
    pod("a", 8, annotations={NETWORK_TOPOLOGY: "soft"}),
    pod("a", 8, labels={TOPOLOGY_MODE: "near"}),
    pod("a", 8, annotations={TASK_MINIMA: "ps 1, worker 2"}),
    pod("a", 8, annotations={PARENT_GROUP: "service"}),
    pod("a", 8, annotations={GROUP_CLAIMS: "network"}),
    requesting("huawei.com/Ascend910B-2c"),
    requesting("huawei.com/npu"),
    requesting("huawei.com/Ascend310"),
    requesting("huawei.com/Ascend310P"),
    requesting("huawei.com/Ascend310P-4c"),
    requesting("huawei.com/Ascend910B"),
    requesting("huawei.com/ascend910"),
)
REFUSED = (
    (pod("a", 8, annotations={PART_TOPOLOGY: "hard"}), Reason.UNSUPPORTED_POLICY),
    (pod("a", 8, annotations={GROUP_TOPOLOGY: "rack"}), Reason.UNSUPPORTED_POLICY),
    (pod("a", 1, labels={"huawei.com/scheduler.softShareDev.aicoreQuota": "50"}), Reason.UNSUPPORTED_POLICY),
    (pod("a", 1, annotations={"huawei.com/scheduler.softShareDev.policy": "elastic"}), Reason.UNSUPPORTED_POLICY),
    (pod("a", 4, annotations={"sp-block": "16"}), Reason.INVALID_REQUEST),
    (pod("a", 4, annotations={"sp-block": "abc"}), Reason.INVALID_REQUEST),
    (pod("a", 4, annotations={"sp-block": "-4"}), Reason.INVALID_REQUEST),
    (owned_by(pod("a", 4, annotations={"sp-block": "0"}), "ReplicaSet"), Reason.INVALID_REQUEST),
)
UNKNOWN = (
    (pod("a", 8, labels={"fault-scheduling": "forced"}), "label fault-scheduling=forced (known values: off, grace, "),
    (pod("a", 8, labels={"subHealthyStrategy": "leave"}), "label subHealthyStrategy=leave (known values: ignore, "),
    (pod("a", 8, labels={"pod-rescheduling": "yes"}), "label pod-rescheduling=yes (known values: on, off): "),
    (pod("a", 8, labels={"process-recover-enable": "1"}), "label process-recover-enable=1 (known values: on, off, "),
    (pod("a", 8, labels={"elastic-scheduling": "x"}), "label elastic-scheduling=x (known values: on, off): "),
    (pod("a", 8, labels={"fault-retry-times": "x"}), "label fault-retry-times=x (known values: whole numbers): "),
)
OF_BLOCKS = (
    pod("a", 8, labels={"super-pod-affinity": "sotf"}, annotations={"sp-block": "8"}),
    pod("a", 8, labels={"super-pod-affinity": "soft", "inferserviceid": "s"}, annotations={"sp-block": "8"}),
    pod("a", 8, labels={"super-pod-affinity": "soft", "app": "a", "jobID": "1"}, annotations={"sp-block": "8"}),
    pod("a", 8, annotations={"sp-block": "8", "sp-fit": "idlest"}),
    pod("a", 8, labels={"app": "a", "jobID": "1"}, annotations={"sp-block": "8", "sp-fit": "podAffinity"}),
)
FINE = (
    pod("a", 8),
    pod("a", 8, labels={"app": "web", "team": "x"}),
    pod("a", 8, labels={"tor-affinity": "null", "fault-scheduling": "off", "subHealthyStrategy": "ignore"}),
    pod("a", 8, labels={"fault-retry-times": "0"}, annotations={"sp-block": "8"}),
    pod("a", 8, annotations={INDEPENDENT: "true", "podgroup-sched-enable": "false"}),
    pod("a", 8, labels={"super-pod-affinity": "hard"}, annotations={"sp-block": "8"}),
    *(pod("a", 8, annotations={key: "x"}) for key in RIGHT),
    pod("a", containers=[Container("main", Resources(limits={RESOURCE: "8", "huawei.com/npu": "0", "cpu": "1"}))]),
    pod("a", containers=[Container("main", Resources(limits={RESOURCE: "8", "nvidia.com/gpu": "1"}))]),
)


def accepted(each: Pod) -> bool:
    world = World()
    world.add(node("n1"))
    return world.engine.filter(each).fitting == ["n1"]


@pytest.mark.parametrize("each", TOLD)
def test_a_demand_without_effect_has_one_sentence(each: Pod) -> None:
    (sentence,) = without_effect(each)
    assert sentence.startswith(("label", "annotation", "resource", "spec"))
    if each.requests_chips:
        assert accepted(each)


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("place", ["pod", "group"])
@pytest.mark.parametrize(("key", "setting"), MISSPELT.items())
def test_misspelt_keys_are_kept_wherever_they_are_written_and_told(
    key: str, setting: str, kind: str, place: str
) -> None:
    metadata = {"name": "a", kind: {key: "true", "app.kubernetes.io/name": "a"}}
    if place == "pod":
        sentences = without_effect(msgspec.convert({"metadata": metadata}, Pod))
    else:
        group = msgspec.convert({"metadata": metadata}, PodGroup)
        sentences = without_effect(pod("a"), (JobFacts(**{kind: getattr(group.metadata, kind)}), None))
    meant = f" (meant: {setting})" if setting else ""
    assert sentences == (f"{kind[:-1]} {key}{meant}: no program reads this key; the settings of jobs have other names",)


def test_few_misspelt_annotations_are_kept() -> None:
    many = {f"ascend-affinity.io/{at}": "x" * 2000 for at in range(1000)}
    kept = msgspec.convert({"metadata": {"name": "a", "annotations": many}}, Pod).metadata.annotations
    assert len(kept) == MOST_WRONG
    assert all(len(value) < 200 for value in kept.values())
    assert len(settings_among(many)) == MOST_WRONG


@pytest.mark.parametrize(("each", "reason"), REFUSED)
def test_a_demand_that_must_not_be_ignored_is_refused(each: Pod, reason: Reason) -> None:
    world = World()
    world.add(node("n1"))
    refusal = world.refusal(each)
    assert (refusal.reason, without_effect(each)) == (reason, ())
    assert refusal.message.startswith("pod default/a: ")


@pytest.mark.parametrize(("each", "start"), UNKNOWN)
def test_unknown_values_of_the_labels_of_rescheduling_are_told_where_it_is_on(each: Pod, start: str) -> None:
    (sentence,) = without_effect(each, reschedules=True)
    assert sentence.startswith(start)
    (key,) = each.metadata.labels
    is_strict = key in {"fault-scheduling", "subHealthyStrategy"}
    assert ("no pod of the job is deleted" in sentence) == is_strict
    assert not any("unknown" in said for said in without_effect(each))


def test_known_values_of_the_labels_of_rescheduling_are_not_told() -> None:
    for key, values in (*KNOWN_VALUES.items(), ("fault-retry-times", ("0", "3", ""))):
        for value in values:
            assert without_effect(pod("a", 8, labels={key: value}), reschedules=True) == ()


@pytest.mark.parametrize("each", OF_BLOCKS)
def test_marks_of_blocks_that_their_job_does_not_heed_are_told(each: Pod) -> None:
    (sentence,) = without_effect(each)
    assert sentence.startswith(("label super-pod-affinity=so", "annotation sp-fit="))


@pytest.mark.parametrize("text", ["abc", "0", "-32", "32.0", " 32"])
def test_a_block_of_several_pods_that_is_no_number_is_refused_with_the_rule(text: str) -> None:
    refusal = refused_demand(pod("a", 16, annotations={"sp-block": text}), None)
    assert refusal is not None
    assert f"annotation sp-block={text!r}: it must be a whole number above 0, a multiple of" in refusal.message


@pytest.mark.parametrize("each", FINE)
def test_other_pods_are_placed_and_not_told(each: Pod) -> None:
    assert accepted(each)
    assert without_effect(each) == ()
    assert not requests_other_devices(each)


def test_a_block_of_one_pod_of_several_is_not_compared_with_its_chips() -> None:
    world = World()
    world.add(*(node(f"n{number}") for number in range(2)))
    world.cluster.jobs.owners.apply(stateful_set(1))
    assert world.engine.place(owned_by(pod("one", 8, annotations={"sp-block": "8"}), "StatefulSet")).node == "n0"
    replica = owned_by(pod("replica", 8, annotations={"sp-block": "16"}), "ReplicaSet")
    assert "say how many of its pods start together" in world.refusal(replica).message


def test_a_minimum_that_another_one_outweighs_is_told() -> None:
    three, two = pod("a", 8, annotations={MIN_AVAILABLE: "3"}), JobFacts(minimum=2)
    outweighing: list[Stated] = [(two, None), (None, two), (two, JobFacts(minimum=3))]
    for job in outweighing:
        (sentence,) = without_effect(three, job)
        assert sentence.startswith("annotation huawei.com/schedule_minAvailable=3, where another minimum is 2: ")
    others: list[Stated] = [(JobFacts(minimum=3), None), (JobFacts(minimum=1), None), (None, JobFacts(whole=2)), ()]
    for job in others:
        assert without_effect(three, job) == ()
    stated, alone = (JobFacts(minimum=minimum, annotations={MIN_AVAILABLE: "3"}) for minimum in (2, 1))
    assert without_effect(pod("a", 8), (None, alone)) == ()  # as on a group, a minimum of 1 does not count before it
    for job in ((stated, None), (None, stated)):
        assert len(without_effect(pod("a", 8), job)) == 1


def test_every_row_is_shown_by_an_example() -> None:
    """A new row needs an example above."""
    shown: Mapping[Outcome, tuple[Pod, ...]] = {
        Outcome.TOLD: (
            *TOLD,
            pod("a", 8, annotations={MIN_AVAILABLE: "3"}),
            pod("a", 8, labels={"app": "a", "jobID": "1"}, annotations={"sp-block": "8"}),
            *(each for each, _ in UNKNOWN),
            *OF_BLOCKS,
        ),
        Outcome.REFUSED: tuple(each for each, _ in REFUSED),
    }
    for row in UNSUPPORTED:
        examples = [
            Asking(
                each.metadata.labels,
                each.metadata.annotations,
                frozenset(name for one in each.spec.containers for name in one.resources.limits),
                4,
                minimum=2,
                has_blocks="sp-block" in each.metadata.annotations,
                total=16,
            )
            for each in shown[row.outcome]
        ]
        assert any(row.find(each) is not None for each in examples), row.what


@pytest.mark.parametrize("of_group", [True, False])
def test_what_a_group_or_a_job_object_says_counts_as_well(of_group: bool) -> None:  # noqa: FBT001 - a parameter
    said = JobFacts(labels={"fault-scheduling": "grace"})
    job = (said, None) if of_group else (None, said)
    each = pod("a", 8)
    assert without_effect(each, job) == without_effect(pod("a", 8, labels={"fault-scheduling": "grace"}))


def test_what_the_group_says_counts_before_what_pods_say() -> None:
    off = JobFacts(labels={"fault-scheduling": "off"})
    each = pod("a", 8, labels={"fault-scheduling": "grace"})
    assert without_effect(each, (off, None)) == ()


def test_a_group_of_volcano_is_read() -> None:
    world = World()
    group = pod_group(1)
    labels = {"tor-affinity": "?", "fault-scheduling": "grace", "other": "x"}
    world.cluster.jobs.group_applied(VOLCANO, replace(group, metadata=replace(group.metadata, labels=labels)))
    each = pod("a", 8, annotations={GROUP: "train"})
    world.add(node("n1"), each)
    assert "label tor-affinity='?'" in world.refusal(each).message
    (told,) = world.engine.without_effect(each)
    assert told.startswith("label fault-scheduling=grace: ")


VCJOB = """
minAvailable: {minimum}
tasks:
- {{name: ps, replicas: 2, minAvailable: {ps}, template: {{}}}}
- {{name: worker, replicas: 4, minAvailable: {worker}, template: {{}}}}
"""


@pytest.mark.parametrize(
    ("minimum", "ps", "worker", "told"),
    [
        (3, 1, 2, ["spec.minTaskMember of its PodGroup or minAvailable of its tasks (ps 1, worker 2)"]),
        (4, 1, 2, ["spec.minTaskMember of its PodGroup or minAvailable of its tasks (ps 1, worker 2)"]),
        (2, 1, 2, []),  # Volcano ignores them, too
        (3, "null", "null", []),
        (6, 1, 2, []),  # all pods start together
    ],
)
def test_the_minima_of_the_tasks_of_a_volcano_job_are_told(
    minimum: int, ps: object, worker: object, told: list[str]
) -> None:
    world, spec = World(), VCJOB.format(minimum=minimum, ps=ps, worker=worker)
    world.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, spec))
    each = owned_by(pod("train-worker-0", 8), "Job", "batch.volcano.sh/v1alpha1")
    world.add(node("n1"), each)
    assert [sentence.partition(": ")[0] for sentence in world.engine.without_effect(each)] == told


@pytest.mark.parametrize(("mode", "told"), [("soft", 1), ("hard", 0)])
@pytest.mark.parametrize("of_task", [True, False])
def test_the_network_topology_of_a_part_of_a_job_is_read(mode: str, told: int, *, of_task: bool) -> None:
    world, topology = World(), {"networkTopology": {"mode": mode}}
    if of_task:
        task = f"name: worker, template: {{}}, partitionPolicy: {json.dumps(topology)}"
        world.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, f"{{tasks: [{{{task}}}]}}"))
        each = owned_by(pod("train-worker-0", 8), "Job", "batch.volcano.sh/v1alpha1")
    else:
        spec = {"minMember": 1, "subGroupPolicy": [{"name": "a"}, {"name": "b", **topology}]}
        world.cluster.jobs.group_applied(VOLCANO, replace(pod_group(1), spec=msgspec.convert(spec, PodGroupSpec)))
        each = pod("a", 8, annotations={GROUP: "train"})
    world.add(node("n1"), each)
    sentences = world.engine.without_effect(each)
    assert len(sentences) == told
    if mode == "hard":
        assert world.refusal(each).reason is Reason.UNSUPPORTED_POLICY


@pytest.mark.parametrize("place", ["annotation", "label", "group", "job"])
@pytest.mark.parametrize(
    ("minimum", "mode", "told"), [(1, "soft", 1), (1, "hard", 1), (2, "soft", 0), (2, "hard", 0), (2, "near", 1)]
)
def test_a_network_topology_that_does_not_count_is_told(place: str, minimum: int, mode: str, told: int) -> None:
    world, marks, topology = World(), {TOPOLOGY_MODE: mode}, {"networkTopology": {"mode": mode}}
    of_group = {"minMember": minimum, **(topology if place == "group" else {})}
    asking = pod(
        "a", 8, annotations={GROUP: "train"} | (marks if place == "annotation" else {}),
        labels=marks if place == "label" else {},
    )  # fmt: skip
    if place == "job":
        tasks = [{"name": "w", "replicas": 2, "template": {}}]
        spec = json.dumps({"minAvailable": minimum, **topology, "tasks": tasks})
        world.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, spec))
        asking = owned_by(pod("train-w-0", 8), "Job", "batch.volcano.sh/v1alpha1")
    world.cluster.jobs.group_applied(VOLCANO, replace(pod_group(1), spec=msgspec.convert(of_group, PodGroupSpec)))
    world.add(node("n1"), asking)
    assert len(world.engine.without_effect(asking)) == told


@pytest.mark.parametrize("of_group", [True, False])
@pytest.mark.parametrize("key", SOFT_SHARES)
@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_a_share_of_a_chip_is_refused_wherever_it_is_written(kind: str, key: str, *, of_group: bool) -> None:
    world = World()
    said: dict[str, Any] = {kind: {key: "x"}}
    if of_group:
        group = pod_group(1)
        world.cluster.jobs.group_applied(VOLCANO, replace(group, metadata=replace(group.metadata, **said)))
        asking = pod("a", 1, annotations={GROUP: "train"})
    else:
        spec = "{tasks: [{name: worker, template: {}}]}"
        world.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, spec, **said))
        asking = owned_by(pod("train-worker-0", 1), "Job", "batch.volcano.sh/v1alpha1")
    world.add(node("n1"), asking)
    assert world.refusal(asking).reason is Reason.UNSUPPORTED_POLICY


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"parentCompositePodGroupName": "service"}, "spec.parentCompositePodGroupName of its PodGroup (service)"),
        ({"resourceClaims": [{"name": "a"}, {"name": "b"}]}, "spec.resourceClaims of its PodGroup (a, b)"),
        ({"schedulingConstraints": {"topology": [{"key": "rack"}]}}, ""),
        ({"schedulingConstraints": {"topology": []}, "resourceClaims": []}, None),
        ({"workloadRef": {"workloadName": "w"}, "disruptionMode": {"all": {}}}, None),
    ],
)
def test_what_a_group_of_kubernetes_asks_besides_a_minimum_is_read(spec: dict[str, object], said: str | None) -> None:
    world, asking = World(), pod("a", 8)
    asking = replace(asking, spec=replace(asking.spec, scheduling_group=SchedulingGroup("train")))
    spec = {"schedulingPolicy": {"gang": {"minCount": 1}}, **spec}
    world.cluster.jobs.group_applied(KUBERNETES, replace(pod_group(1), spec=msgspec.convert(spec, PodGroupSpec)))
    world.add(node("n1"), asking)
    if said is not None and not said:
        assert "spec.schedulingConstraints.topology of its PodGroup (rack)" in world.refusal(asking).message
    else:
        assert world.engine.filter(asking).fitting == ["n1"]
        assert [sentence.partition(": ")[0] for sentence in world.engine.without_effect(asking)] == [said][: bool(said)]


@pytest.mark.parametrize(("owner", "told"), [([], 1), ([OwnerReference(kind="Job", controller=True)], 0)])
def test_the_minima_of_tasks_that_a_user_writes_on_a_group_are_told(owner: list[OwnerReference], told: int) -> None:
    group = pod_group(3)
    spec = PodGroupSpec(3, min_task_member={"ps": 1, "worker": 2})
    group = replace(group, spec=spec, metadata=replace(group.metadata, owner_references=owner))
    world = World()
    world.cluster.jobs.group_applied(VOLCANO, group)
    each = pod("a", 8, annotations={GROUP: "train"})
    world.add(node("n1"), each)
    assert len(world.engine.without_effect(each)) == told


@pytest.mark.parametrize("key", sorted(KEYS - FIELDS))
def test_every_key_is_kept_of_groups_and_job_objects(key: str) -> None:
    assert settings_among({key: "x"}) == {key: "x"}
