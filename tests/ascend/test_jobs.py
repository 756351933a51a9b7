"""A kind of job that is in the table is in every place that is derived from it."""

from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from allocator.rescheduling.owners import why_nobody
from allocator.rules.job import find_job, marks_of
from allocator.state.kinds import KINDS
from ascend.errors import InvalidValue
from ascend.jobs.core import INDEXED_JOB, JOB, STATEFUL_SET
from ascend.jobs.creation import Controller
from ascend.jobs.kind import JobKind, JobSpec, Workload
from ascend.jobs.table import ENQUEUED, JOB_KINDS, MARKS, TABLE, WORKLOADS
from ascend.kube.kept import POD_KEYS
from ascend.kube.objects import Pod
from npuctl.explain.target import belongs_to, is_known
from npuctl.reading.normalizing import normalize
from tests.deploy import helm

EXAMPLES: Final = Path(__file__).parents[2] / "deploy" / "examples"
TEMPLATE: Final = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"huawei.com/Ascend910": "1"}}}]}}
WATCHED: Final = [pytest.param(kind, id=kind.name) for kind in JOB_KINDS if kind.objects and not kind.is_group]
CORE: Final = {INDEXED_JOB, JOB, STATEFUL_SET, "ReplicaSet"}


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """A manifest of each workload, by kind and version: the example for users where there is one."""
    found: dict[tuple[str, str], dict[str, Any]] = {
        ("CronJob", "batch/v1"): {"spec": {"jobTemplate": {"spec": {"template": TEMPLATE}}}},
        ("ReplicaSet", "apps/v1"): {"spec": {"replicas": 2, "template": TEMPLATE}},
    }
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for manifest in yaml.load_all(path.read_text(), yaml.CSafeLoader):
            found.setdefault((manifest["kind"], manifest["apiVersion"]), manifest)
    return found


MANIFESTS: Final = manifests()


def created(row: Workload, manifest: dict[str, Any], name: str = "train") -> list[Pod]:
    """The pods of a workload as its controller creates them."""
    body, _ = normalize({"kind": row.kind, **manifest}, lambda path, what: InvalidValue(f"{path}: {what}"))
    spec: JobSpec[Any] = msgspec.convert(body["spec"], row.spec)
    made = spec.create(Controller(row.version, row.kind, "default", name))
    return [each for each in made if isinstance(each, Pod)]


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name or "other") for kind in JOB_KINDS if kind.workloads])
def test_each_kind_has_an_example_whose_pods_are_recognized_and_told_apart(kind: JobKind) -> None:
    rows = [(row, MANIFESTS[key]) for row in kind.workloads if (key := (row.kind, row.version)) in MANIFESTS]
    assert rows, f"no example of {[row.kind for row in kind.workloads]} in deploy/examples"
    for row, manifest in rows:
        pods = created(row, manifest)
        assert pods
        for pod in pods:
            assert is_known(row.kind)
            assert row.creates or (row.kind.lower(), "train") in belongs_to(pod)
            found = marks_of(pod).kind.name
            assert kind.name == found or {found, kind.name} <= CORE or row.kind == "RayJob"
        at = [(find_job(pod), marks_of(pod).position) for pod in pods]
        has_index = all(position.at is not None for _, position in at)
        assert len(set(at)) == len(at) or not has_index


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("TrainJob", {"JobSet"}),
        ("RoleBasedGroup", {"StatefulSet", "LeaderWorkerSet"}),
        ("InferServiceSet", {"StatefulSet"}),
    ],
)
def test_the_pods_of_other_workloads_are_of_the_kinds_that_these_create(kind: str, found: set[str]) -> None:
    row, manifest = next((row, MANIFESTS[key]) for key, row in WORKLOADS.items() if row.kind == kind)
    assert {marks_of(pod).kind.name for pod in created(row, manifest)} == found


@pytest.mark.parametrize("kind", WATCHED)
def test_what_creates_pods_is_watched_planned_and_found(kind: JobKind) -> None:
    watched = {each.resource for each in KINDS}
    for resource in kind.objects:
        assert resource in watched
        assert (resource.kind, resource.api_version) in WORKLOADS
        assert is_known(resource.kind)


@pytest.mark.parametrize("kind", WATCHED)
def test_pods_that_an_object_owns_are_recognized_without_marks_and_created_anew(kind: JobKind) -> None:
    for resource in kind.objects:
        group = resource.api_version.partition("/")[0]
        owner = {"apiVersion": resource.api_version, "kind": resource.kind, "name": "train", "uid": "u"}
        metadata = {"name": "p", "namespace": "default", "ownerReferences": [{**owner, "controller": True}]}
        pod = msgspec.convert({"metadata": metadata}, Pod)
        if f"{group} {resource.kind}" in kind.owners:
            assert why_nobody(pod, None, 1) is None
        else:  # the pods are of Jobs or StatefulSets
            assert f"{group} {resource.kind}" not in TABLE.recreating


def test_the_marks_of_pods_are_kept() -> None:
    assert {*MARKS, *(key for kind in JOB_KINDS for key in kind.stated)} <= POD_KEYS


def test_the_chart_grants_what_the_kinds_need() -> None:
    items = helm.render("--set", "allocator.enqueuePodGroups=true")
    granted: dict[str, set[str]] = {}
    for role in items:
        if role["kind"] == "ClusterRole" and role["metadata"]["labels"]["app.kubernetes.io/component"] == "allocator":
            for rule in role["rules"]:
                for plural in rule["resources"]:
                    granted.setdefault(f"{rule['apiGroups'][0]} {plural}", set()).update(rule["verbs"])
    for kind in JOB_KINDS:
        for resource in kind.objects:
            assert granted[f"{resource.api_version.partition('/')[0]} {resource.plural}"] >= {"list", "watch"}
    for resource in ENQUEUED.values():
        assert "get" in granted[f"{resource.api_version.partition('/')[0]} {resource.plural}"]
