"""The profiles of Pod Security in docs/security.md are those by which a real API server admits the chart's pods."""

import re
from collections.abc import Iterator
from typing import Final

import pytest

from tests.cluster.api import HTTPError
from tests.cluster.cluster import Cluster
from tests.deploy import helm

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

PROFILES: Final = ("restricted", "baseline", "privileged")
COMPONENTS: Final = {
    "allocator": ("Deployment", "allocator", ""),
    "kube-scheduler": ("Deployment", "scheduler", ""),
    "device plugin": ("DaemonSet", "device-plugin", "dcmi"),
    "device plugin with simulated chips": ("DaemonSet", "device-plugin", "simulated"),
}


ALL: Final = ("--set", "scheduler.enabled=true")


def documented() -> dict[str, str]:
    """The strictest profile of each component, as the table says."""
    page = (helm.REPOSITORY / "docs" / "security.md").read_text().partition("\n## Pod Security\n")[2]
    return dict(re.findall(r"^\| ([^|]+) \| `(\w+)` \|", page.partition("\n## ")[0], re.MULTILINE))


def test_the_table_has_every_component() -> None:
    workloads = [item for item in helm.render(*ALL) if item["kind"] in {"Deployment", "DaemonSet"}]
    assert len(workloads) == len({component for _, component, _ in COMPONENTS.values()})
    assert documented().keys() == COMPONENTS.keys()


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Iterator[None]:
    """A namespace for each profile, named like it."""
    for profile in PROFILES:
        metadata = {"name": profile, "labels": {"pod-security.kubernetes.io/enforce": profile}}
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    yield
    for profile in PROFILES:
        cluster.api.delete(f"/api/v1/namespaces/{profile}")


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_is_admitted_by_the_strictest_profile_of_the_table(cluster: Cluster, component: str) -> None:
    kind, name, driver = COMPONENTS[component]
    options = ("--set", f"devicePlugin.driver.type={driver}") if driver else ()
    template = helm.find(helm.render(*ALL, *options), kind, name)["spec"]["template"]
    admitted = [profile for profile in PROFILES if _is_admitted(cluster, profile, template)]
    assert admitted[0] == documented()[component]


def _is_admitted(cluster: Cluster, profile: str, template: dict[str, dict[str, object]]) -> bool:
    """Whether the API server itself creates the pod in the namespace that enforces the profile."""
    # The priority class of the control plane is admitted in kube-system only.
    spec = {field: value for field, value in template["spec"].items() if field != "priorityClassName"}
    metadata = {**template["metadata"], "name": "component", "namespace": profile}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    try:
        cluster.api.request("POST", f"/api/v1/namespaces/{profile}/pods?dryRun=All", pod)
    except HTTPError as error:
        if "violates PodSecurity" in str(error):
            return False
        raise
    return True
