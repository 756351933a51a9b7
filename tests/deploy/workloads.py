"""A Deployment whose controller creates a pod for each one that has failed."""

from typing import Any, Final

from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until

WAIT_S: Final = 60.0


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
