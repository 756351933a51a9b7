"""Builders of Kubernetes objects as in manifests."""

import json
from collections.abc import Iterable
from typing import Any

from ascend.annotations import REAL, SERVER_INDEX, SUPER_POD_ID, Grant
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.templates import RESOURCE_CORES

Json = dict[str, Any]


def node(
    name: str, *, chips: int = 8, ready: bool = True, cordoned: bool = False, kind: str = "", **labels: str
) -> Json:
    """Return a 910A server, unless ``kind`` is another ``accelerator-type``."""
    infos = write_base_device_infos({chip: ChipAddress() for chip in range(8)})
    if kind:
        labels["accelerator-type"] = kind
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "annotations": {BASE_DEVICE_INFOS: infos}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "allocatable": {RESOURCE: str(chips), "cpu": "64"},
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def cut_node(name: str, *, chips: int = 2, each: int = 2, allocatable: int | None = None) -> Json:
    """A 910A server of which the first chips are cut into vNPUs of 2 cores."""
    made = node(name)
    infos = json.loads(made["metadata"]["annotations"]["baseDeviceInfos"])
    for chip in range(chips):
        del infos[f"Ascend910-{chip}"]
        infos |= {f"Ascend910-2c-{100 + chip * each + number}-{chip}": {} for number in range(each)}
    made["metadata"]["annotations"]["baseDeviceInfos"] = json.dumps(infos)
    offered = chips * each if allocatable is None else allocatable
    made["status"]["allocatable"] |= {RESOURCE: str(8 - chips), f"{RESOURCE}-2c": str(offered)}
    return made


def super_pod_node(super_pod: int, index: int) -> Json:
    """Return the A3 server ``<super pod>-<index>`` of a SuperPod."""
    made = node(f"{super_pod}-{index}", chips=16, kind="module-a3-16-super-pod")
    infos = write_base_device_infos({chip: ChipAddress() for chip in range(16)})
    made["metadata"]["annotations"] = {
        BASE_DEVICE_INFOS: infos, SUPER_POD_ID: str(super_pod), SERVER_INDEX: str(index)
    }  # fmt: skip
    return made


def pod(
    name: str,
    count: float | str | None = 1,
    *,
    node: str = "",
    chips: Iterable[int] = (),
    phase: str = "",
    namespace: str = "default",
    selector: dict[str, str] | None = None,
    **metadata: Any,
) -> Json:
    written = Grant(tuple(chips), 7).annotations() if chips else {}
    limits = {} if count is None else {RESOURCE: count}
    manifest: Json = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": {"containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}]},
    }
    manifest["metadata"]["annotations"] = {**written, **metadata.get("annotations", {})}
    if node:
        manifest["spec"]["nodeName"] = node
    if selector:
        manifest["spec"]["nodeSelector"] = selector
    if phase or node:
        manifest["status"] = {"phase": phase or "Running"}
    return manifest


def parts(name: str, count: str, **more: Any) -> Json:
    """Return a pod that requests vNPUs."""
    manifest = pod(name, None, **more)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {f"{RESOURCE}-2c": count}}
    return manifest


def core_node(name: str, cores: int = 160, *, kind: str = "Ascend910B-20", **more: Any) -> Json:
    """A 910B3 server that offers AI cores."""
    made = node(name, **more)
    made["metadata"]["labels"] |= {
        "accelerator-type": "module-910b-8", "servertype": kind, "mind-cluster/npu-chip-memory": "64G"
    }  # fmt: skip
    made["status"]["allocatable"] = {RESOURCE_CORES: str(cores), "cpu": "64"}
    return made


def core_pod(name: str, cores: int, has: str = "", *, real: str = "", **more: Any) -> Json:
    """A pod that requests AI cores, with what was written on it."""
    written = ({RESOURCE_CORES: has} if has else {}) | ({REAL: real} if real else {})
    made = pod(name, None, annotations=written, **more)
    made["spec"]["containers"][0]["resources"] = {"limits": {RESOURCE_CORES: str(cores)}}
    return made


def report(name: str, *, unhealthy: int = 0, at_s: int = 1_767_225_600) -> Json:
    made = DeviceReport(free=0xFF & ~unhealthy, unhealthy=unhealthy, network_unhealthy=0, update_time_s=at_s)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": config_map_name(name), "namespace": NAMESPACE},
        "data": encode_report(made),
    }


def as_list(*objects: Json) -> Json:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


def pod_group(name: str, minimum: int, *, group: str = "scheduling.volcano.sh/v1beta1", **metadata: Any) -> Json:
    return {
        "apiVersion": group,
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"minMember": minimum},
    }


def member(name: str, group: str, count: int = 8, **more: Any) -> Json:
    """Return a pod of a Volcano pod group."""
    return pod(name, count, annotations={"scheduling.k8s.io/group-name": group}, **more)


def with_nodes(plan: Json) -> Json:
    """The answer of ``npuctl plan``, with what each node says at each pod that waits."""
    verdicts, refusals, sets = plan.pop("verdicts"), plan.pop("refusals"), plan.pop("node_sets")
    for each in plan["pending"]:
        verdict = each.pop("verdict")
        said = [] if verdict is None else [refusals[number] for number in verdicts[verdict]]
        nodes = {
            name: {"reason": why["reason"], "message": why["message"]} for why in said for name in sets[why["nodes"]]
        }
        each["nodes"] = dict(sorted(nodes.items()))
    return plan
