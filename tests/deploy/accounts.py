"""Two accounts of the chart on a real API server, with every option that grants a right; and what they ask there.

The API server has no nodes that run, so pods can be bound to any of the two, ``own`` and ``other``. The token of the
device plugin is bound to a pod on ``own``, as the kubelet of that node mounts it.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy import helm
from tests.workloads.definitions import definition

NAMESPACE: Final = "npu-system"
"""Of the release: not kube-system, whose objects it only shares."""
TENANT: Final = "tenant"
OWN, OTHER = "own", "other"
ROOM: Final = {"cpu": "64", "memory": "64Gi", "pods": "110"}
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"
APPLY: Final = "application/apply-patch+yaml"
ALLOCATOR: Final = "ascend-affinity-allocator"
PLUGIN: Final = "ascend-affinity-device-plugin"
KUEUE: Final = "kueue.x-k8s.io/v1beta1"

DESCRIBED: Final = {
    "apiVersion": "trainers.example.com/v1",
    "kind": "TrainingRun",
    "plural": "trainingruns",
    "roles": [{"template": "spec.template", "replicas": "spec.replicas"}],
}
"""A kind of job that only the settings describe."""

EVERY_OPTION: Final = (
    *("--set", "devicePlugin.driver.type=simulated,devicePlugin.health.readmission=manual"),
    *("--set", "devicePlugin.jobFiles.enabled=true,allocator.nodeHealthNamespace=mindx-dl"),
    *("--set", "allocator.enqueuePodGroups=true,allocator.publishSwitches=true,allocator.admissionChecks=true"),
    *("--set-string", "allocator.rescheduling.mode=on,allocator.rescheduling.by=evict"),
    *("--set", "allocator.rescheduling.records=true,allocator.rescheduling.resetConfig=true"),
    *("--set-json", f"allocator.jobKinds={json.dumps([DESCRIBED])}"),
)
"""All values with which one of the two gets a further right."""


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        method: of HTTP.
        path: with its query.
        body: JSON; None for none.
        content_type: of the body.
    """

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"

    def of(self, server: Server) -> str:
        """Send it; returns the refusal, empty if it is admitted."""
        try:
            server.request(self.method, self.path, self.body, content_type=self.content_type)
        except HTTPError as error:
            return str(error)
        return ""


def core(resource: str, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Return the path of an object of the core group, or of a collection."""
    return api("v1", resource, name, namespace, subresource)


def api(version: str, resource: str, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Return the path of an object, or of a collection."""
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    where = f"namespaces/{namespace}/" if namespace else ""
    return f"{root}/{where}" + "/".join(filter(None, (resource, name, subresource)))


def change(path: str, **body: Any) -> Ask:
    """A merge patch."""
    return Ask("PATCH", path, body, MERGE)


def new(path: str, kind: str, metadata: Mapping[str, Any], *, version: str = "v1", **body: Any) -> Ask:
    """The creation of an object."""
    return Ask("POST", path, {"apiVersion": version, "kind": kind, "metadata": dict(metadata), **body})


def event(by: str, instance: str, kind: str, name: str, namespace: str = "default", **more: Any) -> Ask:
    """The creation of an Event."""
    metadata = {"generateName": "e-", "namespace": namespace} | more.pop("metadata", {})
    regarding = {"apiVersion": "v1", "kind": kind, "name": name}
    body = {
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": by,
        "reportingInstance": instance,
        "regarding": regarding | ({"namespace": namespace} if kind not in {"Node", "Namespace"} else {}),
        "reason": "Tried",
        "action": "Try",
        "note": "tried",
        "type": "Normal",
        **more,
    }
    version = "events.k8s.io/v1"
    return new(api(version, "events", namespace=namespace), "Event", metadata, version=version, **body)


@dataclass(frozen=True)
class Lab:
    """A cluster with the chart.

    Attributes:
        cluster: the cluster.
        plugin: the API server as the device plugin of the node ``own``.
        unbound: the same with a token that names no node.
        allocator: the API server as the allocator.
    """

    cluster: Cluster
    plugin: Server
    unbound: Server
    allocator: Server

    @contextmanager
    def administrating(self, account: str) -> Iterator[None]:
        """Give an account all rights, so that only the policy of the account restricts it."""
        name = f"test-{account}"
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        version = "rbac.authorization.k8s.io/v1"
        body = {"apiVersion": version, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]}
        self.cluster.api.create({**body, "metadata": {"name": name}})
        server = self.plugin if account == PLUGIN else self.allocator
        secrets = core("secrets", namespace="kube-system")
        wait_until(lambda: server.answers(secrets), timeout_s=20, what="the account has all rights")
        try:
            yield
        finally:
            self.cluster.api.delete(api(version, "clusterrolebindings", name))
            wait_until(lambda: not server.answers(secrets), timeout_s=20, what="the account has its own rights only")


@contextmanager
def installed(*options: str) -> Iterator[Lab]:
    """Run a cluster without nodes that run, with the chart, and objects on which the accounts are tried."""
    with Cluster(0) as cluster:
        for namespace in (NAMESPACE, TENANT, "mindx-dl", "volcano-system"):
            cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        for node in (OWN, OTHER, f"{OWN}x"):
            taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
            made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}, "spec": {"taints": [taint]}}
            # From 1.35 on the API server compares a resize with what the node has, before any policy.
            cluster.api.create({**made, "status": {"capacity": ROOM, "allocatable": ROOM}})
        cluster.api.create(definition("scheduling.volcano.sh", "v1beta1", "PodGroup", status=True))
        cluster.api.create(definition("kueue.x-k8s.io", "v1beta1", "Workload", status=True))
        cluster.api.create(definition("trainers.example.com", "v1", "TrainingRun", status=True))
        check = definition("kueue.x-k8s.io", "v1beta1", "AdmissionCheck", status=True)
        cluster.api.create({**check, "spec": {**check["spec"], "scope": "Cluster"}})
        where = ("--namespace", NAMESPACE)
        helm.run(
            "install",
            helm.RELEASE,
            str(helm.CHART),
            *where,
            *helm.IMAGE,
            *EVERY_OPTION,
            *options,
            kubeconfig=cluster.kubeconfig_path,
        )
        cluster.api.create(
            pod("device-plugin-own", namespace=NAMESPACE, node=OWN, serviceAccountName=PLUGIN, schedulerName="none")
        )
        lab = Lab(
            cluster,
            cluster.server(cluster.service_account_token(PLUGIN, namespace=NAMESPACE, pod="device-plugin-own")),
            cluster.server(cluster.service_account_token(PLUGIN, namespace=NAMESPACE)),
            cluster.server(cluster.service_account_token(ALLOCATOR, namespace=NAMESPACE)),
        )
        _make_targets(cluster)
        yield lab


def _make_targets(cluster: Cluster) -> None:
    create = cluster.api.create
    gates = [{"name": "ascend-affinity.io/placement"}, {"name": "example.org/mine"}]
    for namespace in (TENANT, "kube-system"):
        for node in (OWN, OTHER):
            bound = pod(f"on-{node}", namespace=namespace, node=node, schedulerName="none")
            bound["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
            create(bound)
        create(pod("pending", namespace=namespace, schedulerName="none"))
        create(pod("gated", namespace=namespace, schedulerName="none", schedulingGates=gates))
    for namespace, name in (
        ("kube-system", f"mindx-dl-deviceinfo-{OTHER}"),
        ("kube-system", "coredns"),
        ("kube-system", "extension-apiserver-authentication"),
        (NAMESPACE, "somebodys"),
        (TENANT, "reset-config-job"),
        (TENANT, "somebodys"),
    ):
        data = {"reset.json": "{}", "a": "b"}
        create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": data}
        )
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "somebody"}}
    create({**lease, "metadata": {"name": "somebodys", "namespace": NAMESPACE}})
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": []}
    create({**slice_, "metadata": {"name": "somebodys", "namespace": NAMESPACE}})
    create({**slice_, "metadata": {"name": f"{ALLOCATOR}-leader", "namespace": TENANT}})
    leader = {"apiVersion": "ascend-affinity.io/v1alpha1", "kind": "Leader", "spec": {"holder": "x"}}
    create({**leader, "metadata": {"name": ALLOCATOR, "namespace": NAMESPACE}})
    group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "spec": {"minMember": 2}}
    create({**group, "metadata": {"name": "group", "namespace": TENANT}})
    create({"apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": "workload", "namespace": TENANT}})
    create({"apiVersion": KUEUE, "kind": "AdmissionCheck", "metadata": {"name": "chips"}})


def rendered_rights(component: str) -> dict[str, str]:
    """Return every right of an account with all options: the right as text, and where its target is fixed, its name.

    A right is written as in ``patch configmaps in kube-system``, or ``get leases.coordination.k8s.io NAME in …``.
    """
    found: dict[str, str] = {}
    for item in helm.render(*EVERY_OPTION, "--namespace", NAMESPACE):
        if item["kind"] not in {"ClusterRole", "Role"}:
            continue
        if item["metadata"]["labels"]["app.kubernetes.io/component"] != component:
            continue
        where = f" in {item['metadata']['namespace']}" if item["kind"] == "Role" else ""
        for rule in item["rules"]:
            (group,) = rule["apiGroups"]
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    for name in rule.get("resourceNames", [""]):
                        text = f"{verb} {resource}{f'.{group}' if group else ''}{f' {name}' if name else ''}{where}"
                        found[text] = name
    return found


def is_by_policy(refusal: str) -> bool:
    """Whether a refusal is that of one of the two policies of accounts, by a rule that could be evaluated."""
    ours = "ValidatingAdmissionPolicy" in refusal and ("own-node" in refusal or "allocator-account" in refusal)
    return ours and "resulted in error" not in refusal
