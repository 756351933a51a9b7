"""The chart's webhooks and admission policies on a real API server."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from allocator.leadership.endpoint import Endpoint, publish
from ascend.annotations import ALLOCATED, FENCE, MIN_AVAILABLE, NOMINATED, PLACEMENT_GATE, PREDICATE_TIME, REAL
from ascend.chips import chip_ids, parse_names
from ascend.kube.client import KubeClient
from ascend.products import ASCEND_910A
from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy import helm
from tests.deploy.chart_programs import (
    HOLDER,
    LEASE,
    READY_S,
    SLICE,
    WEBHOOKS,
    Installed,
    Running,
    chart_in,
    pod_spec,
    point_webhooks_to,
)

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

FORGED = {ALLOCATED: "Ascend910-0", PREDICATE_TIME: "1"}


def pod_path(namespace: str, name: str = "", subresource: str = "") -> str:
    return "/".join(filter(None, (f"/api/v1/namespaces/{namespace}/pods", name, subresource)))


def binding(name: str, node: str, annotations: dict[str, str], uid: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations} | ({"uid": uid} if uid else {}),
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(HTTPError) as refused:
        call()
    assert refused.value.status in {403, 422}, refused.value
    return str(refused.value)


def settled(call: Callable[[], object], text: str) -> None:
    """Wait until the API server enforces a policy that was just created, which its watch shows it later."""

    def refuses() -> bool:
        try:
            call()
        except HTTPError as error:
            return text in str(error)
        return False

    wait_until(refuses, timeout_s=READY_S, what=f"the API server says {text!r}")


def label(cluster: Cluster, namespace: str) -> None:
    changed = {"metadata": {"labels": {"ascend-affinity.io/bindings": "webhook"}}}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}", changed)


def dry_run(server: Server, item: dict[str, Any]) -> Callable[[], object]:
    return lambda: server.request("POST", pod_path(item["metadata"]["namespace"]) + "?dryRun=All", item)


def test_an_unmodified_scheduler_gets_chips_in_rings_by_the_webhook(
    cluster: Cluster, running_without_extender: Running, kube_namespace: str
) -> None:
    assert running_without_extender.allocator.alive
    label(cluster, kube_namespace)
    taken: set[tuple[str, int]] = set()
    for name, size in {"a": 8, "b": 4, "c": 4}.items():
        cluster.api.create(pod(name, size, namespace=kube_namespace))
        cluster.wait_for_pod(name, namespace=kube_namespace)
        claimed = cluster.api.wait_for(
            pod_path(kube_namespace, name),
            lambda pod: REAL in pod["metadata"]["annotations"],
            timeout_s=READY_S,
            what="the pod is claimed",
        )
        annotations = claimed["metadata"]["annotations"]
        chips = parse_names(annotations[REAL])
        assert set(chips) == set(parse_names(annotations[ALLOCATED]))
        assert FENCE in annotations
        rings = [set(chip_ids(ring)) for ring in ASCEND_910A.rings]
        assert len(chips) == 8 or any(set(chips) <= ring for ring in rings)
        here = {(claimed["spec"]["nodeName"], chip) for chip in chips}
        assert not here & taken
        taken |= here
    assert len(taken) == 16
    # kube-scheduler counts, so it does not bind a pod if no chip is left; a client that does not count gets the reason.
    uid = cluster.api.create(pod("d", 1, namespace=kube_namespace))["metadata"]["uid"]
    path = pod_path(kube_namespace, "d", "binding")
    refused = refusal(lambda: cluster.api.request("POST", path, binding("d", "n1", {}, uid)))
    # At the older path the API server removes the uid.
    older = f"/api/v1/namespaces/{kube_namespace}/bindings"
    for where, named in ((path, ""), (older, ""), (older, uid)):
        posted = binding("d", "n1", {}, named)
        unnamed = refusal(lambda to=where, body=posted: cluster.api.request("POST", to, body))  # type: ignore[misc]
        assert "must name its uid (metadata.uid), as posted to pods/d/binding" in unnamed
    assert "denied the request: NotEnoughChips: 1 chip requested, 0 free of 8 healthy" in refused


def test_only_configured_writers_may_write_chip_annotations(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    forged = pod("forged", 1, namespace=kube_namespace, annotations=FORGED)
    said = "only ascend-affinity writes the annotation"
    settled(dry_run(cluster.api, forged), said)
    text = refusal(lambda: cluster.api.create(forged))
    keys = "huawei.com/Ascend910, predicate-time"
    assert f"{said} {keys}, by which chips are counted; admin is not a writer (allocator.policies.writers)" in text
    plain = pod("plain", 1, namespace=kube_namespace, schedulerName="none", annotations={"note": "a"})
    cluster.api.create(plain)
    path = pod_path(kube_namespace, "plain")
    cluster.api.patch(path, {"metadata": {"annotations": {"note": "b"}}})
    for where in (path, f"{path}/status"):
        assert said in refusal(lambda where=where: cluster.api.patch(where, {"metadata": {"annotations": FORGED}}))  # type: ignore[misc]
    vnpu: dict[str, Any] = {"metadata": {"annotations": {"huawei.com/Ascend910-2c": "Ascend910-2c-100-1"}}}
    assert f"{said} huawei.com/Ascend910-2c, by which" in refusal(lambda: cluster.api.patch(path, vnpu))
    for posted_to in (pod_path(kube_namespace, "plain", "binding"), f"/api/v1/namespaces/{kube_namespace}/bindings"):
        call = lambda to=posted_to: cluster.api.request("POST", to, binding("plain", "n1", FORGED))  # noqa: E731
        assert said in refusal(call)
    by = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
    part = {**vnpu["metadata"]["annotations"], FENCE: by}
    allocator = cluster.server(running.allocator_token)
    allocator.request("POST", pod_path(kube_namespace, "plain", "binding"), binding("plain", "n1", part))
    claim = {"metadata": {"annotations": {REAL: "Ascend910-0", PREDICATE_TIME: "1"}}}
    cluster.server(running.plugin_tokens["n1"]).patch(path, claim)
    assert "of node n2 may change only" in refusal(
        lambda: cluster.server(running.plugin_tokens["n2"]).patch(path, claim)
    )
    vnpu["metadata"]["annotations"] = dict.fromkeys(vnpu["metadata"]["annotations"])
    assert f"{said} huawei.com/Ascend910-2c, by which" in refusal(lambda: cluster.api.patch(path, vnpu))
    assert said in refusal(lambda: cluster.api.patch(path, {"metadata": {"annotations": {REAL: None}}}))
    cluster.api.patch(path, {"metadata": {"annotations": {"note": None}}})
    # In a namespace with the webhook's label such annotations are replaced, because schedulers copy those of the pod.
    label(cluster, kube_namespace)
    replaced = cluster.api.create(pod("replaced", 2, namespace=kube_namespace, schedulerName="none"))

    def is_bound() -> bool:
        try:
            posted = binding("replaced", "n1", {**FORGED, REAL: "Ascend910-7"}, replaced["metadata"]["uid"])
            cluster.api.request("POST", pod_path(kube_namespace, "replaced", "binding"), posted)
        except HTTPError as error:
            if said in str(error):  # the API server has not seen the label yet
                return False
            raise
        return True

    wait_until(is_bound, timeout_s=READY_S, what="the webhook is asked")
    # Those of other programs are not replaced.
    other = cluster.api.create(pod("other", 1, namespace=kube_namespace, schedulerName="none"))
    posted = binding("other", "n2", {"huawei.com/npu": "Ascend910-0"}, other["metadata"]["uid"])
    path = pod_path(kube_namespace, "other", "binding")
    told = refusal(lambda: cluster.api.request("POST", path, posted))
    assert f"{said} huawei.com/npu, by which" in told
    annotations = cluster.api.get(pod_path(kube_namespace, "replaced"))["metadata"]["annotations"]
    assert len(parse_names(annotations[ALLOCATED])) == 2
    assert REAL not in annotations or set(parse_names(annotations[REAL])) == set(parse_names(annotations[ALLOCATED]))


def test_only_pods_that_no_node_could_take_are_denied_at_creation(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    senseless = pod("odd", 17, namespace=kube_namespace)
    settled(dry_run(cluster.api, senseless), "denied the request: InvalidRequest: pod ")
    parts = pod("parts", 2, namespace=kube_namespace, resource="huawei.com/Ascend910-2c")
    assert "a pod may have one vNPU, in one container" in refusal(dry_run(cluster.api, parts))
    cores = pod("cores", 5, namespace=kube_namespace, resource="huawei.com/npu-core")
    (container,) = cores["spec"]["containers"]
    cores["spec"]["initContainers"] = [{**container, "name": "before", "restartPolicy": "Always"}]
    assert "AI cores may be requested in one container" in refusal(dry_run(cluster.api, cores))
    del cores["spec"]["initContainers"]
    dry_run(cluster.api, cores)()
    # One with devices that the allocator does not place is created, and told so by an Event.
    cluster.api.create(pod("other", 1, namespace=kube_namespace, resource="huawei.com/Ascend310P"))
    told = cluster.api.wait_for(
        f"/apis/events.k8s.io/v1/namespaces/{kube_namespace}/events",
        lambda listed: any(each["reason"] == "WithoutEffect" for each in listed["items"]),
        timeout_s=READY_S,
        what="an Event on the pod",
    )
    (event,) = [each for each in told["items"] if each["reason"] == "WithoutEffect"]
    assert event["regarding"]["name"] == "other"
    assert event["note"].startswith("resource huawei.com/Ascend310P: the allocator does not place it")
    for each in running.allocators:
        each.process.kill()
    # Without an allocator, pods without chips are not sent to the webhook, and pods with chips are created
    # nevertheless.
    before_s = time.monotonic()
    cluster.api.create(pod("plain", namespace=kube_namespace))
    cluster.wait_for_pod("plain", namespace=kube_namespace)
    assert time.monotonic() - before_s < READY_S
    cluster.api.create(pod("waits", 1, namespace=kube_namespace))


@pytest.mark.long
@pytest.mark.parametrize("installed", ["allocator.nominate=gated"], indirect=True)
@pytest.mark.usefixtures("running")
def test_the_webhook_gates_only_pods_that_wait_for_chips_of_our_scheduler(
    cluster: Cluster, kube_namespace: str
) -> None:
    gang = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}

    def created(name: str, chips: int = 8, **more: Any) -> list[str]:
        found = cluster.api.create(pod(name, chips, namespace=kube_namespace, **more))
        return [gate["name"] for gate in found["spec"].get("schedulingGates", [])]

    def is_called() -> bool:
        probe = pod("probe", 8, namespace=kube_namespace, annotations=gang)
        path = pod_path(kube_namespace) + "?dryRun=All"
        return PLACEMENT_GATE in cluster.api.request("POST", path, probe).decode()

    wait_until(is_called, timeout_s=READY_S, what="the API server calls the webhook")
    # On a small cluster a single pod that fits is not gated, a pod of a gang always is.
    assert created("train-0", annotations=gang) == [PLACEMENT_GATE]
    assert created("plain", 0) == created("other", schedulerName="other") == []
    # One that names its node is denied by a policy, which sees the pod after the webhook.
    assert "names its node (spec.nodeName: n1)" in refusal(lambda: created("there", node="n1"))
    other = {"scheduling.k8s.io/group-name": "queued", MIN_AVAILABLE: "2"}
    assert created("queued", annotations=other, schedulingGates=[{"name": "a.b/c"}]) == ["a.b/c", PLACEMENT_GATE]
    assert created("train-1", annotations=gang) == [PLACEMENT_GATE]
    for number in range(2):
        found = cluster.wait_for_pod(f"train-{number}", namespace=kube_namespace)
        assert found["metadata"]["annotations"][NOMINATED] == found["spec"]["nodeName"]


@pytest.mark.long
def test_a_paused_leader_is_replaced_and_its_late_binding_is_denied(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    first, second = running.allocators
    old = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
    assert cluster.api.get(SLICE)["endpoints"][0]["addresses"] == ["10.1.0.1"]
    assert not second.answers("/readyz")
    cluster.api.create(pod("late", 8, namespace=kube_namespace, schedulerName="none"))
    cluster.api.create(pod("taken", 8, namespace=kube_namespace, schedulerName="none"))
    allocator = cluster.server(running.allocator_token)
    all_chips = ",".join(f"Ascend910-{chip}" for chip in range(8))

    def written(by: str) -> dict[str, str]:
        return {ALLOCATED: all_chips, PREDICATE_TIME: str(time.time_ns()), FENCE: by}

    with first.process.paused():
        paused_s = time.monotonic()
        second.wait_until_ready()
        took_s = time.monotonic() - paused_s
        assert took_s < 25
        new = cluster.api.get(HOLDER)["spec"]["holderIdentity"]
        assert new != old
        cluster.api.wait_for(
            SLICE,
            lambda found: found["endpoints"][0]["addresses"] == ["10.1.0.2"],
            timeout_s=READY_S,
            what="the service leads to the new leader",
        )
        point_webhooks_to(cluster, second)
        # The new leader assigns the chips to another pod; then the old leader's Binding arrives.
        path = pod_path(kube_namespace, "taken", "binding")
        allocator.request("POST", path, binding("taken", "n1", written(new)))
        late = pod_path(kube_namespace, "late", "binding")
        text = refusal(lambda: allocator.request("POST", late, binding("late", "n1", written(old))))
        assert f"was made by the allocator {old}, which does not lead" in text
        unnamed = {key: value for key, value in written(new).items() if key != FENCE}
        assert "(unnamed)" in refusal(lambda: allocator.request("POST", late, binding("late", "n1", unnamed)))
        assert "nodeName" not in cluster.api.get(pod_path(kube_namespace, "late"))["spec"]
    # After it continues, it finds that it has lost the lease, and exits.
    assert first.process.wait(timeout_s=READY_S) == 1
    assert "could not be renewed" in first.process.log_tail() or "was taken by" in first.process.log_tail()
    assert "forbidden" not in second.process.log.read_text().lower()
    first.process.start()
    first.process.wait_until(lambda: first.answers("/standbyz"), timeout_s=READY_S)
    second.process.stop()  # in order: the lease is released
    given_up_s = time.monotonic()
    first.wait_until_ready(timeout_s=5)
    assert time.monotonic() - given_up_s < 5


def test_an_upgrade_keeps_the_certificate_that_kube_scheduler_trusts(cluster: Cluster, installed: Installed) -> None:
    where = (helm.RELEASE, "--namespace", helm.NAMESPACE, str(helm.CHART), "--reuse-values")
    helm.run("upgrade", *where, "--set", "allocator.logLevel=DEBUG", kubeconfig=cluster.kubeconfig_path)
    secret = cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/{LEASE}-tls")
    assert secret["data"] == installed.certificates
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        (webhook,) = cluster.api.get(f"/apis/admissionregistration.k8s.io/v1/{plural}/{LEASE}")["webhooks"]
        assert webhook["clientConfig"]["caBundle"] == installed.certificates["ca.crt"]
    presented = cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/{LEASE}-scheduler")
    assert presented["data"] == installed.client


@pytest.mark.long
def test_each_generated_certificate_is_renewed_by_itself_if_its_secret_is_deleted(
    cluster: Cluster, installed: Installed
) -> None:
    secrets = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets"
    where = (helm.RELEASE, "--namespace", helm.NAMESPACE, str(helm.CHART), "--reuse-values")
    # That of the scheduler is not there either when an installation is upgraded that demanded none.
    for name, kept in ((f"{LEASE}-scheduler", f"{LEASE}-tls"), (f"{LEASE}-tls", f"{LEASE}-scheduler")):
        before = {each: cluster.api.get(f"{secrets}/{each}")["data"] for each in (name, kept)}
        cluster.api.delete(f"{secrets}/{name}")
        helm.run("upgrade", *where, kubeconfig=cluster.kubeconfig_path)
        assert cluster.api.get(f"{secrets}/{kept}")["data"] == before[kept]
        after = cluster.api.get(f"{secrets}/{name}")["data"]
        assert after["ca.crt"] != before[name]["ca.crt"]
        assert after["tls.key"] != before[name]["tls.key"]
    (webhook,) = cluster.api.get(f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{LEASE}")[
        "webhooks"
    ]
    assert webhook["clientConfig"]["caBundle"] == after["ca.crt"] != installed.certificates["ca.crt"]


def test_controllers_wait_for_the_first_allocator_of_each_installation(cluster: Cluster, kube_namespace: str) -> None:
    def create(name: str, chips: int = 1, **metadata: Any) -> None:
        manifest = pod(name, chips, namespace=kube_namespace, schedulerName="none")
        manifest["metadata"] |= metadata
        cluster.api.request("POST", f"{pod_path(kube_namespace)}?dryRun=All", manifest)

    def create_as_controller(chips: int = 1) -> None:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": True}
        create("owned", chips, ownerReferences=[owner])

    def is_admitted() -> bool:
        try:
            create_as_controller()
        except HTTPError:
            return False
        return True

    async def lead(installed: Installed) -> None:
        account = pod_spec(installed.allocator)["serviceAccountName"]
        token = cluster.service_account_token(account, namespace=helm.NAMESPACE)
        kubeconfig = cluster.write_kubeconfig("publishing-allocator", token)
        here = Endpoint(helm.NAMESPACE, LEASE, "10.1.1.1", {"http": 8443})
        async with await KubeClient.connect(str(kubeconfig)) as client, asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publish(client, here, lambda: True))
            await asyncio.to_thread(wait_until, is_admitted, timeout_s=READY_S, what="controllers may create pods")
            publishing.cancel()

    # What an API server watches for a policy may not be what it watches for the next one of the same name.
    for answers in (True, False):
        with chart_in(cluster) as installed:
            # Nobody answers at the Service here.
            cluster.api.delete(f"/apis/admissionregistration.k8s.io/v1/{WEBHOOKS['pods']}")
            settled(create_as_controller, "no allocator of ascend-affinity has answered yet")
            create_as_controller(0)
            create("alone")
            if answers:
                asyncio.run(lead(installed))
