"""The commands of docs/pilot.md, in a cluster in which the chart was never installed.

A node that has offered chips, and offers none any more, is a finding of doctor.
"""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.chips import RESOURCE
from tests.cluster import images as archives
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod
from tests.cluster.processes import wait_until
from tests.deploy import helm, image
from tests.deploy.test_pods import (
    INSTALL_S,
    NAMESPACE,
    SCHEDULER_IMAGE,
    WHERE,
    blocks,
    everything,
    is_there,
    left,
    pods_of,
    provide_scheduler,
    resolve_service,
    shell,
    with_pods,
)

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(900)]


@pytest.fixture
def cluster(request: pytest.FixtureRequest, built_image: image.Image) -> Iterator[Cluster]:
    """A new cluster."""
    with with_pods(built_image) as cluster:
        yield cluster
        cluster.keep_logs = request.session.testsfailed > 0


@pytest.mark.shows("image", "910A")
def test_the_commands_of_the_pilot(cluster: Cluster, built_image: image.Image, tmp_path: Path) -> None:
    page = (helm.REPOSITORY / "docs" / "pilot.md").read_text()
    values, manifest = blocks(page, "yaml")
    dry_run, install, use, back = blocks(page, "sh")
    (tmp_path / "pilot.yaml").write_text(values)
    (tmp_path / "pilot-pod.yaml").write_text(manifest.replace("busybox:1.36", archives.BUSYBOX_IMAGE))
    provide_scheduler(cluster)
    here = f"image.repository={image.NAME},image.tag={built_image.tag},devicePlugin.driver.type=simulated"
    here += f",scheduler.image.repository={SCHEDULER_IMAGE}"

    def run(text: str) -> str:
        out = ""
        for command in text.strip().splitlines():
            named = re.sub(r"pilot(-pod)?\.yaml", lambda name: str(tmp_path / name[0]), command.replace("NODE", "n1"))
            named = f"{named} --set {here}" if named.startswith("helm install") else named
            began = time.monotonic()
            done = shell(cluster, named)
            log.info("%.1f s: %s", time.monotonic() - began, command)
            assert not done.returncode, f"{command}: {done.stdout}{done.stderr}"
            out += done.stdout
        return out

    before = everything(cluster)
    assert "kind: DaemonSet" in run(dry_run)
    assert everything(cluster) == before
    try:
        run(install)
        resolve_service(cluster)
        (plugin,) = pods_of(cluster, "device-plugin")
        assert plugin["spec"]["nodeName"] == "n1"
        assert re.search(r"^Ascend910-\d,Ascend910-\d$.*: 0 problems", run(use), re.MULTILINE | re.DOTALL)
        # Pods of others are neither denied nor placed elsewhere than before.
        cluster.api.create(pod("of-others", 3, schedulerName="another"))
        cluster.delete_pod("of-others")
        run(back)
    finally:
        shell(cluster, f"helm uninstall {' '.join(WHERE)} --ignore-not-found --wait")  # if a command before has failed
        shell(cluster, f"kubectl delete namespace {NAMESPACE} --ignore-not-found --wait=false")
        wait_until(lambda: not is_there(cluster), timeout_s=INSTALL_S, what="the namespace is gone")
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    assert cluster.api.get("/api/v1/nodes/n1")["status"]["allocatable"].get(RESOURCE, "0") == "0"
    wait_until(
        lambda: everything(cluster) == before, timeout_s=30, what="nothing is left", tail=lambda: left(cluster, before)
    )
