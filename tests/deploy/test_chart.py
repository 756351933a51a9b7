"""The chart: what it refuses, what it renders, and that a real API server takes every object of it."""

import json
from typing import Any

import pytest

from allocator.settings import Settings as AllocatorSettings
from ascend.daemon.settings import read_settings
from device_plugin.settings import Settings as DevicePluginSettings
from tests.cluster.api import Server, collection
from tests.cluster.cluster import Cluster
from tests.deploy import helm

# The first test to need helm builds it.
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

VARIANTS = {
    "as it comes": (),
    "everything set": (
        *("--set", "fullnameOverride=npu,image.tag=,image.digest=sha256:" + 64 * "0"),
        *("--set-json", 'imagePullSecrets=[{"name":"my-registry"}]'),
        *("--set", "devicePlugin.driver.simulated.hostPath=/var/lib/ascend-affinity"),
        *("--set", "devicePlugin.kubelet.rootDir=/data/kubelet,devicePlugin.kubelet.authorization=proxy"),
        *("--set", "devicePlugin.kubelet.caFile=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
        *("--set", "devicePlugin.maxUnavailable=10%,devicePlugin.podAnnotations.note=yes"),
        *("--set", "devicePlugin.seLinuxOptions.type=container_device_plugin_t"),
        *("--set-json", 'devicePlugin.extraArgs=["--log-level=DEBUG"]'),
        *("--set-json", 'devicePlugin.extraEnv=[{"name":"PYTHONASYNCIODEBUG","value":"1"}]'),
        *("--set", "devicePlugin.serviceAccount.name=plugin,allocator.serviceAccount.name=allocator"),
        *("--set", "allocator.service.clusterIP=10.0.0.77,allocator.service.port=80,allocator.podAnnotations.note=yes"),
        *("--set-json", 'allocator.extraArgs=["--log-level=DEBUG"]'),
        *("--set-json", 'allocator.extraEnv=[{"name":"PYTHONASYNCIODEBUG","value":"1"}]'),
        *(
            "--set-json",
            'allocator.affinity={"nodeAffinity":{}}',
            "--set-json",
            'devicePlugin.affinity={"podAffinity":{}}',
        ),
        *("--set", "allocator.nodeSelector.zone=a"),
    ),
}


@pytest.fixture(params=list(VARIANTS.values()), ids=list(VARIANTS))
def options(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen: tuple[str, ...] = request.param
    return chosen


def test_helm_finds_nothing_to_complain_about(options: tuple[str, ...]) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(helm.CHART), *options)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("devicePlugin.driver.type=dcmi", "/devicePlugin/driver/type"),
        ("devicePlugin.kubelet.authorization=all", "/devicePlugin/kubelet/authorization"),
        ("devicePlugin.kubelet.devicePluginDir=relative", "/devicePlugin/kubelet/devicePluginDir"),
        ("devicePlugin.maxUnavailable=0", "/devicePlugin/maxUnavailable"),
        ("devicePlugin.nodeSelector=null", "'nodeSelector'"),
        ("devicePlugin.nodeSelector.accelerator=null", "/devicePlugin/nodeSelector"),
        ("devicePlugin.httpPort=70000", "/devicePlugin/httpPort"),
        ("allocator.replicas=2", "'replicas'"),
        ("allocator.reservationTtlSeconds=0", "/allocator/reservationTtlSeconds"),
        ("image.digest=latest", "/image/digest"),
        ("imagePullPolicy=Always", "'imagePullPolicy'"),
    ],
)
def test_a_wrong_value_is_refused_and_named(value: str, named: str) -> None:
    with pytest.raises(helm.HelmError) as refused:
        helm.render("--set-json" if value.endswith("null") else "--set", value)
    assert named in str(refused.value)


def test_a_cluster_that_is_too_old_is_refused() -> None:
    with pytest.raises(helm.HelmError, match=r"incompatible with Kubernetes v1\.27"):
        helm.render("--kube-version", "1.27.16")


def test_a_real_api_server_takes_every_object(cluster: Cluster, options: tuple[str, ...]) -> None:
    items = helm.render(*options)
    assert len(items) == (13 if "hostPath" in str(options) else 14)
    for item in items:
        # Strict: an unknown or repeated field is an error.
        cluster.api.request("POST", f"{collection(item)}?dryRun=All&fieldValidation=Strict", item)


def test_the_programs_take_the_flags_they_are_given(options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_DP_NODE_NAME", "n1")
    items = helm.render(*options)
    plugin = _container(helm.find(items, "DaemonSet", "device-plugin"))
    read = read_settings(DevicePluginSettings, "ascend-device-plugin", plugin["args"])
    mounted = {mount["mountPath"] for mount in plugin["volumeMounts"]}
    assert mounted == {
        str(read.device_plugin_dir),
        str(read.pod_resources_socket.parent),
        str(read.simulated_state.parent),
    }
    assert read.http_address.endswith(f":{plugin['ports'][0]['containerPort']}")
    allocator = _container(helm.find(items, "Deployment", "allocator"))
    address = read_settings(AllocatorSettings, "ascend-allocator", allocator["args"]).extender_address
    assert address.endswith(f":{allocator['ports'][0]['containerPort']}")


def test_the_rights_are_these_and_no_others() -> None:
    items = helm.render()
    assert _rights(items, "device-plugin") == {
        ("ClusterRole", "pods"): {"get", "list", "watch", "patch"},
        ("ClusterRole", "nodes"): {"get", "patch"},
        ("ClusterRole", "nodes/pods"): {"get"},
        ("ClusterRole", "events.events.k8s.io"): {"create", "patch"},
        ("Role", "configmaps"): {"get", "list", "watch", "create", "patch"},
    }
    assert _rights(items, "allocator") == {
        ("ClusterRole", "nodes"): {"list", "watch"},
        ("ClusterRole", "pods"): {"get", "list", "watch", "patch"},
        ("ClusterRole", "pods/binding"): {"create"},
        ("Role", "configmaps"): {"list", "watch"},
    }


@pytest.mark.parametrize(
    ("version", "wanted", "subresource"),
    [
        ("1.32.9", "auto", "nodes/proxy"),
        ("1.33.0", "auto", "nodes/pods"),
        ("1.35.1-eks-1", "auto", "nodes/pods"),
        ("1.34.4", "proxy", "nodes/proxy"),
        ("1.32.9", "pods", "nodes/pods"),
    ],
)
def test_only_old_kubelets_need_the_right_to_everything(version: str, wanted: str, subresource: str) -> None:
    items = helm.render("--kube-version", version, "--set", f"devicePlugin.kubelet.authorization={wanted}")
    granted = {resource for _, resource in _rights(items, "device-plugin") if resource.startswith("nodes/")}
    assert granted == {subresource}


def test_the_containers_can_do_little_to_their_nodes() -> None:
    items = helm.render()
    for kind, component in (("DaemonSet", "device-plugin"), ("Deployment", "allocator")):
        spec = helm.find(items, kind, component)["spec"]["template"]["spec"]
        context = _container(helm.find(items, kind, component))["securityContext"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert not context.get("privileged")
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_allocator_passes_pod_security_restricted(cluster: Cluster) -> None:
    # The API server itself judges, in a namespace that demands it; in dry runs it only warns, so it is asked for a pod.
    name = "restricted-deploy-test"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        template = helm.find(helm.render(), "Deployment", "allocator")["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "name": "allocator", "namespace": name}
        del pod["spec"]["priorityClassName"]
        answer = _dry_run(cluster.api, pod)
        assert answer["metadata"]["name"] == "allocator"
    finally:
        cluster.api.delete(f"/api/v1/namespaces/{name}")


def _dry_run(api: Server, item: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(api.request("POST", f"{collection(item)}?dryRun=All", item))
    return answer


def _container(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def _rights(items: list[dict[str, Any]], component: str) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for kind in ("ClusterRole", "Role"):
        role = helm.find(items, kind, component)
        assert role["metadata"].get("namespace") == (helm.NAMESPACE if kind == "Role" else None)
        for rule in role["rules"]:
            assert rule.keys() == {"apiGroups", "resources", "verbs"}
            (group,) = rule["apiGroups"]
            for resource in rule["resources"]:
                name = f"{resource}.{group}" if group else resource
                found.setdefault((kind, name), set()).update(rule["verbs"])
    return found
