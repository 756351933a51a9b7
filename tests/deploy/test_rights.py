"""Every right of the two accounts on a real API server: what it allows, and that it stays there.

Each right that the chart grants has a row: requests that have to be admitted, with RBAC as the chart grants it; and
requests for the objects of another node, or for other objects and fields, that the policy of the account has to deny
even if RBAC granted everything. Rights that can't be narrowed are listed with the reason.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from allocator.leadership.endpoint import STARTED, Endpoint, publish
from ascend.annotations import FENCE, NOMINATED, PLACEMENT_GATE, POD_STATUS, REQUEUED
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.cordons import CORDONED
from ascend.deviceinfo import MANUALLY_SEPARATED, OUR_PLUGIN, WRITTEN_BY, config_map_name
from ascend.jobs.table import ENQUEUED, JOB_KINDS
from ascend.kube.client import KubeClient
from device_plugin.publish.rights import rights
from npuctl.cli import app
from npuctl.doctor.rights import ALLOCATORS, Account, Denied, read_denied
from tests import allocator_keys as of_allocator
from tests import plugin_keys as of_plugin
from tests.cluster.api import Server
from tests.cluster.binaries import MINOR
from tests.cluster.fixtures import require_cluster
from tests.cluster.processes import wait_until
from tests.deploy import accounts, helm
from tests.deploy.accounts import (
    ALLOCATOR,
    APPLY,
    JSON_PATCH,
    KUEUE,
    NAMESPACE,
    OTHER,
    OWN,
    PLUGIN,
    STRATEGIC,
    TENANT,
    Ask,
    Lab,
    api,
    change,
    core,
    event,
    is_by_policy,
    new,
    rendered_rights,
)

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

EVENTS: Final = "events.k8s.io/v1"
LEASES: Final = "coordination.k8s.io/v1"
REVIEWS: Final = "authorization.k8s.io/v1"
LEADERS: Final = "ascend-affinity.io/v1alpha1"
SLICES: Final = "discovery.k8s.io/v1"
GROUPS: Final = "scheduling.volcano.sh/v1beta1"

REPORT: Final = config_map_name(OWN)
MINE, FOREIGN = core("pods", f"on-{OWN}", TENANT), core("pods", f"on-{OTHER}", TENANT)
SERIES: Final = {"count": 3, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}
IMAGE: Final = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
TOLERATION: Final = {"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}
OWN_SERVICE: Final = core("services", ALLOCATOR, NAMESPACE)
LIFTED: Final = {"op": "remove", "path": "/spec/schedulingGates/0"}


CONTROL_PLANE: Final = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
NPU_TAINTS: Final = [{"key": key, "value": "SeparateNPU", "effect": "NoExecute"} for key in of_plugin.NODE_TAINTS]
NPU_CONDITIONS: Final = [
    {
        "type": kind,
        "status": "True",
        "reason": "SeparateNPU",
        "message": "m",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
    }
    for kind in of_plugin.NODE_CONDITIONS
]


def keys(*names: str) -> dict[str, str]:
    """Labels or annotations with a value."""
    return dict.fromkeys(names, "x")


def meta(**fields: Any) -> dict[str, Any]:
    return {"metadata": fields}


PLUGIN_MAY: Final = {
    "patch pods": [
        change(MINE, **meta(annotations=keys(*of_plugin.POD_ANNOTATIONS, "huawei.com/Ascend910-2c"))),
        change(core("pods", f"on-{OWN}", "kube-system"), **meta(annotations=keys(*of_plugin.POD_ANNOTATIONS))),
        change(MINE, **meta(annotations=dict.fromkeys(of_plugin.POD_ANNOTATIONS))),
    ],
    "patch nodes": [
        change(
            core("nodes", OWN),
            **meta(labels=keys(*of_plugin.NODE_LABELS), annotations=keys(*of_plugin.NODE_ANNOTATIONS)),
        ),
        change(core("nodes", OWN), **meta(labels=dict.fromkeys(of_plugin.NODE_LABELS))),
        *(change(core("nodes", OWN), spec={"taints": [CONTROL_PLANE, *more]}) for more in (NPU_TAINTS, ())),
    ],
    "patch nodes/status": [
        Ask("PATCH", f"{core('nodes', OWN)}/status", {"status": {"conditions": NPU_CONDITIONS}}, STRATEGIC)
    ],
    "create configmaps in kube-system": [
        new(
            core("configmaps", namespace="kube-system"),
            "ConfigMap",
            {
                "name": REPORT,
                "labels": keys(*of_plugin.REPORT_LABELS),
                "annotations": keys(*of_plugin.REPORT_ANNOTATIONS),
            },
            data=keys(*of_plugin.REPORT_KEYS),
        )
    ],
    "patch configmaps in kube-system": [
        change(
            core("configmaps", REPORT, "kube-system"),
            **meta(annotations=dict.fromkeys(of_plugin.REPORT_ANNOTATIONS)),
            data=dict.fromkeys(of_plugin.REPORT_KEYS, "y"),
        )
    ],
    "create events.events.k8s.io": [
        event("ascend-device-plugin", OWN, "Node", OWN),
        event("ascend-device-plugin", OWN, "Pod", f"on-{OWN}", TENANT),
        event("ascend-device-plugin", OWN, "Node", OWN, metadata={"name": "of-plugin"}),
    ],
    "patch events.events.k8s.io": [
        change(
            api(EVENTS, "events", "of-plugin", "default"),
            series={"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"},
        )
    ],
}
"""What the device plugin does with each right to write; in the order in which it can."""

_READS: Final = "RBAC knows no field selectors, so a right to read is for all objects of the kind"
PLUGIN_READS: Final = {
    "get pods": _READS,
    "list pods": f"{_READS}; `get nodes/pods` shows the same pods of any kubelet",
    "watch pods": f"{_READS}; `get nodes/pods` shows the same pods of any kubelet",
    "get nodes": f"{_READS}; the names of nodes are not known when the chart is installed",
    "list nodes": f"{_READS}; the names of nodes are not known when the chart is installed",
    "watch nodes": f"{_READS}; the names of nodes are not known when the chart is installed",
    "get nodes/pods": "kubelets ask only for the right to nodes, and RBAC can't name the node of each plugin",
    "get nodes/metrics": "as nodes/pods",
    "list configmaps": f"{_READS} (jobFiles)",
    "watch configmaps": f"{_READS} (jobFiles)",
    "get configmaps in kube-system": f"{_READS}; every node's report has another name",
    "list configmaps in kube-system": f"{_READS}; every node's report has another name",
    "watch configmaps in kube-system": f"{_READS}; every node's report has another name",
}
"""Rights of the device plugin that can't be narrowed to its node, and why."""


def plugin_forgeries_of_node() -> dict[str, Ask]:
    """What the policy has to deny to the device plugin of the node ``own`` that has every right."""
    chips = meta(annotations=keys("huawei.com/AscendReal"))
    other_report = core("configmaps", config_map_name(OTHER), "kube-system")
    config_maps = core("configmaps", namespace="kube-system")
    report = {"name": REPORT, "labels": keys(*of_plugin.REPORT_LABELS)}
    claim = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"on-{OTHER}", **chips["metadata"]}}
    owner = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]
    resize = {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}}
    return {
        **({"resize": Ask("PATCH", f"{MINE}/resize", resize, STRATEGIC)} if MINOR >= 33 else {}),  # served from then on
        # Pods of another node, and pods that are not bound, in every form of a write.
        "claim of another node's pod": change(FOREIGN, **chips),
        "claim, strategic": Ask("PATCH", FOREIGN, chips, STRATEGIC),
        "claim, applied": Ask("PATCH", f"{FOREIGN}?fieldManager=x&force=true", claim, APPLY),
        "claim, JSON patch": Ask(
            "PATCH",
            FOREIGN,
            [{"op": "add", "path": "/metadata/annotations", "value": keys("huawei.com/AscendReal")}],
            JSON_PATCH,
        ),
        "claim, tried only": change(f"{FOREIGN}?dryRun=All", **chips),
        "claim of a pending pod": change(core("pods", "pending", TENANT), **chips),
        "claim of a kube-system pod": change(core("pods", f"on-{OTHER}", "kube-system"), **chips),
        "image of another node's pod": Ask("PATCH", FOREIGN, IMAGE, STRATEGIC),
        # Of pods of its own node, everything but the claim.
        "image": Ask("PATCH", MINE, IMAGE, STRATEGIC),
        "toleration": Ask("PATCH", MINE, [TOLERATION], JSON_PATCH),
        "deadline": change(MINE, spec={"activeDeadlineSeconds": 1}),
        "label of a pod": change(MINE, **meta(labels=keys("app"))),
        "finalizer of a pod": change(MINE, **meta(finalizers=["a.b/c"])),
        "owner of a pod": change(MINE, **meta(ownerReferences=owner)),
        "other annotation": change(MINE, **meta(annotations=keys("note"))),
        "chips of another node's pod": change(FOREIGN, **meta(annotations=keys("huawei.com/Ascend910"))),
        "mark of a requeued pod": change(MINE, **meta(annotations=keys(REQUEUED))),
        "fence": change(MINE, **meta(annotations=keys(FENCE))),
        "status of a pod": change(f"{MINE}/status", status={"podIP": "10.0.0.1"}),
        "status of a pod, as a claim": change(f"{MINE}/status", **chips),
        "ephemeral container": Ask(
            "PATCH",
            f"{MINE}/ephemeralcontainers",
            {"spec": {"ephemeralContainers": [{"name": "e", "image": "evil"}]}},
            STRATEGIC,
        ),
        "binding": new(
            core("pods", "pending", TENANT, "binding"),
            "Binding",
            {"name": "pending"},
            target={"apiVersion": "v1", "kind": "Node", "name": OWN},
        ),
        "eviction": new(f"{MINE}/eviction", "Eviction", {"name": f"on-{OWN}"}, version="policy/v1"),
        "deletion of a pod": Ask("DELETE", MINE),
        "deletion of pods": Ask("DELETE", core("pods", namespace=TENANT)),
        "new pod": new(
            core("pods", namespace=TENANT),
            "Pod",
            {"name": "new"},
            spec={"nodeName": OWN, "containers": [{"name": "a", "image": "a"}]},
        ),
        "exec": Ask("POST", f"{MINE}/exec?command=id&container=main"),
        "logs of kubelets": Ask("GET", core("nodes", OTHER, subresource="proxy/logs/")),
        "token": new(
            core("serviceaccounts", ALLOCATOR, NAMESPACE, "token"),
            "TokenRequest",
            {},
            version="authentication.k8s.io/v1",
            spec={},
        ),
        "account": new(core("serviceaccounts", namespace=TENANT), "ServiceAccount", {"name": "new"}),
        "secret": new(core("secrets", namespace=TENANT), "Secret", {"name": "new"}),
        "namespace": change(core("namespaces", TENANT), **meta(labels=keys("app"))),
        # Nodes.
        "label of another node": change(core("nodes", OTHER), **meta(labels=keys("servertype"))),
        "annotation of another node": change(core("nodes", OTHER), **meta(annotations=keys("baseDeviceInfos"))),
        "taints of another node": change(core("nodes", OTHER), spec={"taints": [CONTROL_PLANE, *NPU_TAINTS]}),
        "taints": change(core("nodes", OWN), spec={"taints": None}),
        "taints of others, with its own": change(core("nodes", OWN), spec={"taints": NPU_TAINTS}),
        "taint with another key": change(
            core("nodes", OWN), spec={"taints": [CONTROL_PLANE, {"key": "a.b/c", "effect": "NoExecute"}]}
        ),
        "cordon": change(core("nodes", OWN), spec={"unschedulable": True}),
        "role of the node": change(core("nodes", OWN), **meta(labels=keys("node-role.kubernetes.io/control-plane"))),
        "restricted label": change(core("nodes", OWN), **meta(labels=keys("node-restriction.kubernetes.io/tenant"))),
        "zone": change(core("nodes", OWN), **meta(labels=keys("topology.kubernetes.io/zone"))),
        "pool": change(core("nodes", OWN), **meta(labels=keys("ascend-affinity.io/pool"))),
        "other annotation of the node": change(core("nodes", OWN), **meta(annotations=keys("note"))),
        "owner of the node": change(core("nodes", OWN), **meta(ownerReferences=owner)),
        "finalizer of the node": change(core("nodes", OWN), **meta(finalizers=["a.b/c"])),
        "status of the node": change(
            f"{core('nodes', OWN)}/status", status={"capacity": {"huawei.com/Ascend910": "64"}}
        ),
        "condition of another node": Ask(
            "PATCH", f"{core('nodes', OTHER)}/status", {"status": {"conditions": NPU_CONDITIONS}}, STRATEGIC
        ),
        "condition of the kubelet": Ask(
            "PATCH",
            f"{core('nodes', OWN)}/status",
            {"status": {"conditions": [{"type": "Ready", "status": "True"}, *NPU_CONDITIONS]}},
            STRATEGIC,
        ),
        "label, with the status": change(f"{core('nodes', OWN)}/status", **meta(labels=keys("servertype"))),
        "new node": new(core("nodes"), "Node", {"name": "new"}),
        "deletion of a node": Ask("DELETE", core("nodes", OTHER)),
        # ConfigMaps.
        "report of another node": change(other_report, data=keys("ManuallySeparateNPU")),
        "report of a node whose name is longer": new(
            config_maps, "ConfigMap", {**report, "name": config_map_name(f"{OWN}x")}
        ),
        "report with a made up name": new(
            config_maps, "ConfigMap", {"generateName": f"{REPORT}-", "labels": report["labels"]}
        ),
        "report by generateName": new(config_maps, "ConfigMap", {"generateName": REPORT}),
        "report elsewhere": new(core("configmaps", namespace=TENANT), "ConfigMap", report),
        "report that is owned": new(config_maps, "ConfigMap", {**report, "ownerReferences": owner}),
        "report that can't be deleted": new(config_maps, "ConfigMap", {**report, "finalizers": ["a.b/c"]}),
        "report with another label": new(config_maps, "ConfigMap", {**report, "labels": keys("app")}),
        "report with another annotation": new(config_maps, "ConfigMap", {**report, "annotations": keys("note")}),
        "report with other keys": new(config_maps, "ConfigMap", report, data=keys("Corefile")),
        "report that is immutable": new(config_maps, "ConfigMap", report, immutable=True),
        "report, applied to another node": Ask(
            "PATCH",
            f"{other_report}?fieldManager=x&force=true",
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config_map_name(OTHER)}, "data": keys("a")},
            APPLY,
        ),
        "fault rules": new(config_maps, "ConfigMap", {"name": "mindx-dl-fault-config"}, data=keys("x")),
        "CoreDNS": change(core("configmaps", "coredns", "kube-system"), data=keys("Corefile")),
        "CA of aggregated API servers": change(
            core("configmaps", "extension-apiserver-authentication", "kube-system"),
            data=keys("requestheader-client-ca-file"),
        ),
        "deletion of a report": Ask("DELETE", other_report),
        "deletion of all reports": Ask("DELETE", f"{config_maps}?labelSelector=mx-consumer-cim"),
        # Events.
        "Event on another node": event("ascend-device-plugin", OWN, "Node", OTHER),
        "Event of another node's plugin": event("ascend-device-plugin", OTHER, "Node", OWN),
        "Event of a pod by another node's plugin": event("ascend-device-plugin", OTHER, "Pod", f"on-{OTHER}", TENANT),
        "Event of the kubelet": event("kubelet", OWN, "Node", OWN),
        "Event on a Secret": event("ascend-device-plugin", OWN, "Secret", "s", TENANT),
        "Event with an owner": event("ascend-device-plugin", OWN, "Node", OWN, metadata={"ownerReferences": owner}),
        "core Event": new(
            core("events", namespace="default"),
            "Event",
            {"name": "e", "namespace": "default"},
            involvedObject={"kind": "Node", "name": OWN},
            reportingComponent="ascend-device-plugin",
            reportingInstance=OWN,
        ),
        "Event of others": change(api(EVENTS, "events", "of-others", "default"), series=SERIES),
        "note of its own Event": change(api(EVENTS, "events", "of-plugin", "default"), **meta(labels=keys("a"))),
        "deletion of Events": Ask("DELETE", api(EVENTS, "events", namespace="default")),
    }


_LISTED: Final = "the allocator counts the chips of all nodes, pods and jobs"
_STATED: Final = "the job of a pod group may have any name"
_JOBS: Final = frozenset(
    f"{each.plural}.{each.api_version.partition('/')[0]}" for kind in JOB_KINDS for each in kind.objects
)
_KINDS: Final = (
    "hypernodes.topology.volcano.sh",
    "statefulsets.apps",
    "jobs.batch",
    *sorted(_JOBS),
    "trainingruns.trainers.example.com",
    "nodes",
    "pods",
)
ALLOCATOR_READS: Final = {
    **{f"{verb} {kind}": _LISTED for verb in ("list", "watch") for kind in _KINDS},
    "get pods": _LISTED,
    "get persistentvolumeclaims": "a pod may name any claim of its namespace",
    **{
        f"{verb} {kind}.kueue.x-k8s.io": "workloads are of any namespace, and checks and flavors have any name"
        for verb in ("list", "watch")
        for kind in ("admissionchecks", "resourceflavors", "workloads")
    },
    **{f"get {each.plural}.{each.api_version.partition('/')[0]}": _STATED for each in ENQUEUED.values()},
    "get configmaps": "reset-config-<job> of any job (rescheduling.resetConfig)",
    **{
        f"{verb} configmaps in {namespace}": "reports are selected by a label, which RBAC does not know"
        for verb in ("list", "watch")
        for namespace in ("kube-system", "mindx-dl")
    },
}
"""Rights of the allocator that can't be narrowed, and why."""

ALLOCATOR_NAMED: Final = (
    f"get leases.coordination.k8s.io {ALLOCATOR} in {NAMESPACE}",
    f"get leaders.ascend-affinity.io {ALLOCATOR} in {NAMESPACE}",
    f"get services {ALLOCATOR} in {NAMESPACE}",
    f"get configmaps {ALLOCATOR}-faults in {NAMESPACE}",
    "get configmaps job-reschedule-reason in mindx-dl",
    "get configmaps vcjob-fault-npu-cm in volcano-system",
    "get configmaps tor-share-cm in volcano-system",
)
"""Rights to read one object, by its name."""


REVIEW: Final = {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods", "namespace": TENANT}}


def allocator_may() -> dict[str, list[Ask]]:
    """What the allocator does with each right to write, in the order in which it can."""
    lease = {"holderIdentity": "a", "leaseDurationSeconds": 15}
    slices = api(SLICES, "endpointslices", namespace=NAMESPACE)
    gate = {"spec": {"schedulingGates": [{"name": PLACEMENT_GATE, "$patch": "delete"}]}}
    nominated = meta(annotations=keys(NOMINATED))
    target = {"apiVersion": "v1", "kind": "Node", "name": OWN}
    given = dict.fromkeys((*of_allocator.IN_BINDINGS, "huawei.com/Ascend910-2c"), "x")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "R", "message": "m"}
    started = {**condition, "type": STARTED, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    group = api(GROUPS, "podgroups", "group", TENANT)
    return {
        "create subjectaccessreviews.authorization.k8s.io": [
            new(api(REVIEWS, "subjectaccessreviews"), "SubjectAccessReview", {}, version=REVIEWS, spec=REVIEW)
        ],
        f"create leaders.ascend-affinity.io in {NAMESPACE}": [
            new(
                api(LEADERS, "leaders", namespace=NAMESPACE),
                "Leader",
                {"name": ALLOCATOR},
                version=LEADERS,
                spec={"holder": "x"},
            )
        ],
        f"patch leaders.ascend-affinity.io {ALLOCATOR} in {NAMESPACE}": [
            change(api(LEADERS, "leaders", ALLOCATOR, NAMESPACE), spec={"holder": "x"})
        ],
        f"create leases.coordination.k8s.io in {NAMESPACE}": [
            new(api(LEASES, "leases", namespace=NAMESPACE), "Lease", {"name": ALLOCATOR}, version=LEASES, spec=lease)
        ],
        f"patch leases.coordination.k8s.io {ALLOCATOR} in {NAMESPACE}": [
            change(api(LEASES, "leases", ALLOCATOR, NAMESPACE), **meta(annotations=keys("a")), spec=lease)
        ],
        f"create endpointslices.discovery.k8s.io in {NAMESPACE}": [
            new(
                slices,
                "EndpointSlice",
                {"name": f"{ALLOCATOR}-leader", "labels": SLICE_LABELS, "ownerReferences": [SERVICE]},
                version=SLICES,
                addressType="IPv4",
                endpoints=[{"addresses": ["10.1.0.1"]}],
            )
        ],
        f"patch endpointslices.discovery.k8s.io {ALLOCATOR}-leader in {NAMESPACE}": [
            change(f"{slices}/{ALLOCATOR}-leader", endpoints=[{"addresses": ["10.1.0.2"]}])
        ],
        f"delete endpointslices.discovery.k8s.io {ALLOCATOR}-leader in {NAMESPACE}": [
            Ask("DELETE", f"{slices}/{ALLOCATOR}-leader")
        ],
        f"patch services/status {ALLOCATOR} in {NAMESPACE}": [
            Ask("PATCH", f"{OWN_SERVICE}/status", {"status": {"conditions": [started]}}, STRATEGIC)
        ],
        **{
            f"create configmaps in {namespace}": [
                new(core("configmaps", namespace=namespace), "ConfigMap", {"name": name}, data=keys("a"))
                for name in names
            ]
            for namespace, names in CONFIG_MAPS.items()
        },
        **{
            f"patch configmaps {name} in {namespace}": [change(core("configmaps", name, namespace), data=keys("b"))]
            for namespace, names in CONFIG_MAPS.items()
            for name in names
        },
        "patch configmaps": [
            change(core("configmaps", "reset-config-job", TENANT), data=keys("reset.json", "restartType"))
        ],
        "patch pods": [
            change(core("pods", "pending", TENANT), **meta(annotations=keys(REQUEUED))),
            change(MINE, **meta(annotations=keys(POD_STATUS))),
            Ask("PATCH", core("pods", "gated", TENANT), gate, STRATEGIC),
        ],
        "patch pods/status": [
            change(core("pods", "pending", TENANT, "status"), **nominated, status={"nominatedNodeName": OWN}),
            change(core("pods", "pending", TENANT, "status"), status={"nominatedNodeName": None}),
            Ask("PATCH", f"{FOREIGN}/status", {"status": {"conditions": [condition]}}, STRATEGIC),
            Ask("PATCH", f"{FOREIGN}/status", {"status": {"conditions": [condition], "phase": "Failed"}}, STRATEGIC),
        ],
        "create pods/binding": [
            new(
                core("pods", "pending", TENANT, "binding"),
                "Binding",
                {"name": "pending", "annotations": given},
                target=target,
            )
        ],
        "create pods/eviction": [
            new(
                core("pods", "pending", TENANT, "eviction"),
                "Eviction",
                {"name": "pending", "namespace": TENANT},
                version="policy/v1",
                deleteOptions={"gracePeriodSeconds": 0},
            )
        ],
        "delete pods": [Ask("DELETE", f"{FOREIGN}?gracePeriodSeconds=0")],
        "patch podgroups.scheduling.volcano.sh": [change(group, status={"phase": "Inqueue"})],
        "patch podgroups/status.scheduling.volcano.sh": [change(f"{group}/status", status={"phase": "Inqueue"})],
        "patch admissionchecks/status.kueue.x-k8s.io": [
            change(api(KUEUE, "admissionchecks", "chips", subresource="status"), status={"conditions": []})
        ],
        "patch workloads/status.kueue.x-k8s.io": [
            change(f"{WORKLOAD}/status", status={"admissionChecks": [], "requeueState": {}})
        ],
        "create events.events.k8s.io": [
            event("ascend-allocator", "a", "Pod", "pending", TENANT),
            event("ascend-allocator", "a", "Pod", "p", metadata={"name": "of-allocator"}),
        ],
        "patch events.events.k8s.io": [change(api(EVENTS, "events", "of-allocator", "default"), series=SERIES)],
    }


WORKLOAD: Final = api(KUEUE, "workloads", "workload", TENANT)
SERVICE: Final = {"apiVersion": "v1", "kind": "Service", "name": ALLOCATOR, "uid": "1"}
SLICE_LABELS: Final = {
    "kubernetes.io/service-name": ALLOCATOR,
    "endpointslice.kubernetes.io/managed-by": "ascend-allocator",
}
CONFIG_MAPS: Final = {
    NAMESPACE: (f"{ALLOCATOR}-faults",),
    "mindx-dl": ("job-reschedule-reason",),
    "volcano-system": ("vcjob-fault-npu-cm", "tor-share-cm"),
}


def allocator_forgeries_of_cluster() -> dict[str, Ask]:
    """What the policy has to deny to the allocator that has every right."""
    pending, gated = core("pods", "pending", "kube-system"), core("pods", "gated", "kube-system")
    owner = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]
    lifted = [{"name": "example.org/mine"}]
    slices = api(SLICES, "endpointslices", namespace=NAMESPACE)
    slice_of = {"name": f"{ALLOCATOR}-leader", "labels": SLICE_LABELS}
    other = {**SLICE_LABELS, "kubernetes.io/service-name": "kubernetes"}
    group = api(GROUPS, "podgroups", "group", TENANT)
    ready = {"type": "Ready", "status": "True"}
    on = {"apiVersion": "v1", "kind": "Node", "name": OWN}
    return {
        "image": Ask("PATCH", pending, IMAGE, STRATEGIC),
        "label of a pod": change(pending, **meta(labels=keys("app"))),
        "finalizer of a pod": change(pending, **meta(finalizers=["a.b/c"])),
        "owner of a pod": change(pending, **meta(ownerReferences=owner)),
        "other annotation": change(pending, **meta(annotations=keys("note"))),
        "chips on a pod that exists": change(pending, **meta(annotations=keys("huawei.com/Ascend910"))),
        "claim": change(pending, **meta(annotations=keys("huawei.com/AscendReal"))),
        "toleration": Ask("PATCH", pending, [TOLERATION], JSON_PATCH),
        "deadline": change(pending, spec={"activeDeadlineSeconds": 1}),
        "gate of others": change(gated, spec={"schedulingGates": [{"name": PLACEMENT_GATE}]}),
        "all gates": change(gated, spec={"schedulingGates": None}),
        "own gate and an image": Ask(
            "PATCH",
            gated,
            {"spec": {**IMAGE["spec"], "schedulingGates": [{"name": PLACEMENT_GATE, "$patch": "delete"}]}},
            STRATEGIC,
        ),
        "own gate and a toleration": Ask("PATCH", gated, [LIFTED, TOLERATION], JSON_PATCH),
        "own gate and a node selector": change(gated, spec={"schedulingGates": lifted, "nodeSelector": keys("a")}),
        "own gate and an affinity": change(
            gated,
            spec={
                "schedulingGates": lifted,
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
                        }
                    }
                },
            },
        ),
        "address of a pod": change(f"{pending}/status", status={"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
        "phase of a pod": change(f"{pending}/status", status={"phase": "Succeeded"}),
        "readiness of a pod": Ask("PATCH", f"{pending}/status", {"status": {"conditions": [ready]}}, STRATEGIC),
        "reason of a pod": change(f"{pending}/status", status={"reason": "Evicted"}),
        "chips with the status": change(f"{pending}/status", **meta(annotations=keys("huawei.com/AscendReal"))),
        "label with the status": change(f"{pending}/status", **meta(labels=keys("app"))),
        "ephemeral container": Ask(
            "PATCH",
            core("pods", f"on-{OTHER}", "kube-system", "ephemeralcontainers"),
            {"spec": {"ephemeralContainers": [{"name": "e", "image": "evil"}]}},
            STRATEGIC,
        ),
        "admission of a workload": change(f"{WORKLOAD}/status", status={"admission": {"clusterQueue": "q"}}),
        "queue of a workload": change(WORKLOAD, spec={"queueName": "q"}),
        "controller of a check": change(api(KUEUE, "admissionchecks", "chips"), spec={"controllerName": "c"}),
        "annotation in a Binding": new(
            f"{pending}/binding", "Binding", {"name": "pending", "annotations": keys("note")}, target=on
        ),
        "deletion of a pending pod": Ask("DELETE", pending),
        "new pod": new(
            core("pods", namespace=TENANT), "Pod", {"name": "new"}, spec={"containers": [{"name": "a", "image": "a"}]}
        ),
        "exec": Ask("POST", f"{core('pods', f'on-{OTHER}', 'kube-system')}/exec?command=id&container=main"),
        "token": new(
            core("serviceaccounts", ALLOCATOR, NAMESPACE, "token"),
            "TokenRequest",
            {},
            version="authentication.k8s.io/v1",
            spec={},
        ),
        "secret": new(core("secrets", namespace=NAMESPACE), "Secret", {"name": "new"}),
        "label of a node": change(core("nodes", OWN), **meta(labels=keys("servertype"))),
        "taint of a node": change(core("nodes", OWN), spec={"taints": None}),
        "Lease of others": change(api(LEASES, "leases", "somebodys", NAMESPACE), spec={"holderIdentity": "a"}),
        "Lease of a node": new(
            api(LEASES, "leases", namespace="kube-system"), "Lease", {"name": ALLOCATOR}, version=LEASES, spec={}
        ),
        "Lease by generateName": new(
            api(LEASES, "leases", namespace=NAMESPACE), "Lease", {"generateName": ALLOCATOR}, version=LEASES, spec={}
        ),
        "deletion of a Lease": Ask("DELETE", api(LEASES, "leases", "somebodys", NAMESPACE)),
        "Leader with another name": new(
            api(LEADERS, "leaders", namespace=NAMESPACE), "Leader", {"name": "x"}, version=LEADERS, spec={"holder": "x"}
        ),
        "endpoint with another name": new(
            slices, "EndpointSlice", {**slice_of, "name": "x"}, version=SLICES, addressType="IPv4", endpoints=[]
        ),
        "endpoint of another Service": new(
            slices, "EndpointSlice", {**slice_of, "labels": other}, version=SLICES, addressType="IPv4", endpoints=[]
        ),
        "endpoint of another namespace": new(
            api(SLICES, "endpointslices", namespace="default"),
            "EndpointSlice",
            slice_of,
            version=SLICES,
            addressType="IPv4",
            endpoints=[],
        ),
        "endpoint that something else owns": new(
            slices,
            "EndpointSlice",
            {**slice_of, "ownerReferences": [{**SERVICE, "name": "kubernetes"}]},
            version=SLICES,
            addressType="IPv4",
            endpoints=[],
        ),
        "endpoint that can't be deleted": new(
            slices,
            "EndpointSlice",
            {**slice_of, "finalizers": ["a.b/c"]},
            version=SLICES,
            addressType="IPv4",
            endpoints=[],
        ),
        "deletion of another endpoint": Ask("DELETE", f"{slices}/somebodys"),
        "deletion of another namespace's endpoint": Ask(
            "DELETE", api(SLICES, "endpointslices", f"{ALLOCATOR}-leader", TENANT)
        ),
        "deletion of all endpoints": Ask("DELETE", slices),
        "label of the Leader": change(api(LEADERS, "leaders", ALLOCATOR, NAMESPACE), **meta(labels=keys("a"))),
        "Leader of another namespace": new(
            api(LEADERS, "leaders", namespace=TENANT),
            "Leader",
            {"name": ALLOCATOR},
            version=LEADERS,
            spec={"holder": "x"},
        ),
        "status of another Service": change(
            core("services", "kubernetes", "default", "status"), status={"conditions": []}
        ),
        "port of its Service": change(OWN_SERVICE, spec={"ports": [{"port": 444}]}),
        "label of its Service": change(OWN_SERVICE, **meta(labels=keys("a"))),
        "annotation of its Service, with the status": change(f"{OWN_SERVICE}/status", **meta(annotations=keys("a"))),
        "Endpoints": new(core("endpoints", namespace=NAMESPACE), "Endpoints", {"name": ALLOCATOR}),
        "ConfigMap of others": change(core("configmaps", "somebodys", TENANT), data=keys("reset.json")),
        "ConfigMap beside its own": change(core("configmaps", "somebodys", NAMESPACE), data=keys("a")),
        "new ConfigMap": new(core("configmaps", namespace=NAMESPACE), "ConfigMap", {"name": f"{ALLOCATOR}-faultsx"}),
        "its ConfigMap elsewhere": new(
            core("configmaps", namespace="mindx-dl"), "ConfigMap", {"name": f"{ALLOCATOR}-faults"}
        ),
        "its ConfigMap with an owner": new(
            core("configmaps", namespace=NAMESPACE),
            "ConfigMap",
            {"name": f"{ALLOCATOR}-faults", "ownerReferences": owner},
        ),
        "its ConfigMap, immutable": new(
            core("configmaps", namespace=NAMESPACE), "ConfigMap", {"name": f"{ALLOCATOR}-faults"}, immutable=True
        ),
        "immutable ConfigMap of a job": change(core("configmaps", "reset-config-job", TENANT), immutable=True),
        "ConfigMap by generateName": new(
            core("configmaps", namespace=NAMESPACE), "ConfigMap", {"generateName": f"{ALLOCATOR}-faults"}
        ),
        "ConfigMap of a new job": new(core("configmaps", namespace=TENANT), "ConfigMap", {"name": "reset-config-new"}),
        "other key of a job's ConfigMap": change(core("configmaps", "reset-config-job", TENANT), data=keys("a")),
        "label of a job's ConfigMap": change(core("configmaps", "reset-config-job", TENANT), **meta(labels=keys("a"))),
        "report of a node": change(core("configmaps", config_map_name(OTHER), "kube-system"), data=keys("a")),
        "label of a pod group": change(group, **meta(labels=keys("a"))),
        "members of a pod group": change(group, spec={"minMember": 1}),
        "phase of a pod group": change(f"{group}/status", status={"phase": "Running"}),
        "counts of a pod group": change(f"{group}/status", status={"phase": "Inqueue", "running": 2}),
        "Event of others": event("kubelet", "a", "Pod", "p"),
        "Event with a label": event("ascend-allocator", "a", "Pod", "p", metadata={"labels": keys("a")}),
    }


@pytest.fixture(scope="module")
def lab(built_helm: None) -> Iterator[Lab]:  # noqa: ARG001 - it has to be built before
    require_cluster()
    with accounts.installed() as started:
        for server, name in ((started.plugin, PLUGIN), (started.allocator, ALLOCATOR)):
            with started.administrating(name):
                wait_until(partial(_is_restricted, server), timeout_s=30, what="the API server enforces the policy")
        others = event("kubelet", OTHER, "Node", OTHER, metadata={"name": "of-others"})
        assert not others.of(started.cluster.api)
        yield started


@dataclass(frozen=True)
class Answers:
    """What the API server said to each account.

    Attributes:
        plugin_work: refusals of what the device plugin does, by its right.
        plugin_forgeries: what the policy did not deny to a device plugin with every right.
        unbound: answers to the work of the device plugin with a token that names no node.
        allocator_work: as that of the device plugin.
        allocator_forgeries: as those of the device plugin.
    """

    plugin_work: dict[str, str]
    plugin_forgeries: dict[str, str]
    unbound: list[str]
    allocator_work: dict[str, str]
    allocator_forgeries: dict[str, str]


@pytest.fixture(scope="module")
def answers(lab: Lab) -> Answers:
    """Ask in one order, whichever test runs first: the work makes and deletes objects that forgeries are about."""
    plugin_work = _refused(PLUGIN_MAY, lab.plugin)
    with lab.administrating(PLUGIN):
        plugin_forgeries = _not_denied(plugin_forgeries_of_node(), lab, PLUGIN)
    unbound = [ask.of(lab.unbound) for asks in PLUGIN_MAY.values() for ask in asks]
    lab.cluster.api.delete(api(LEADERS, "leaders", ALLOCATOR, NAMESPACE))
    allocator_work = _refused(allocator_may(), lab.allocator)
    with lab.administrating(ALLOCATOR):
        allocator_forgeries = _not_denied(allocator_forgeries_of_cluster(), lab, ALLOCATOR)
    return Answers(plugin_work, plugin_forgeries, unbound, allocator_work, allocator_forgeries)


def _is_restricted(server: Server) -> bool:
    return is_by_policy(_tried(new(core("secrets", namespace=TENANT), "Secret", {"name": "probe"})).of(server))


def _tried(ask: Ask) -> Ask:
    """The same request without an effect."""
    return Ask(ask.method, f"{ask.path}{'&' if '?' in ask.path else '?'}dryRun=All", ask.body, ask.content_type)


def test_every_right_of_the_chart_has_a_row_here() -> None:
    plugin, allocator = rendered_rights("device-plugin"), rendered_rights("allocator")
    assert set(plugin) == PLUGIN_MAY.keys() | PLUGIN_READS.keys()
    assert set(allocator) == allocator_may().keys() | ALLOCATOR_READS.keys() | set(ALLOCATOR_NAMED)
    writes = ("create", "update", "patch", "delete", "deletecollection", "bind", "escalate", "impersonate", "*")
    read = [*PLUGIN_READS, *ALLOCATOR_READS, *ALLOCATOR_NAMED]
    assert not [right for right in read if right.startswith(writes)]


@pytest.mark.parametrize(
    "ask",
    [
        Ask("GET", "/api/v1/secrets"),
        Ask("DELETE", core("configmaps", REPORT, "kube-system")),
        new(core("pods", namespace=TENANT), "Pod", {"name": "new"}),
        Ask("DELETE", core("nodes", OWN)),
    ],
)
def test_neither_account_has_further_rights(lab: Lab, ask: Ask) -> None:
    for server in (lab.plugin, lab.allocator):
        assert " 403 " in ask.of(server)


def test_every_rule_of_the_charts_roles_is_rendered_for_these_rows() -> None:
    for component, more in (("device-plugin", 0), ("allocator", 2)):  # the records, in two namespaces
        template = (helm.CHART / "templates" / component / "rbac.yaml").read_text()
        jobs = (helm.CHART / "templates" / "_jobs.tpl").read_text()
        written = sum(text.count("- apiGroups:") for text in (template, jobs if "jobRules" in template else ""))
        items = helm.render(*accounts.EVERY_OPTION)
        roles = [item for item in items if item["kind"] in {"Role", "ClusterRole"}]
        mine = [item for item in roles if item["metadata"]["labels"]["app.kubernetes.io/component"] == component]
        assert sum(len(item["rules"]) for item in mine) == written + more


def _listed(policy: str) -> dict[str, set[str]]:
    """Return the keys that a policy lists, by the variable and the kind of object, as ``labelKeys of nodes``."""
    items = helm.render(*accounts.EVERY_OPTION)
    (found,) = [
        item
        for item in items
        if item["kind"] == "ValidatingAdmissionPolicy" and item["metadata"]["name"].endswith(policy)
    ]
    listed: dict[str, set[str]] = {}
    for rule in found["spec"]["validations"]:
        text = rule["expression"]
        kind = re.search(r'"(?:UPDATE|CREATE) ([a-z/]+)"', text)
        pattern = r"variables\.(\w+)\.all\(k, (?:k\.startsWith\(\S+\) \|\| )?k in (\[[^\]]*\])"
        for variable, names in re.findall(pattern, text):
            if kind is not None:
                listed.setdefault(f"{variable} of {kind[1]}", set()).update(json.loads(names))
    return listed


def test_the_policies_list_exactly_the_keys_that_the_programs_write() -> None:
    plugin = _listed("own-node")
    del plugin["metaFields of nodes"], plugin["metaFields of configmaps"]
    assert plugin == {
        "labelKeys of nodes": set(of_plugin.NODE_LABELS),
        "annotationKeys of nodes": set(of_plugin.NODE_ANNOTATIONS),
        "annotationKeys of pods": set(of_plugin.POD_ANNOTATIONS),
        "labelKeys of configmaps": set(of_plugin.REPORT_LABELS),
        "annotationKeys of configmaps": set(of_plugin.REPORT_ANNOTATIONS),
        "dataKeys of configmaps": set(of_plugin.REPORT_KEYS),
    }
    allocator = _listed("account")
    assert allocator["annotationKeys of pods"] == set(of_allocator.ON_PODS)
    assert allocator["annotationKeys of pods/status"] == set(of_allocator.WITH_STATUS)
    assert allocator["annotations of pods/binding"] == set(of_allocator.IN_BINDINGS)


def test_the_device_plugin_can_do_its_work_for_its_own_node(answers: Answers) -> None:
    assert answers.plugin_work == {}


def test_a_device_plugin_with_every_right_stays_on_its_node(answers: Answers) -> None:
    passed = answers.plugin_forgeries
    assert not passed, "\n".join(f"{name}: {text}" for name, text in passed.items())


def test_a_token_that_names_no_node_writes_nothing(answers: Answers) -> None:
    assert len(answers.unbound) > len(PLUGIN_MAY)
    for said in answers.unbound:
        assert "the token names no node" in said or '"code":409' in said


def test_the_allocator_can_do_its_work(answers: Answers) -> None:
    assert answers.allocator_work == {}


def test_the_allocator_points_the_service_to_ipv4_and_ipv6_addresses(lab: Lab) -> None:
    token = lab.cluster.service_account_token(ALLOCATOR, namespace=NAMESPACE)
    kubeconfig = lab.cluster.write_kubeconfig("publishing-allocator", token)
    path = api(SLICES, "endpointslices", f"{ALLOCATOR}-leader", NAMESPACE)

    async def publish_each() -> None:
        async with await KubeClient.connect(str(kubeconfig)) as client:
            for ip in ("10.1.1.1", "fd00::5", "10.1.1.2"):
                here = Endpoint(NAMESPACE, ALLOCATOR, ip, {"http": 8443})
                task = asyncio.create_task(publish(client, here, lambda: True))
                await asyncio.to_thread(
                    lab.cluster.api.wait_for,
                    path,
                    partial(_leads_to, ip),
                    timeout_s=30,
                    what=f"the Service leads to {ip}",
                )
                task.cancel()

    asyncio.run(publish_each())
    lab.cluster.api.delete(path)


def _leads_to(ip: str, found: Mapping[str, Any]) -> bool:
    return bool(found["endpoints"] == [{"addresses": [ip], "conditions": {"ready": True}}])


def test_an_allocator_with_every_right_writes_only_what_is_listed(answers: Answers) -> None:
    passed = answers.allocator_forgeries
    assert not passed, "\n".join(f"{name}: {text}" for name, text in passed.items())


def test_doctor_misses_no_right_that_the_chart_grants_and_every_right_that_is_gone(lab: Lab) -> None:
    async def lacking(*accounts: Account) -> tuple[Denied, ...]:
        async with await KubeClient.connect(str(lab.cluster.kubeconfig_path)) as client:
            return await read_denied(client, accounts)

    prefix = f"system:serviceaccount:{NAMESPACE}:"
    own = Account("allocator", prefix + ALLOCATOR), Account("device-plugin", prefix + PLUGIN)
    assert asyncio.run(lacking(*own)) == ()
    without = Account("allocator", prefix + "nobody"), Account("device-plugin", prefix + "nobody")
    assert len(asyncio.run(lacking(*without))) == len(ALLOCATORS) + len(rights(job_files=False)) + 1


def test_other_users_are_not_restricted_by_the_policies_of_the_accounts(lab: Lab) -> None:
    change(core("nodes", OWN), **meta(annotations={"baseDeviceInfos": "{}", "by-others": "x"})).of(lab.cluster.api)
    for ask in (change(core("nodes", OTHER), **meta(labels=keys("app"))), change(FOREIGN, **meta(labels=keys("app")))):
        assert not is_by_policy(ask.of(lab.cluster.api))


def _refused(may: Mapping[str, list[Ask]], server: Server) -> dict[str, str]:
    """Return the refusals of what an account does, by its right."""
    said = {right: [text for ask in asks if (text := ask.of(server))] for right, asks in may.items()}
    return {right: "; ".join(texts) for right, texts in said.items() if texts}


def _not_denied(forgeries: dict[str, Ask], lab: Lab, account: str) -> dict[str, str]:
    """Return the requests that the policy does not deny, each with what the API server said; none has an effect."""
    server = lab.plugin if account == PLUGIN else lab.allocator
    said = {
        name: (ask if "exec" in name or "proxy" in ask.path else _tried(ask)).of(server)
        for name, ask in forgeries.items()
    }
    return {name: text or "admitted" for name, text in said.items() if not is_by_policy(text)}


def documented_roles(node: str) -> list[dict[str, Any]]:
    """The roles of docs/npuctl-operate.md for who cordons chips, for the chips of one node."""
    page = (Path(helm.CHART).parents[2] / "docs" / "npuctl-operate.md").read_text()
    text = page.partition("\n## chip\n")[2].partition("```yaml\n")[2].partition("```")[0]
    roles: list[dict[str, Any]] = list(yaml.safe_load_all(text))
    for rule in (rule for role in roles for rule in role["rules"] if "resourceNames" in rule):
        rule["resourceNames"] = [config_map_name(node)]
    return roles


def test_an_operator_with_the_documented_rights_cordons_chips_of_these_nodes(lab: Lab) -> None:
    node, operator, kube = f"{OWN}x", "chip-operator", lab.cluster.api
    subject = {"kind": "ServiceAccount", "name": operator, "namespace": NAMESPACE}
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": operator, "namespace": NAMESPACE}})
    for role in documented_roles(node):
        kube.create(role)
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": role["metadata"]["name"]}
        binding = {"apiVersion": role["apiVersion"], "kind": f"{role['kind']}Binding", "metadata": role["metadata"]}
        kube.create({**binding, "roleRef": reference, "subjects": [subject]})
    infos = write_base_device_infos({chip: ChipAddress() for chip in range(8)})
    kube.patch(core("nodes", node), meta(annotations={BASE_DEVICE_INFOS: infos}))
    metadata = {"name": config_map_name(node), "namespace": "kube-system", "annotations": {WRITTEN_BY: OUR_PLUGIN}}
    kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {MANUALLY_SEPARATED: ""}})
    token = lab.cluster.service_account_token(operator, namespace=NAMESPACE)
    server, kubeconfig = lab.cluster.server(token), str(lab.cluster.write_kubeconfig(operator, token))
    report = core("configmaps", config_map_name(node), "kube-system")
    wait_until(lambda: server.answers(report) and server.answers(core("nodes", node)), timeout_s=20, what="it may read")

    def chip(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["chip", *words, "--kubeconfig", kubeconfig])
        return done.exit_code, f"{done.output}{done.exception or ''}"

    assert chip("cordon", node, "1", "3", "--reason", "fan noise") == (
        0,
        f"node {node}: chips 1,3 cordoned: fan noise\n",
    )
    written = kube.get(report)
    assert written["data"][MANUALLY_SEPARATED] == "Ascend910-1,Ascend910-3"
    cordon = json.loads(written["metadata"]["annotations"][CORDONED])["Ascend910-1"]
    assert (cordon["by"], cordon["reason"]) == (f"system:serviceaccount:{NAMESPACE}:{operator}", "fan noise")
    posted = [
        each
        for each in kube.get(api(EVENTS, "events", namespace="default"))["items"]
        if each["reason"] == "NPUCordoned"
    ]
    assert [each["note"] for each in posted] == [f"chips 1,3 cordoned by {cordon['by']}: fan noise"]
    assert posted[0]["regarding"] == {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node}
    assert chip("uncordon", node, "1", "3")[0] == 0
    assert kube.get(report)["data"][MANUALLY_SEPARATED] == ""
    # Not a right more: neither other ConfigMaps, nor the Node.
    for ask in (
        change(core("configmaps", "coredns", "kube-system"), data=keys("a")),
        change(core("configmaps", config_map_name(OTHER), "kube-system"), data=keys("a")),
        change(core("nodes", node), **meta(labels=keys("a"))),
    ):
        assert "forbidden" in ask.of(server)
    kube.delete(report)
