"""What is kept of objects that tenants write: what is read, within limits, however large the objects are."""

import ast
import contextlib
import gc
import importlib
import inspect
import json
import pkgutil
import tracemalloc
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import msgspec
import pytest

import allocator
import ascend
import device_plugin
import npuctl
from allocator.rules.job_products import (
    SCHEDULE_POLICY,
    SUB_HEALTH_STRATEGY,
    SUPER_POD_AFFINITY,
    SUPER_POD_BLOCK,
    SUPER_POD_FIT,
    TOR_AFFINITY,
)
from allocator.rules.own_devices import named_devices
from allocator.state.owned import SETTINGS as OF_JOBS
from ascend.annotations import ALLOCATED, MIN_AVAILABLE, PLACEMENT_GATE, RANK, REAL
from ascend.chips import RESOURCE
from ascend.errors import InvalidValue, Refusal
from ascend.jobs.job_set import JobSet
from ascend.jobs.kubeflow import KubeflowJob
from ascend.jobs.ray import RayCluster
from ascend.jobs.table import MARKS
from ascend.jobs.volcano_job import VolcanoJob
from ascend.kube import kept
from ascend.kube.containers import VISIBLE_DEVICES
from ascend.kube.objects import KubeObject, Pod
from ascend.kube.workloads import BatchJob, PodGroup, StatefulSet
from ascend.pod_devices import read_held
from ascend.slices import ContainerRequest
from tests.allocator.builders import GROUP, World, node, pod

FAT = 400_000
"""Bytes of an object in etcd: 1.5 MB at most."""
MOST_KEPT = 60_000
MOST_CHIPS = 64
"""Of a node; more are requested in vain."""

Json = dict[str, Any]

ONE: Json = {"limits": {RESOURCE: "1"}}


def fat_pod(**parts: Json) -> Json:
    manifest: Json = {
        "metadata": {"name": "fat", "namespace": "tenant", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": "c", "image": "x", "resources": {"limits": {RESOURCE: "1"}}}]},
        "status": {"phase": "Pending"},
    }
    for part, values in parts.items():
        manifest[part] |= values
    return manifest


def many(entry: Callable[[int], str], size: int = 20) -> list[str]:
    return [entry(number) for number in range(FAT // size)]


def of_container(**values: Any) -> Json:
    return fat_pod(spec={"containers": [{"name": "c", "image": "x"} | values]})


PODS: dict[str, Json] = {
    "annotation keys": fat_pod(metadata={"annotations": dict.fromkeys(many(lambda n: f"k{n}"), "")}),
    "annotation keys of the maker": fat_pod(
        metadata={"annotations": dict.fromkeys(many(lambda n: f"huawei.com/k{n}"), "")}
    ),
    "annotations like a vNPU": fat_pod(metadata={"annotations": dict.fromkeys(many(lambda n: f"{RESOURCE}-{n}"), "")}),
    **{
        f"annotation {key}": fat_pod(metadata={"annotations": {key: "1" * FAT}})
        for key in (GROUP, RANK, REAL, ALLOCATED, MIN_AVAILABLE, "volcano.sh/task-spec", "backupSourcePodName")
    },
    "label keys": fat_pod(metadata={"labels": dict.fromkeys(many(lambda n: f"k{n}"), "")}),
    "owners": fat_pod(metadata={"ownerReferences": [{"name": f"o{n}", "uid": "u"} for n in range(FAT // 30)]}),
    "owner": fat_pod(metadata={"ownerReferences": [{"kind": "x" * FAT, "name": "y" * FAT, "controller": True}]}),
    "node selector": fat_pod(spec={"nodeSelector": dict.fromkeys(many(lambda n: f"k{n}"), "")}),
    "affinity": fat_pod(spec={"affinity": {"nodeAffinity": many(lambda n: f"k{n}")}}),
    "tolerations": fat_pod(spec={"tolerations": [{"key": f"k{n}"} for n in range(FAT // 20)]}),
    "scheduler": fat_pod(spec={"schedulerName": "s" * FAT}),
    "gates": fat_pod(spec={"schedulingGates": [{"name": f"g{n}"} for n in range(FAT // 20)]}),
    "volumes": fat_pod(
        spec={"volumes": [{"name": f"v{n}", "persistentVolumeClaim": {"claimName": "c"}} for n in range(FAT // 60)]}
    ),
    "claim": fat_pod(spec={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c" * FAT}}]}),
    "containers": fat_pod(spec={"containers": [{"name": f"c{n}", "image": "x"} for n in range(FAT // 30)]}),
    "containers with devices": fat_pod(
        spec={
            "containers": [{"name": f"c{n}", "resources": ONE | {"requests": ONE["limits"]}} for n in range(FAT // 99)]
        }
    ),
    "init containers that name devices": fat_pod(
        spec={"initContainers": [{"name": f"c{n}", "env": [{"name": VISIBLE_DEVICES}]} for n in range(FAT // 60)]}
    ),
    "init containers": fat_pod(spec={"initContainers": [{"name": f"c{n}", "image": "x"} for n in range(FAT // 30)]}),
    "environment": of_container(env=[{"name": f"VARIABLE_{n}", "value": "x"} for n in range(FAT // 30)]),
    "index variables": of_container(env=[{"name": "VC_TASK_INDEX", "value": str(n)} for n in range(FAT // 30)]),
    "index variable": of_container(env=[{"name": "VC_TASK_INDEX", "value": "1" * FAT}]),
    "resources": of_container(resources={"requests": dict.fromkeys(many(lambda n: f"x.com/r{n}"), "1")}),
    "resources of the maker": of_container(resources={"limits": dict.fromkeys(many(lambda n: f"huawei.com/{n}"), "1")}),
    "quantity": of_container(resources={"limits": {RESOURCE: "0" * FAT + "1"}}),
    "conditions": fat_pod(status={"conditions": [{"type": f"t{n}", "message": "m"} for n in range(FAT // 30)]}),
    "condition": fat_pod(status={"conditions": [{"type": "PodScheduled", "message": "m" * FAT}]}),
    "message": fat_pod(status={"message": "m" * FAT, "reason": "r" * FAT, "nominatedNodeName": "n" * FAT}),
    "statuses": fat_pod(status={"containerStatuses": [{"name": f"c{n}"} for n in range(FAT // 20)]}),
}

BIG: Json = {"annotations": dict.fromkeys(many(lambda n: f"huawei.com/k{n}"), ""), "labels": {"app": "x"}}
CONTAINER: Json = {"name": "c", "resources": {"limits": dict.fromkeys(many(lambda n: f"x.com/r{n}"), "1")}}
TEMPLATE: Json = {"spec": {"containers": [CONTAINER]}}

OF_JOB: dict[str, tuple[type[KubeObject], Json]] = {
    "PodGroup": (PodGroup, {"metadata": BIG, "spec": {"minTaskMember": dict.fromkeys(many(lambda n: f"t{n}"), 1)}}),
    "PodGroup's topology": (PodGroup, {"spec": {"networkTopology": {"mode": "m" * FAT}}}),
    "StatefulSet": (StatefulSet, {"metadata": BIG}),
    "Job": (BatchJob, {"metadata": BIG}),
    "Volcano's Job": (VolcanoJob, {"metadata": BIG, "spec": {"tasks": [{"name": "t", "template": TEMPLATE}]}}),
    "PyTorchJob": (
        KubeflowJob, {"metadata": BIG, "spec": {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}}
    ),
    "JobSet": (
        JobSet, {"spec": {"replicatedJobs": [{"name": "j", "template": {"spec": {"template": TEMPLATE}}}]}}
    ),
    "RayCluster": (RayCluster, {"spec": {"headGroupSpec": {"template": TEMPLATE}}}),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """A collection walks the objects of these tests only, not those of all modules of the process."""
    gc.freeze()
    yield
    gc.unfreeze()


def kept_bytes(kind: type[KubeObject], manifest: Json) -> int:
    raw = json.dumps(manifest).encode()
    msgspec.json.decode(raw, type=kind)  # caches fill
    gc.collect()
    tracemalloc.start()
    decoded = msgspec.json.decode(raw, type=kind)
    gc.collect()
    found, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded is not None
    return found


@pytest.mark.parametrize("field", PODS)
def test_little_is_kept_of_a_pod_that_is_fat_by(field: str) -> None:
    assert kept_bytes(Pod, PODS[field]) < MOST_KEPT


@pytest.mark.parametrize("field", OF_JOB)
def test_little_is_kept_of_an_object_of_a_job_that_is_fat_by(field: str) -> None:
    assert kept_bytes(*OF_JOB[field]) < MOST_KEPT


def by_count(ask: ContainerRequest) -> int:
    return -ask.count


def decoded(manifest: Json) -> Pod:
    return msgspec.json.decode(json.dumps(manifest).encode(), type=Pod)


def test_what_is_left_out_of_a_fat_pod_does_not_make_it_fit_more() -> None:
    assert len(decoded(PODS["node selector"]).spec.node_selector) == 1
    assert decoded(PODS["gates"]).is_gated
    many_gates = [*({"name": f"g{n}"} for n in range(200)), {"name": PLACEMENT_GATE}]
    gates = [gate.name for gate in decoded(fat_pod(spec={"schedulingGates": many_gates})).spec.scheduling_gates]
    assert PLACEMENT_GATE in gates
    chips = {"name": "last", "resources": {"limits": {RESOURCE: "2"}}}
    containers = [*({"name": f"c{n}"} for n in range(1000)), chips]
    assert [each.count for each in decoded(fat_pod(spec={"containers": containers})).container_requests] == [2]
    more = [{"name": f"d{n}", "resources": ONE} for n in range(1000)]
    (largest, *_) = sorted(decoded(fat_pod(spec={"initContainers": [*more, chips]})).container_requests, key=by_count)
    assert largest.count == 2
    assert sum(ask.count for ask in decoded(fat_pod(spec={"containers": more})).container_requests) > MOST_CHIPS
    naming = [*({"name": f"c{n}"} for n in range(1000)), {"name": "last", "env": [{"name": VISIBLE_DEVICES}]}]
    for kind in ("containers", "initContainers"):
        assert "container last sets " in "".join(named_devices(decoded(fat_pod(spec={kind: naming}))))
    resources = {f"huawei.com/r{n}": "1" for n in range(1000)} | {RESOURCE: "2"}
    assert decoded(of_container(resources={"limits": resources})).spec.containers[0].chips == 2
    with pytest.raises(InvalidValue, match=r"container c: .* is not a whole number of chips"):
        _ = decoded(PODS["quantity"]).spec.containers[0].chips


def test_affinity_and_tolerations_that_are_too_long_differ_as_they_did() -> None:
    for field, is_list in (("affinity", False), ("tolerations", True)):
        one, two = ([{"key": "x" * FAT, "value": text}] if is_list else {"a": "x" * FAT + text} for text in "ab")
        kept_one, kept_two = (getattr(decoded(fat_pod(spec={field: value})).spec, field) for value in (one, two))
        assert kept_one != kept_two
        assert json.loads(kept_one) is not None
        assert kept_one == getattr(decoded(fat_pod(spec={field: one})).spec, field)


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        (GROUP, "InvalidRequest"),
        (MIN_AVAILABLE, "InvalidMinAvailable"),
        ("sp-block", "InvalidRequest"),
        ("huawei.com/schedule_policy", "UnknownPolicy"),
        ("leaderworkerset.sigs.k8s.io/size", ""),
    ],
)
def test_a_value_that_is_too_long_is_refused_with_pod_and_key(key: str, reason: str) -> None:
    world = World()
    world.add(node("n1"))
    long = pod("long", 4, annotations={key: "1" * FAT})
    if not reason:
        world.engine.validate(long)  # it is no such pod
        return
    with pytest.raises(Refusal) as refused:
        world.engine.validate(long)
    assert refused.value.reason == reason
    assert "default/long" in refused.value.message
    assert key in refused.value.message
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize("key", [REAL, ALLOCATED])
def test_a_list_of_chips_that_is_too_long_is_no_list(key: str) -> None:
    with pytest.raises(InvalidValue, match=key):
        read_held(pod("long", annotations={key: "Ascend910-0," * FAT}).metadata.annotations)


def test_a_list_of_100_chips_is_kept() -> None:
    names = ",".join(f"Ascend910-12c.4cpu.3ndvpp-{number}-63" for number in range(100, 200))
    assert pod("p", annotations={REAL: names}).metadata.annotations == {REAL: names}


def test_the_settings_of_jobs_are_kept_of_all_objects() -> None:
    assert kept.SETTINGS | kept.FIELDS >= OF_JOBS
    assert {
        SCHEDULE_POLICY, SUB_HEALTH_STRATEGY, SUPER_POD_AFFINITY, SUPER_POD_BLOCK, SUPER_POD_FIT, TOR_AFFINITY,
    } <= kept.DECIDING  # fmt: skip
    assert kept.POD_KEYS >= MARKS


def modules() -> Iterator[ModuleType]:
    for package in (allocator, ascend, device_plugin, npuctl):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.rpartition(".")[2] != "__main__":
                yield importlib.import_module(found.name)


def looked_up(part: ast.AST) -> tuple[ast.expr, str] | None:
    """The key of a look-up, and in what: ``X.get(key)``, ``key in X``, ``X[key]``."""
    match part:
        case ast.Call(func=ast.Attribute(attr="get", value=where), args=[key, *_]):
            return key, ast.unparse(where)
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[where]):
            return key, ast.unparse(where)
        case ast.Subscript(value=where, slice=key):
            return key, ast.unparse(where)
    return None


def read_keys() -> Iterator[tuple[str, str]]:
    """The keys by which the programs read labels and annotations of pods, each with its place."""
    for module in modules():
        for part in ast.walk(ast.parse(inspect.getsource(module))):
            key, where = looked_up(part) or (None, "")
            if key is None or not where.endswith(("labels", "annotations")) or "node." in where:
                continue
            with contextlib.suppress(NameError):  # a key of a loop
                value = eval(ast.unparse(key), dict(vars(module)))
                if isinstance(value, str):
                    yield value, f"{module.__name__}: {ast.unparse(part)}"


OF_OTHERS = frozenset({
    "accelerator", "accelerator-type", "servertype", "mind-cluster/npu-chip-memory", "node.kubernetes.io/npu.chip.name",
    "baseDeviceInfos", "superPodID", "serverIndex", "rackID", "serverType", "app.kubernetes.io/component",
    "app.kubernetes.io/version", "kubernetes.io/hostname",
    "volume.kubernetes.io/selected-node", "kueue.x-k8s.io/queue-name", "ResetInfo", "huawei.com/Ascend910-Recover",
    "huawei.com/Ascend910-NetworkRecover", "huawei.com/topotree.rackid", "huawei.com/topotree.serverid",
    "huawei.com/topotree.superpodid", "certificate", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
    "infer.huawei.com/gang-schedule",
})  # fmt: skip
"""Keys of nodes, claims, metrics and objects that are not kept; of the labels of pods those that any pod may have."""


def test_every_key_that_is_read_of_pods_is_kept() -> None:
    found = dict(read_keys())
    assert len(found) > 40
    read = {
        key: place for key, place in found.items() if key not in OF_OTHERS and not key.startswith("ascend-affinity")
    }
    assert {key: place for key, place in read.items() if key not in kept.POD_KEYS} == {}
