"""Steps in the wrong order, and a scheduler that loses its extender, make no storm of failed pods.

The Deployment is that of anybody: its controller creates a pod for each one that has failed, ten in a second.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.controller_manager import start_controller_manager
from tests.cluster.manifests import pod
from tests.deploy.chart_programs import Installed, Running, extender_of
from tests.deploy.workloads import Deployment

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]


@pytest.fixture
def controllers(cluster: Cluster) -> Iterator[None]:
    process = start_controller_manager(cluster)
    yield
    process.stop()


@pytest.mark.usefixtures("controllers")
def test_one_pod_fails_until_the_scheduler_is_connected_and_when_it_is_lost_again(
    cluster: Cluster,
    installed: Installed,
    running_without_extender: Running,
    kube_namespace: str,
    tmp_path: Path,
) -> None:
    namespace, replicas = kube_namespace, 6

    def connect() -> None:
        address = running_without_extender.allocators[0].address
        cluster.restart_scheduler(extenders=[extender_of(address, installed, tmp_path)])

    def goes_on(*, alone: str) -> None:
        cluster.api.create(pod(alone, 1, namespace=namespace))
        cluster.wait_for_pod(alone, namespace=namespace)
        web.delete("Failed")
        web.wait_until_running(replicas)
        assert not web.pods("Failed")

    web = Deployment(cluster, namespace, "web", replicas)
    sentence = web.wait_until_denied()
    # The others wait for a second for what becomes of the first pod; a slow kubelet takes longer to refuse it.
    failed, *late = web.pods("Failed")
    assert len(late) < replicas
    said = "NotPlaced: annotation huawei.com/Ascend910 is missing: the pod was not placed by the allocator; most likely"
    assert f"{said} its scheduler does not call it (docs/kube-scheduler.md)" in failed["status"]["message"]
    names = [f"{namespace}/{each['metadata']['name']}" for each in (failed, *late)]
    told = re.search("its scheduler 'default-scheduler' has bound pod (.*) without calling the allocator", sentence)
    assert told is not None
    assert told[1] in names
    other = Deployment(cluster, namespace, "other")
    cluster.api.create(pod("untouched", namespace=namespace))
    cluster.wait_for_pod("untouched", namespace=namespace)
    assert len(web.pods("Failed")) == 1 + len(late)
    assert not other.pods("Failed")
    connect()
    goes_on(alone="first")
    other.end()
    # Somebody drops --config from the static pod of kube-scheduler.
    cluster.restart_scheduler()
    cluster.api.delete(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    web.delete("Running", 1)
    web.wait_until_denied()
    assert 1 <= len(web.pods("Failed")) <= replicas
    connect()
    goes_on(alone="second")
    web.end()
