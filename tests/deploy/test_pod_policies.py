"""What the chart's admission policies let pods' authors write, on a real API server."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from ascend.annotations import ALLOCATED, RANK, WRITERS, Writer
from ascend.vnpus import RESOURCES
from tests.cluster.api import HTTPError, Server
from tests.cluster.binaries import MINOR
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import READY_S, chart_in

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("installed"), pytest.mark.timeout(600)]

SAID = "only ascend-affinity writes the annotation"
BY_ENVIRONMENT = "by which ascend-docker-runtime would give it chips that it does not have"
BY_KEY = "would become an environment variable (envFrom)"
BY_NODE = "the pod requests Ascend devices and names its node (spec.nodeName: n1)"

VISIBLE = {"name": "ASCEND_VISIBLE_DEVICES", "value": "0-7"}
PROTECTED = [*(key for key, writer in WRITERS.items() if writer is not Writer.CREATOR), *RESOURCES]

Call = Callable[[], object]


@pytest.fixture(scope="module")
def installed(built_helm: None, cluster: Cluster) -> Iterator[None]:
    """The chart, which no test changes: each has a namespace of its own."""
    assert built_helm is None
    # The allocator does not run, so its webhook would only cost time.
    values = "allocator.webhooks.pods.enabled=false,allocator.policies.writers={writer}"
    with chart_in(cluster, "--set", values):
        yield


def path_of(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods{f'/{name}' if name else ''}"


def refusal(call: Call) -> str:
    with pytest.raises(HTTPError) as refused:
        call()
    assert refused.value.status in {403, 422}, refused.value
    return str(refused.value)


def dry_run(server: Server, item: Mapping[str, Any]) -> Call:
    where = f"/api/v1/namespaces/{item['metadata']['namespace']}/{item['kind'].lower()}s"
    return lambda: server.request("POST", f"{where}?dryRun=All", item)


def patch(server: Server, where: str, key: str, value: str | None = "2") -> Call:
    return lambda: server.patch(where, {"metadata": {"annotations": {key: value}}})


def impersonated(server: Server, item: Mapping[str, Any], user: str, *groups: str) -> tuple[int, str]:
    """Create a pod as another user, as a dry run; return the HTTP status and the answer."""
    body = json.dumps(item).encode()
    headers = {"Authorization": f"Bearer {server.token}", "Content-Type": "application/json", "Impersonate-User": user}
    connection = server.connection()
    connection.putrequest("POST", f"{path_of(item['metadata']['namespace'])}?dryRun=All")
    for name, value in {**headers, "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    for group in groups:
        connection.putheader("Impersonate-Group", group)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def with_container(namespace: str, chips: int = 0, /, **container: Any) -> dict[str, Any]:
    made = pod("probe", chips, namespace=namespace, schedulerName="none")
    made["spec"]["containers"][0] |= container
    return made


def map_with(namespace: str, *keys: str, kind: str = "ConfigMap") -> dict[str, Any]:
    metadata = {"name": "visible", "namespace": namespace}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": dict.fromkeys(keys, "MA==")}


def of_annotation(key: str, variable: str = "ASCEND_VISIBLE_DEVICES") -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}


def wait_for_policies(server: Server, namespace: str) -> None:
    """Wait until the API server enforces all of them: its watch shows them after they are created."""
    probes = {
        SAID: pod("probe", namespace=namespace, annotations={ALLOCATED: "Ascend910-0"}),
        BY_ENVIRONMENT: with_container(namespace, env=[VISIBLE]),
        BY_KEY: map_with(namespace, "ASCEND_VISIBLE_DEVICES"),
        BY_NODE: pod("probe", 1, namespace=namespace, node="n1"),
    }

    def refuses(text: str) -> bool:
        try:
            dry_run(server, probes[text])()
        except HTTPError as error:
            return text in str(error)
        return False

    for text in probes:
        wait_until(lambda t=text: refuses(t), timeout_s=READY_S, what=f"the API server says {text!r}")  # type: ignore[misc]


def test_what_only_the_programs_write_is_protected_on_every_way_to_a_pod(cluster: Cluster, kube_namespace: str) -> None:
    api = cluster.api
    wait_for_policies(api, kube_namespace)
    api.create(pod("plain", 1, namespace=kube_namespace, schedulerName="none", annotations={RANK: "3", "note": "a"}))
    where = path_of(kube_namespace, "plain")
    for key in PROTECTED:
        told = refusal(dry_run(api, pod("forged", 1, namespace=kube_namespace, annotations={key: "2"})))
        assert f"{SAID} {key}, by which chips are counted; admin is not a writer (allocator.policies.writers)" in told
        assert "remove it from the pod, or from the template that its pods are created from" in told
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "plain", "annotations": {key: "2"}},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
        }
        for path in (f"{where}/binding", f"/api/v1/namespaces/{kube_namespace}/bindings"):
            assert f"{SAID} {key}, " in refusal(lambda p=path, b=body: api.request("POST", p, b))  # type: ignore[misc]
    # The rank is written with the pod, by its author or an operator, and not changed by them later.
    for key in (*PROTECTED, RANK):
        for path in (where, f"{where}/status"):
            assert f"{SAID} {key}, " in refusal(patch(api, path, key))
    assert f"{SAID} {RANK}, " in refusal(patch(api, where, RANK, None))
    patch(api, where, "note")()


def test_pods_are_bound_before_the_first_allocator_leads(cluster: Cluster, kube_namespace: str) -> None:
    wait_for_policies(cluster.api, kube_namespace)
    # The pods of the allocator itself are such pods.
    cluster.api.create(pod("plain", namespace=kube_namespace))
    cluster.wait_for_pod("plain", namespace=kube_namespace)


def test_who_changes_something_else_of_a_pod_with_protected_annotations_is_not_hindered(
    cluster: Cluster, kube_namespace: str
) -> None:
    wait_for_policies(cluster.api, kube_namespace)
    written = pod("written", namespace=kube_namespace, schedulerName="none", annotations=dict.fromkeys(PROTECTED, "2"))
    assert impersonated(cluster.api, written, "writer", "system:masters")[0] == 201
    assert impersonated(cluster.api, written, "another", "system:masters")[0] in {403, 422}
    del written["metadata"]["annotations"]
    cluster.api.create(written)
    where = path_of(kube_namespace, "written")
    for each in (where, f"{where}/status"):
        cluster.api.patch(each, {"metadata": {"labels": {"a": "b"}}, "status": {"message": "c"}})


def test_a_pod_with_thousands_of_variables_can_be_created(cluster: Cluster, kube_namespace: str) -> None:
    wait_for_policies(cluster.api, kube_namespace)
    many = [{"name": f"ASCEND_{number}", "value": "$(HOME)"} for number in range(5_000)]
    dry_run(cluster.api, with_container(kube_namespace, 2, env=many))()
    assert BY_ENVIRONMENT in refusal(dry_run(cluster.api, with_container(kube_namespace, 2, env=[*many, VISIBLE])))


def test_a_pod_with_thousands_of_annotations_can_be_created_and_changed(cluster: Cluster, kube_namespace: str) -> None:
    wait_for_policies(cluster.api, kube_namespace)
    annotations = {f"{number:x}": "" for number in range(8_000)}
    cluster.api.create(pod("fat", namespace=kube_namespace, schedulerName="none", annotations=annotations))
    where = path_of(kube_namespace, "fat")
    patch(cluster.api, where, "note")()
    assert f"{SAID} {ALLOCATED}, " in refusal(patch(cluster.api, where, ALLOCATED))
    cluster.api.delete(where, grace_s=0)


BAD: list[dict[str, Any]] = [
    {"env": [VISIBLE]},
    # Kubernetes admits spaces in names, and the runtime ignores them.
    {"env": [{**VISIBLE, "name": " ASCEND_VISIBLE_DEVICES"}]},
    {"env": [{**VISIBLE, "name": "ASCEND_VISIBLE_DEVICES "}]},
    {"env": [{**of_annotation(ALLOCATED, " ASCEND_VISIBLE_DEVICES")}]},
    {"env": [{"name": "ASCEND_VISIBLE_DEVICES"}]},
    {"env": [{"name": "A", "value": "0-7"}, {"name": "ASCEND_VISIBLE_DEVICES", "value": "$(A)"}]},
    {"env": [of_annotation(ALLOCATED), VISIBLE]},
    {"env": [of_annotation("note")]},
    {"env": [of_annotation(f"{ALLOCATED}x")]},
    {"env": [of_annotation("super-pod-id")]},  # a small number, which would be the id of a chip
    {"env": [of_annotation(ALLOCATED, "ASCEND_RUNTIME_OPTIONS")]},
    {"env": [{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a']"}}}]},
    {"env": [{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}}]},
    {"env": [{"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]},
    {"env": [{"name": "ASCEND_RUNTIME_OPTIONS", "value": "VIRTUAL"}]},
    {"env": [{"name": "ASCEND_RUNTIME_MOUNTS", "value": "all"}]},
    {"env": [{"name": "ASCEND_VNPU_SPECS", "value": "vir02"}]},
    {"env": [{"name": "ASCEND_ALLOW_LINK", "value": "True"}]},
    {"envFrom": [{"prefix": "ASCEND_", "configMapRef": {"name": "a"}}]},
    {"envFrom": [{"prefix": " ", "secretRef": {"name": "a"}}]},
]

GOOD: list[dict[str, Any]] = [
    {"env": [of_annotation(ALLOCATED)]},
    {"env": [of_annotation("huawei.com/Ascend910-2c")]},
    {"env": [of_annotation("huawei.com/Ascend310P")]},
    {"env": [{"name": "ASCEND_RT_VISIBLE_DEVICES", "value": "0"}, {"name": "ASCEND_HOME_PATH", "value": "/a"}]},
    {"envFrom": [{"configMapRef": {"name": "a"}}, {"prefix": "APP_", "secretRef": {"name": "b"}}]},
]


def test_no_container_names_its_chips_by_its_environment(cluster: Cluster, kube_namespace: str) -> None:
    api = cluster.api
    wait_for_policies(api, kube_namespace)
    for container in BAD:
        for chips in (0, 2):  # also a pod that requests no chips gets them
            told = refusal(dry_run(api, with_container(kube_namespace, chips, **container)))
            assert "container main sets " in told, container
            assert BY_ENVIRONMENT in told, container
    for container in GOOD:
        dry_run(api, with_container(kube_namespace, 2, **container))()
    before = with_container(kube_namespace)
    (main,) = before["spec"]["containers"]
    before["spec"]["initContainers"] = [{**main, "name": "first", "env": [VISIBLE]}]
    assert "container first sets ASCEND_VISIBLE_DEVICES, " in refusal(dry_run(api, before))
    # Containers that are added to debug a pod, the second one to a pod that has one.
    api.create(with_container(kube_namespace))
    where = f"{path_of(kube_namespace, 'probe')}/ephemeralcontainers"
    for name in ("first", "second"):
        added = {"name": name, "image": main["image"], "imagePullPolicy": "Never"}
        others = api.get(where)["spec"].get("ephemeralContainers", [])
        bad = {"spec": {"ephemeralContainers": [*others, {**added, "env": [VISIBLE]}]}}
        assert f"container {name} sets ASCEND_VISIBLE_DEVICES, " in refusal(lambda b=bad: api.patch(where, b))  # type: ignore[misc]
        api.patch(where, {"spec": {"ephemeralContainers": [*others, added]}})


def test_no_new_config_map_or_secret_becomes_such_a_variable(cluster: Cluster, kube_namespace: str) -> None:
    api = cluster.api
    wait_for_policies(api, kube_namespace)
    for kind in ("ConfigMap", "Secret"):
        told = refusal(dry_run(api, map_with(kube_namespace, "A", "ASCEND_VISIBLE_DEVICES", kind=kind)))
        assert f"the key ASCEND_VISIBLE_DEVICES {BY_KEY}" in told
        api.create(map_with(kube_namespace, "A", kind=kind))
        where = f"/api/v1/namespaces/{kube_namespace}/{kind.lower()}s/visible"
        bad = {"data": {"ASCEND_VNPU_SPECS": "MA=="}}
        assert f"the key ASCEND_VNPU_SPECS {BY_KEY}" in refusal(lambda w=where, b=bad: api.patch(w, b))  # type: ignore[misc]
        api.patch(where, {"data": {"B": "MA=="}})
    text = map_with(kube_namespace, kind="Secret") | {"stringData": {"ASCEND_VISIBLE_DEVICES": "0"}}
    assert BY_KEY in refusal(dry_run(api, text))


def test_a_pod_with_chips_names_no_node(cluster: Cluster, kube_namespace: str) -> None:
    api = cluster.api
    wait_for_policies(api, kube_namespace)
    pinned = pod("probe", 1, namespace=kube_namespace, node="n1")
    daemon = "system:serviceaccount:kube-system:daemon-set-controller"
    # A DaemonSet whose template names a node would be a way around the rule.
    status, told = impersonated(api, pinned, daemon, "system:masters")
    assert (status, BY_NODE in told) == (403 if status == 403 else 422, True)
    assert "select the node by spec.nodeSelector kubernetes.io/hostname" in refusal(dry_run(api, pinned))
    for resource in ("huawei.com/npu-core", "huawei.com/Ascend910-2c"):
        assert BY_NODE in refusal(dry_run(api, pod("a", 1, namespace=kube_namespace, node="n1", resource=resource)))
    in_init = pod("a", namespace=kube_namespace, node="n1")
    in_init["spec"]["initContainers"] = [{**pinned["spec"]["containers"][0], "name": "first"}]
    assert BY_NODE in refusal(dry_run(api, in_init))
    # A static pod's mirror, a DaemonSet's pod, and a pod that requests nothing, or something else.
    assert impersonated(api, pinned, "system:node:n1", "system:nodes", "system:masters")[0] == 201
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
    of_daemon = pod("a", 1, namespace=kube_namespace, affinity=affinity)
    assert impersonated(api, of_daemon, daemon, "system:masters")[0] == 201
    for resource, number in (("huawei.com/Ascend910", 0), ("huawei.com/Ascend310P", 1)):
        dry_run(api, pod("a", number, namespace=kube_namespace, node="n1", resource=resource))()


@pytest.mark.skipif(MINOR < 33, reason="the API server has the subresource resize from 1.33 on")
def test_a_resize_gives_a_pod_no_devices(cluster: Cluster, kube_namespace: str) -> None:
    api = cluster.api
    wait_for_policies(api, kube_namespace)
    # The API server compares no resources of a container that had none.
    api.create(pod("bare", namespace=kube_namespace, schedulerName="none"))
    api.create(pod("chips", 1, namespace=kube_namespace, schedulerName="none"))

    def resized(name: str, **limits: str) -> Call:
        containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
        where = f"{path_of(kube_namespace, name)}/resize"
        strategic = "application/strategic-merge-patch+json"
        return lambda: api.request("PATCH", where, {"spec": {"containers": containers}}, content_type=strategic)

    for resource in ("huawei.com/Ascend910", "huawei.com/npu-core", "huawei.com/Ascend910-2c"):
        told = refusal(resized("bare", **{resource: "8"}))
        # From 1.35 on the API server refuses it itself, before any policy.
        by_server = "only cpu and memory resources are mutable" in told
        assert by_server or "a resize can't give Ascend devices to a pod; create a pod that requests them" in told
    resized("chips", **{"huawei.com/Ascend910": "1"})()
