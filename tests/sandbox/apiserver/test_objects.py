"""Create, read, replace and patch single objects."""

import pytest

from sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import Client, a_configmap, a_pod

PODS = "/api/v1/namespaces/default/pods"
CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


async def test_a_created_pod_gets_a_uid_defaults_and_the_phase_pending(client: Client) -> None:
    answer = await client("POST", PODS, {**a_pod("p"), "status": {"phase": "Running"}})
    assert answer.status == 201
    assert (answer.body["kind"], answer.body["apiVersion"]) == ("Pod", "v1")
    metadata = answer.body["metadata"]
    assert metadata["namespace"] == "default"
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert answer.body["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert answer.body["spec"]["terminationGracePeriodSeconds"] == 30
    assert (await client("GET", f"{PODS}/p")).body == answer.body


async def test_limits_become_requests_and_only_cpu_and_memory_set_the_qos_class(client: Client) -> None:
    pod = a_pod("p")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"huawei.com/Ascend910": "2"}}
    answer = await client("POST", PODS, pod)
    assert answer.body["spec"]["containers"][0]["resources"]["requests"] == {"huawei.com/Ascend910": "2"}
    assert answer.body["status"]["qosClass"] == "BestEffort"
    pod = a_pod("q")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": "1Gi"}}
    assert (await client("POST", PODS, pod)).body["status"]["qosClass"] == "Guaranteed"


async def test_generate_name_creates_a_unique_name(client: Client) -> None:
    first = await client("POST", PODS, {**a_pod(""), "metadata": {"generateName": "job-"}})
    second = await client("POST", PODS, {**a_pod(""), "metadata": {"generateName": "job-"}})
    names = {first.body["metadata"]["name"], second.body["metadata"]["name"]}
    assert len(names) == 2
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        (a_pod("taken"), 409, "AlreadyExists"),
        ({**a_pod(""), "metadata": {}}, 422, "Invalid"),
        ({**a_pod(""), "metadata": {"generateName": "job."}}, 422, "Invalid"),
        (a_pod("Upper_Case"), 422, "Invalid"),
        ({"metadata": {"name": "p"}, "spec": {"containers": []}}, 422, "Invalid"),
        ({**a_pod(""), "metadata": {"name": "p", "annotations": {"no spaces": "x"}}}, 422, "Invalid"),
        ({**a_pod(""), "metadata": {"name": "p", "labels": {"a": "not a value"}}}, 422, "Invalid"),
        ({**a_pod(""), "metadata": {"name": "p", "annotations": {"a": 1}}}, 400, "BadRequest"),
        ({**a_pod(""), "metadata": {"name": "p", "annotations": {"a": "x" * 300_000}}}, 422, "Invalid"),
        ({**a_pod(""), "metadata": {"name": "p", "namespace": "other"}}, 400, "BadRequest"),
        ({**a_pod("p"), "kind": "Node"}, 400, "BadRequest"),
        ({**a_pod("p"), "apiVersion": "v2"}, 400, "BadRequest"),
        ({**a_pod(""), "metadata": {"name": "p", "resourceVersion": "5"}}, 500, ""),
    ],
)
async def test_an_invalid_create_is_refused_as_by_the_real_server(
    client: Client, document: dict[str, object], status: int, reason: str
) -> None:
    assert (await client("POST", PODS, a_pod("taken"))).status == 201
    answer = await client("POST", PODS, document)
    assert (answer.status, answer.reason, answer.body["code"]) == (status, reason, status)


async def test_a_create_in_a_missing_namespace_is_refused(client: Client) -> None:
    answer = await client("POST", "/api/v1/namespaces/missing/pods", a_pod("p"))
    assert (answer.status, answer.body["message"]) == (404, 'namespaces "missing" not found')


async def test_configmaps_above_1_mib_and_bodies_above_3_mib_are_refused(client: Client) -> None:
    answer = await client("POST", CONFIGMAPS, a_configmap("c", a="x" * 1_100_000))
    assert (answer.status, answer.reason) == (422, "Invalid")
    answer = await client("POST", CONFIGMAPS, a_configmap("c", a="x" * 3_200_000))
    assert (answer.status, answer.reason) == (413, "RequestEntityTooLarge")


async def test_missing_objects_and_resources_are_not_found(client: Client) -> None:
    answer = await client("GET", f"{PODS}/nope")
    assert answer.status == 404
    assert answer.body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "nope" not found',
        "reason": "NotFound",
        "details": {"name": "nope", "kind": "pods"},
        "code": 404,
    }
    for method in ("PUT", "DELETE", "PATCH"):
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        body = a_pod("nope") if method == "PUT" else {}
        assert (await client(method, f"{PODS}/nope", body, kind=kind)).status == 404
    assert (await client("GET", "/api/v1/namespaces/default/unheard")).reason == "NotFound"
    async with client.session.get(f"{client.url}/apis/unheard/v1/things") as response:
        assert (response.status, await response.text()) == (404, "404 page not found\n")


async def test_a_put_with_an_old_resource_version_or_wrong_uid_conflicts(client: Client) -> None:
    created = (await client("POST", CONFIGMAPS, a_configmap("c", a="1"))).body
    newer = (await client("PUT", f"{CONFIGMAPS}/c", {**created, "data": {"a": "2"}})).body
    answer = await client("PUT", f"{CONFIGMAPS}/c", {**created, "data": {"a": "3"}})
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "the object has been modified" in answer.body["message"]
    stranger = {**newer, "metadata": {**newer["metadata"], "uid": "another"}}
    answer = await client("PUT", f"{CONFIGMAPS}/c", stranger)
    assert (answer.status, answer.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: another" in answer.body["message"]
    unconditional = await client("PUT", f"{CONFIGMAPS}/c", a_configmap("c", a="4"))
    assert (unconditional.status, unconditional.body["data"]) == (200, {"a": "4"})
    assert (await client("PUT", f"{CONFIGMAPS}/other", a_configmap("c"))).status == 400


async def test_an_update_without_a_change_keeps_the_resource_version(client: Client, server: ApiServer) -> None:
    created = await client("POST", CONFIGMAPS, a_configmap("c", a="1"))
    before = server.store.version
    assert (await client("PUT", f"{CONFIGMAPS}/c", created.body)).version == created.version
    assert (await client("PUT", f"{CONFIGMAPS}/c", a_configmap("c", a="1"))).version == created.version
    assert (await client.merge(f"{CONFIGMAPS}/c", {"data": {"a": "1", "b": None}})).version == created.version
    assert server.store.version == before


async def test_a_put_creates_a_lease_but_needs_a_version_to_replace_it(client: Client) -> None:
    lease = {"metadata": {"name": "leader"}, "spec": {"holderIdentity": "a"}}
    created = await client("PUT", f"{LEASES}/leader", lease)
    assert created.status == 201
    assert created.body["apiVersion"] == "coordination.k8s.io/v1"
    blind = await client("PUT", f"{LEASES}/leader", lease)
    assert (blind.status, blind.reason, blind.body["details"]["kind"]) == (422, "Invalid", "leases")
    taken = await client("PUT", f"{LEASES}/leader", {**created.body, "spec": {"holderIdentity": "b"}})
    assert (taken.status, taken.body["spec"]["holderIdentity"]) == (200, "b")
    assert (await client("PUT", f"{LEASES}/leader", created.body)).status == 409


async def test_a_patch_obeys_its_resource_version_and_uid(client: Client) -> None:
    pod = (await client("POST", PODS, a_pod("p"))).body["metadata"]
    annotate = {"annotations": {"huawei.com/x": "1"}}
    stale = await client.merge(f"{PODS}/p", {"metadata": {**annotate, "resourceVersion": "1"}})
    assert (stale.status, stale.reason) == (409, "Conflict")
    for patch in (client.merge, client.strategic):
        stranger = await patch(f"{PODS}/p", {"metadata": {**annotate, "uid": "another"}})
        assert (stranger.status, stranger.reason) == (422, "Invalid")
        assert "field is immutable" in stranger.body["message"]
    exact = {"uid": pod["uid"], "resourceVersion": pod["resourceVersion"]}
    patched = await client.merge(f"{PODS}/p", {"metadata": {**annotate, **exact}})
    assert patched.body["metadata"]["annotations"] == {"huawei.com/x": "1"}
    removed = await client.merge(f"{PODS}/p", {"metadata": {"annotations": {"huawei.com/x": None}}})
    assert "annotations" not in removed.body["metadata"]


async def test_a_json_patch_is_refused_if_its_test_operation_fails(client: Client) -> None:
    uid = (await client("POST", PODS, a_pod("p"))).body["metadata"]["uid"]
    add = {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "1"}}
    answer = await client.json_patch(f"{PODS}/p", {"op": "test", "path": "/metadata/uid", "value": "another"}, add)
    assert (answer.status, answer.reason, answer.body["details"]) == (422, "Invalid", {})
    answer = await client.json_patch(f"{PODS}/p", {"op": "test", "path": "/metadata/uid", "value": uid}, add)
    assert answer.body["metadata"]["annotations"] == {"a/b": "1"}
    replace = {"op": "replace", "path": "/metadata/annotations/a~1b", "value": "2"}
    assert (await client.json_patch(f"{PODS}/p", replace)).body["metadata"]["annotations"] == {"a/b": "2"}


@pytest.mark.parametrize(
    ("patch", "status"),
    [
        ({"op": "add"}, 400),
        ("add", 400),
        (["add"], 422),
        ([[]], 422),
        ([{"path": "/metadata/labels"}], 422),
        ([{"op": "add", "path": "metadata", "value": 1}], 422),
        ([{"op": "add", "path": "/metadata/labels/~3", "value": "1"}], 422),
        ([{"op": "remove", "path": "/metadata/labels"}], 422),
        ([{"op": "remove", "path": "/metadata"}], 400),
        ([{"op": "remove", "path": ""}], 422),
        ([{"op": "replace", "path": "", "value": [1]}], 422),
        (
            [{"op": "copy", "from": "", "path": "/spec/containers/0/x"}, {"op": "test", "path": "/spec", "value": 1}],
            422,
        ),
        ([{"op": "add", "path": "/spec/containers/7", "value": {}}], 422),
    ],
)
async def test_a_bad_json_patch_is_refused_and_changes_nothing(
    client: Client, server: ApiServer, patch: object, status: int
) -> None:
    await client("POST", PODS, a_pod("p"))
    before = server.store.version
    answer = await client("PATCH", f"{PODS}/p", patch, kind="application/json-patch+json")
    assert (answer.status, answer.body["kind"]) == (status, "Status")
    assert server.store.version == before


async def test_an_invalid_patch_or_one_of_an_unknown_type_is_refused(client: Client) -> None:
    await client("POST", PODS, a_pod("p"))
    for kind in ("application/json", "application/apply-patch+yaml"):
        assert (await client("PATCH", f"{PODS}/p", {}, kind=kind)).reason == "UnsupportedMediaType"
    assert (await client.merge(f"{PODS}/p", [1])).reason == "BadRequest"
    assert (await client.merge(f"{PODS}/p", {"metadata": {"name": "q"}})).reason == "BadRequest"
    assert (await client.merge(f"{PODS}/p", {"metadata": {"annotations": {"a": 1}}})).reason == "Invalid"
    assert (await client.merge(f"{PODS}/p", {"kind": "Node"})).reason == "Invalid"
    assert (await client("POST", PODS, a_pod("q"), kind="text/csv")).reason == "UnsupportedMediaType"


async def test_an_unsupported_verb_is_not_allowed(client: Client) -> None:
    await client("POST", PODS, a_pod("p"))
    absent = [("PUT", PODS), ("POST", f"{PODS}/p"), ("DELETE", f"{PODS}/p/status"), ("POST", "/api/v1/pods")]
    for method, path in absent:
        answer = await client(method, path, a_pod("p"))
        assert (answer.status, answer.reason) == (405, "MethodNotAllowed")


async def test_only_images_and_scheduling_gates_of_a_pod_spec_can_change(client: Client) -> None:
    await client("POST", PODS, a_pod("p", schedulingGates=[{"name": "a.b/gate"}]))
    for spec in ({"nodeName": "n1"}, {"priority": 7}, {"schedulingGates": [{"name": "a.b/other"}]}):
        answer = await client.merge(f"{PODS}/p", {"spec": spec})
        assert (answer.status, answer.reason) == (422, "Invalid")
    ungated = await client.merge(f"{PODS}/p", {"spec": {"schedulingGates": None}})
    assert (ungated.status, ungated.body["metadata"]["generation"]) == (200, 2)
    image = await client.strategic(f"{PODS}/p", {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}})
    assert (image.status, image.body["metadata"]["generation"]) == (200, 3)


async def test_the_status_subresource_writes_only_status_and_annotations(
    client: Client,
) -> None:
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"huawei.com/Ascend910": "8"}}}
    created = (await client("POST", NODES, node)).body
    assert created["status"]["allocatable"] == {"huawei.com/Ascend910": "8"}
    both = {"spec": {"unschedulable": True}, "status": {"capacity": {"huawei.com/Ascend910": "1"}}}
    patched = (await client.merge(f"{NODES}/n1", both)).body
    assert (patched["spec"], patched["status"]) == ({"unschedulable": True}, created["status"])
    status = {"metadata": {"annotations": {"a": "1"}}, "spec": {"unschedulable": None}, "status": {"phase": "x"}}
    patched = (await client.merge(f"{NODES}/n1/status", status)).body
    assert patched["spec"] == {"unschedulable": True}
    assert patched["status"]["phase"] == "x"
    assert patched["metadata"]["annotations"] == {"a": "1"}
    ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    assert (await client.strategic(f"{NODES}/n1/status", ready)).body["status"]["conditions"][0]["status"] == "True"


async def test_a_pod_status_update_keeps_the_spec_and_the_qos_class(client: Client) -> None:
    pod = (await client("POST", PODS, a_pod("p"))).body
    sent = {**pod, "spec": {**pod["spec"], "nodeName": "n9"}, "status": {"phase": "Running"}}
    updated = (await client("PUT", f"{PODS}/p/status", sent)).body
    assert updated["status"] == {"phase": "Running", "qosClass": "BestEffort"}
    assert "nodeName" not in updated["spec"]
    assert updated["metadata"]["generation"] == 1


async def test_a_dry_run_is_answered_but_stores_nothing(client: Client, server: ApiServer) -> None:
    before = server.store.version
    assert (await client("POST", f"{CONFIGMAPS}?dryRun=All", a_configmap("c"))).status == 201
    assert (await client("GET", f"{CONFIGMAPS}/c")).status == 404
    assert server.store.version == before


async def test_an_event_is_served_in_both_api_groups(client: Client) -> None:
    event = {"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p"}, "note": "said", "type": "Normal"}
    assert (await client("POST", "/apis/events.k8s.io/v1/namespaces/default/events", event)).status == 201
    listed = await client("GET", "/api/v1/events?fieldSelector=involvedObject.name%3Dp")
    assert listed.body["items"][0]["message"] == "said"
    newer = await client("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e")
    assert (newer.body["note"], newer.body["apiVersion"]) == ("said", "events.k8s.io/v1")


async def test_the_fields_of_an_event_are_limited_in_bytes(client: Client) -> None:
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    event = {"metadata": {"generateName": "e-"}, "regarding": {"kind": "Pod", "name": "p"}, "type": "Normal"}
    timed = {**event, "eventTime": "2026-01-01T00:00:00.000000Z"}
    assert (await client("POST", path, {**timed, "note": "…" * 341 + "a"})).status == 201
    answer = await client("POST", path, {**timed, "note": "…" * 342})
    assert (answer.status, answer.reason) == (422, "Invalid")
    assert answer.body["message"].endswith('message: Invalid value: "": can have at most 1024 characters')
    assert (await client("POST", path, {**timed, "reportingInstance": "n" * 129})).status == 422
    # Those of the old kind have none.
    assert (await client("POST", "/api/v1/namespaces/default/events", {**event, "message": "a" * 1025})).status == 201
