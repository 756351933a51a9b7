"""The pods of a workload are those that its job's controller creates, where Kueue lets them run."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from allocator.admission.objects import FlavorSpec, Workload
from allocator.admission.workload_pods import owners, pods_of
from allocator.rules.job import find_job
from ascend.errors import InvalidValue
from ascend.kube.objects import OwnerReference, Pod
from tests.allocator.builders import gated, owned_by, pod

TEMPLATE = {
    "metadata": {"annotations": {"huawei.com/schedule_minAvailable": "2"}},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {"huawei.com/Ascend910": "8"}}}]},
}
FLAVOR = {"ascend": FlavorSpec({"pool": "a"}, ({"key": "npu", "operator": "Exists"},))}


def workload(
    sets: Mapping[str, int], owner: tuple[str, str] | None, *assignments: dict[str, Any], **status: Any
) -> Workload:
    """A workload with so many pods of each set; without an owner it is of a group of pods."""
    owners = (
        [{"apiVersion": owner[0], "kind": owner[1], "name": "train", "uid": "u", "controller": True}] if owner else []
    )
    given = {
        "metadata": {"name": "w", "namespace": "default", "uid": "w", "ownerReferences": owners},
        "spec": {"podSets": [{"name": name, "count": pods, "template": TEMPLATE} for name, pods in sets.items()]},
        "status": {"admission": {"podSetAssignments": list(assignments)}, **status},
    }
    return msgspec.convert(given, Workload)


def job(kind: str, version: str, spec: str) -> Any:
    given = {"metadata": {"name": "train", "namespace": "default", "uid": "u"}, "spec": yaml.safe_load(spec)}
    return msgspec.json.decode(msgspec.json.encode(given), type=owners()[kind, version].type)


def where(pods: list[Pod]) -> list[Mapping[str, str]]:
    return [dict(each.spec.node_selector) for each in pods]


TEXT = yaml.safe_dump(TEMPLATE, default_flow_style=True, width=1000)
OF_JOB = f"template: {{spec: {{template: {TEXT}}}}}"


@pytest.mark.parametrize(
    ("kind", "version", "sets", "spec", "found"),
    [
        (
            "Job",
            "batch/v1",
            {"main": 2},
            f"{{completionMode: Indexed, parallelism: 2, completions: 2, template: {TEXT}}}",
            "Indexed Job",
        ),
        (
            "JobSet",
            "jobset.x-k8s.io/v1alpha2",
            {"a": 2, "b": 1},
            f"{{replicatedJobs: [{{name: a, replicas: 2, {OF_JOB}}}, {{name: b, {OF_JOB}}}]}}",
            "JobSet",
        ),
        (
            "PyTorchJob",
            "kubeflow.org/v1",
            {"master": 1, "worker": 3},
            f"{{pytorchReplicaSpecs: {{Worker: {{replicas: 3, template: {TEXT}}}, Master: {{template: {TEXT}}}}}}}",
            "PyTorchJob",
        ),
    ],
)
def test_pods_are_recognized_as_the_job_that_they_will_be(
    kind: str, version: str, sets: dict[str, int], spec: str, found: str
) -> None:
    place = {"levels": ["rack"], "domains": [{"values": [f"r{at}"], "count": 1} for at in range(9)]}
    given = [{"name": name, "flavors": {}, "topologyAssignment": place} for name in sets]
    pods = pods_of(workload(sets, (version, kind), *given), job(kind, version, spec), {}, {})
    assert len(pods) == sum(sets.values()) == len({each.name for each in pods})
    keys = {find_job(each) for each in pods}
    assert len(keys) == 1
    assert next(iter(keys)).kind == found
    # Each set has the places of its own ranks.
    assert where(pods) == [{"rack": f"r{at}"} for number in sets.values() for at in range(number)]


def test_places_of_v1beta2_are_read() -> None:
    slices = [
        {
            "domainCount": 2,
            "valuesPerLevel": [
                {"universal": "b"}, {"individual": {"prefix": "rack-", "suffix": "-a", "roots": ["1", "2"]}}
            ],
            "podCounts": {"individual": [1, 2]},
        },
        {"domainCount": 1, "valuesPerLevel": [{"universal": v} for v in "cd"], "podCounts": {"universal": 1}},
    ]  # fmt: skip
    given = {"name": "main", "flavors": {}, "topologyAssignment": {"levels": ["block", "rack"], "slices": slices}}
    pods = pods_of(workload({"main": 4}, ("example.org/v1", "Thing"), given), None, {}, {})
    racks = (("b", "rack-1-a"), ("b", "rack-2-a"), ("b", "rack-2-a"), ("c", "d"))
    assert where(pods) == [{"block": block, "rack": rack} for block, rack in racks]
    slices[0]["domainCount"] = 3
    with pytest.raises(InvalidValue):
        pods_of(workload({"main": 4}, ("example.org/v1", "Thing"), given), None, {}, {})


def test_the_pods_of_another_kind_are_those_of_the_templates() -> None:
    pods = pods_of(workload({"main": 2}, ("example.org/v1", "Thing")), None, {}, {})
    assert [find_job(each).kind for each in pods] == ["Thing", "Thing"]
    assert all(each.requests_chips for each in pods)


def test_pods_that_exist_are_taken_as_they_are_without_their_gates() -> None:
    there = [gated(pod(f"p-{at}", 8), "kueue.x-k8s.io/admission") for at in range(2)]
    owners = tuple(OwnerReference("v1", "Pod", each.name, each.uid) for each in there)
    made = workload({"main": 2}, None)
    known = replace(made, metadata=replace(made.metadata, owner_references=owners))
    pods = pods_of(known, None, {each.uid: each for each in there}, {})
    assert [each.uid for each in pods] == [each.uid for each in there]
    assert not any(each.is_gated for each in pods)


def test_only_as_many_pods_count_as_are_admitted() -> None:
    spec = f"{{parallelism: 4, template: {TEXT}}}"
    made = workload({"main": 4}, ("batch/v1", "Job"), {"name": "main", "count": 3})
    assert len(pods_of(made, job("Job", "batch/v1", spec), {}, {})) == 3


def test_what_kueue_and_other_checks_add_counts() -> None:
    updates = [{"name": "main", "nodeSelector": {"zone": "z"}}, {"name": "no", "nodeSelector": {"a": "b"}}]
    checks = [{"name": "other", "state": "Ready", "podSetUpdates": updates}]
    given = {"name": "main", "flavors": {"huawei.com/Ascend910": "ascend", "cpu": "ascend"}}
    made = workload({"main": 1}, ("batch/v1", "Job"), given, admissionChecks=checks)
    spec = f"{{template: {TEXT}}}"
    (found,) = pods_of(made, job("Job", "batch/v1", spec), {}, FLAVOR)
    assert found.spec.node_selector == {"pool": "a", "zone": "z"}
    assert msgspec.json.decode(found.spec.tolerations or "") == [{"key": "npu", "operator": "Exists"}]
    with pytest.raises(InvalidValue, match="no ResourceFlavor ascend"):
        pods_of(made, job("Job", "batch/v1", spec), {}, {})


def test_owned_pods_are_no_part_of_a_workload_of_fewer() -> None:
    there = owned_by(pod("p", 8), "Job", "batch/v1")
    pods = pods_of(workload({"main": 2}, ("batch/v1", "Job")), None, {"u": there}, {})
    assert len(pods) == 2
