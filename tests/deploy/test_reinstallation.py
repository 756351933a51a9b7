"""The chart's certificates and webhooks after an upgrade, with other values and in another installation."""

import asyncio
from typing import Any

import pytest

from allocator.leadership.endpoint import Endpoint, publish
from ascend.annotations import MIN_AVAILABLE, NOMINATED, PLACEMENT_GATE
from ascend.kube.client import KubeClient
from tests.cluster.api import HTTPError
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy import helm
from tests.deploy.chart_programs import LEASE, READY_S, WEBHOOKS, Installed, chart_in, pod_spec
from tests.deploy.test_admission import pod_path, refusal, settled

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]


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
