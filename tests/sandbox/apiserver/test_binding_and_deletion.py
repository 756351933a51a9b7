"""The binding of pods, and the deletion of objects."""

from typing import Any

import pytest

from sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import Answer, Client, a_configmap, a_pod

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"


async def bind(client: Client, name: str, **metadata: Any) -> Answer:
    target = {"apiVersion": "v1", "kind": "Node", "name": "n1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}
    return await client("POST", f"{PODS}/{name}/binding", binding)


async def test_a_binding_sets_node_annotations_and_condition_in_one_change(client: Client) -> None:
    pod = (await client("POST", PODS, {**a_pod(""), "metadata": {"name": "p", "annotations": {"kept": "1"}}})).body
    watch = await client.watch(f"{PODS}?resourceVersion={pod['metadata']['resourceVersion']}")
    chips = {"huawei.com/Ascend910": "Ascend910-0,Ascend910-1"}
    answer = await bind(client, "p", uid=pod["metadata"]["uid"], annotations=chips)
    assert answer.status == 201
    assert answer.body == {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
    event, bound = await watch.next()
    assert event == "MODIFIED"
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"kept": "1", **chips}
    condition = bound["status"]["conditions"][0]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    assert bound["metadata"]["generation"] == 1


async def test_a_binding_is_refused_if_a_precondition_fails(client: Client) -> None:
    await client("POST", PODS, a_pod("p"))
    for wrong in ({"uid": "another"}, {"resourceVersion": "1"}):
        answer = await bind(client, "p", **wrong, annotations={"a": "1"})
        assert (answer.status, answer.reason) == (409, "Conflict")
        assert "Precondition failed" in answer.body["message"]
    pod = (await client("GET", f"{PODS}/p")).body
    assert "nodeName" not in pod["spec"]
    assert "annotations" not in pod["metadata"]


async def test_bound_gated_deleted_and_missing_pods_refuse_a_binding(client: Client) -> None:
    await client("POST", PODS, a_pod("bound"))
    await bind(client, "bound")
    await client("POST", PODS, a_pod("gated", schedulingGates=[{"name": "a.b/gate"}]))
    await client("POST", PODS, a_pod("going", nodeName="n1"))
    await client("DELETE", f"{PODS}/going")
    messages = {name: (await bind(client, name)).body["message"] for name in ("bound", "gated", "going")}
    prefix = "Operation cannot be fulfilled on pods/binding"
    assert messages == {
        "bound": f'{prefix} "bound": pod bound is already assigned to node "n1"',
        "gated": f'{prefix} "gated": pod gated has non-empty .spec.schedulingGates',
        "going": f'{prefix} "going": pod going is being deleted, cannot be assigned to a host',
    }
    assert (await bind(client, "missing")).status == 404
    other_name = {"metadata": {"name": "x"}, "target": {"name": "n1"}}
    assert (await client("POST", f"{PODS}/bound/binding", other_name)).status == 400


async def test_the_older_bindings_resource_binds_too(client: Client) -> None:
    await client("POST", PODS, a_pod("p"))
    binding = {"metadata": {"name": "p"}, "target": {"name": "n1"}}
    assert (await client("POST", "/api/v1/namespaces/default/bindings", binding)).status == 201
    assert (await client("GET", f"{PODS}/p")).body["spec"]["nodeName"] == "n1"


async def test_a_bound_pod_is_deleted_in_two_steps(client: Client) -> None:
    version = (await client("POST", PODS, a_pod("p", nodeName="n1"))).version
    watch = await client.watch(f"{PODS}?resourceVersion={version}")
    marked = (await client("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 20})).body["metadata"]
    assert marked["deletionTimestamp"]
    assert (marked["deletionGracePeriodSeconds"], marked["generation"]) == (20, 2)
    unchanged = (await client("DELETE", f"{PODS}/p")).body["metadata"]
    assert unchanged == marked
    shorter = (await client("DELETE", f"{PODS}/p?gracePeriodSeconds=5")).body["metadata"]
    assert shorter["deletionGracePeriodSeconds"] == 5
    assert (await client("GET", f"{PODS}/p")).status == 200
    assert (await client("DELETE", f"{PODS}/p?gracePeriodSeconds=0")).status == 200
    assert (await client("GET", f"{PODS}/p")).status == 404
    assert [kind for kind, _ in [await watch.next() for _ in range(4)]] == ["MODIFIED"] * 3 + ["DELETED"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_an_unbound_or_finished_pod_is_deleted_at_once(client: Client, phase: str) -> None:
    await client("POST", PODS, a_pod("unbound"))
    gone = await client("DELETE", f"{PODS}/unbound")
    assert (gone.status, gone.body["kind"]) == (200, "Pod")
    assert (await client("GET", f"{PODS}/unbound")).status == 404
    await client("POST", PODS, a_pod("over", nodeName="n1"))
    await client.merge(f"{PODS}/over/status", {"status": {"phase": phase}})
    await client("DELETE", f"{PODS}/over")
    assert (await client("GET", f"{PODS}/over")).status == 404


async def test_a_delete_obeys_its_preconditions(client: Client) -> None:
    metadata = (await client("POST", CONFIGMAPS, a_configmap("c"))).body["metadata"]
    for wrong in ({"uid": "another"}, {"resourceVersion": "1"}):
        answer = await client("DELETE", f"{CONFIGMAPS}/c", {"preconditions": wrong})
        assert (answer.status, answer.reason, answer.body["details"]["kind"]) == (409, "Conflict", "ConfigMap")
    answer = await client("DELETE", f"{CONFIGMAPS}/c", {"preconditions": {"uid": metadata["uid"]}})
    assert answer.body["status"] == "Success"
    assert answer.body["details"] == {"name": "c", "kind": "configmaps", "uid": metadata["uid"]}


async def test_an_object_remains_until_its_finalizers_are_removed(client: Client) -> None:
    await client("POST", CONFIGMAPS, {"metadata": {"name": "c", "finalizers": ["a.b/hold"]}})
    marked = await client("DELETE", f"{CONFIGMAPS}/c")
    assert marked.body["metadata"]["deletionTimestamp"]
    assert (await client("GET", f"{CONFIGMAPS}/c")).status == 200
    assert (await client.merge(f"{CONFIGMAPS}/c", {"metadata": {"finalizers": None}})).status == 200
    assert (await client("GET", f"{CONFIGMAPS}/c")).status == 404


async def test_deleting_a_namespace_deletes_its_objects(client: Client, server: ApiServer) -> None:
    await client("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    await client("POST", "/api/v1/namespaces/team/configmaps", a_configmap("c"))
    await client("POST", CONFIGMAPS, a_configmap("stays"))
    assert (await client("DELETE", "/api/v1/namespaces/team")).body["status"]["phase"] == "Terminating"
    assert [entry.name for entry in server.store.objects_in("team")] == []
    assert (await client("GET", f"{CONFIGMAPS}/stays")).status == 200


async def test_a_collection_can_be_deleted_by_selector(client: Client) -> None:
    for name in ("a", "b"):
        await client("POST", CONFIGMAPS, {"metadata": {"name": name, "labels": {"which": name}}})
    answer = await client("DELETE", f"{CONFIGMAPS}?labelSelector=which%3Da")
    assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a"]
    assert (await client("GET", f"{CONFIGMAPS}/a")).status == 404
    assert (await client("GET", f"{CONFIGMAPS}/b")).status == 200
