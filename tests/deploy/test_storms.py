"""Steps in the wrong order, and a scheduler that loses its extender, make no storm of failed pods.

The Deployment is that of anybody: its controller creates a pod for each one that has failed, ten in a second.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.controller_manager import start_controller_manager
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy.chart_programs import Installed, Running, extender_of

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

WAIT_S = 60.0


@pytest.fixture
def controllers(cluster: Cluster) -> Iterator[None]:
    process = start_controller_manager(cluster)
    yield
    process.stop()


class Deployment:
    """A Deployment, and what became of its pods."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, replicas: int = 1) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._apps = f"/apis/apps/v1/namespaces/{namespace}"
        spec = pod(name, 1)["spec"] | {"restartPolicy": "Always"}
        cluster.api.create(
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": name, "namespace": namespace},
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": {"app": name}},
                    "template": {"metadata": {"labels": {"app": name}}, "spec": spec},
                },
            }
        )

    def pods(self, phase: str) -> list[dict[str, Any]]:
        path = f"/api/v1/namespaces/{self._namespace}/pods?labelSelector=app%3D{self._name}"
        found = self._cluster.api.get(path)["items"]
        return [each for each in found if each["status"].get("phase") == phase and not _is_ending(each)]

    def delete(self, phase: str, most: int | None = None) -> None:
        for each in self.pods(phase)[:most]:
            self._cluster.api.delete(f"/api/v1/namespaces/{self._namespace}/pods/{each['metadata']['name']}", grace_s=0)

    def end(self) -> None:
        """Have no pods any more; the cluster's garbage collector follows later."""
        self._cluster.api.delete(f"{self._apps}/deployments/{self._name}")
        wait_until(
            lambda: not any(self.pods(phase) for phase in ("Pending", "Running", "Failed")),
            timeout_s=WAIT_S,
            what="the pods are gone",
        )

    def wait_until_denied(self) -> str:
        """Return the sentence of the controller's Event."""
        messages: list[str] = []

        def is_denied() -> bool:
            events = self._cluster.api.get(f"/apis/events.k8s.io/v1/namespaces/{self._namespace}/events")["items"]
            messages[:] = [each["note"] for each in events if "SchedulerNotConnected" in each.get("note", "")]
            return bool(messages) and bool(self.pods("Failed"))

        wait_until(is_denied, timeout_s=WAIT_S, what="the controller is told why it can't create pods")
        return messages[0]

    def wait_until_running(self, number: int = 1) -> None:
        wait_until(lambda: len(self.pods("Running")) == number, timeout_s=WAIT_S, what=f"{number} pods run")


def _is_ending(item: dict[str, Any]) -> bool:
    return "deletionTimestamp" in item["metadata"]


@pytest.mark.parametrize("replicas", [1, 6])
@pytest.mark.usefixtures("controllers")
def test_one_pod_fails_until_the_scheduler_is_connected_and_when_it_is_lost_again(
    cluster: Cluster,
    installed: Installed,
    running_without_extender: Running,
    kube_namespace: str,
    tmp_path: Path,
    *,
    replicas: int,
) -> None:
    namespace = kube_namespace

    def connect() -> None:
        address = running_without_extender.allocators[0].address
        cluster.restart_scheduler(extenders=[extender_of(address, installed, tmp_path)])

    def goes_on(*, alone: str) -> None:
        cluster.api.create(pod(alone, 1, namespace=namespace))
        cluster.wait_for_pod(alone, namespace=namespace)
        assert len(web.pods("Failed")) == 1
        web.delete("Failed")
        web.wait_until_running(replicas)
        assert not web.pods("Failed")

    web = Deployment(cluster, namespace, "web", replicas)
    sentence = web.wait_until_denied()
    (failed,) = web.pods("Failed")
    said = "NotPlaced: annotation huawei.com/Ascend910 is missing: the pod was not placed by the allocator; most likely"
    assert f"{said} its scheduler does not call it (docs/kube-scheduler.md)" in failed["status"]["message"]
    name = f"{namespace}/{failed['metadata']['name']}"
    assert f"its scheduler 'default-scheduler' has bound pod {name} without calling the allocator" in sentence
    other = Deployment(cluster, namespace, "other")
    cluster.api.create(pod("untouched", namespace=namespace))
    cluster.wait_for_pod("untouched", namespace=namespace)
    assert len(web.pods("Failed")) == 1
    assert not other.pods("Failed")
    connect()
    goes_on(alone="first")
    other.end()
    # Somebody drops --config from the static pod of kube-scheduler.
    cluster.restart_scheduler()
    cluster.api.delete(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    web.delete("Running", 1)
    web.wait_until_denied()
    assert len(web.pods("Failed")) == 1
    connect()
    goes_on(alone="second")
    web.end()
