"""The commands of README's installation and of docs/first-hour.md, in a cluster without the chart."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.chips import RESOURCE
from tests.cluster import images as archives
from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_until
from tests.deploy import helm, image
from tests.deploy.test_pods import (
    SCHEDULER_IMAGE,
    blocks,
    label_nodes,
    provide_scheduler,
    resolve_service,
    shell,
    with_pods,
)

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(900)]

_ENDS_WITH = {"npuctl explain job/train": 3}
"""The exit status of commands that say that something waits."""


@pytest.fixture
def cluster(request: pytest.FixtureRequest, built_image: image.Image) -> Iterator[Cluster]:
    """A new cluster."""
    with with_pods(built_image) as cluster:
        label_nodes(cluster, None)
        yield cluster
        cluster.keep_logs = request.session.testsfailed > 0


@pytest.mark.shows("image", "910A")
def test_the_commands_of_the_first_hour(cluster: Cluster, built_image: image.Image, tmp_path: Path) -> None:
    readme = (helm.REPOSITORY / "README.md").read_text()
    page = (helm.REPOSITORY / "docs" / "first-hour.md").read_text()
    (gang,) = blocks(page, "yaml")
    install = next(block for block in blocks(readme, "sh") if "helm install" in block)
    steps = {section.split("\n", 1)[0]: blocks(section, "sh") for section in page.split("\n## ")[1:]}
    (tmp_path / "gang.yaml").write_text(gang.replace("busybox:1.36", archives.BUSYBOX_IMAGE))
    job = (helm.REPOSITORY / "deploy/examples/job.yaml").read_text()
    (tmp_path / "job.yaml").write_text(job.replace("busybox:1.36", archives.BUSYBOX_IMAGE))
    provide_scheduler(cluster)
    here = f"image.repository={image.NAME},image.tag={built_image.tag},devicePlugin.driver.type=simulated"
    here += f",scheduler.image.repository={SCHEDULER_IMAGE}"

    def run(title: str, text: str) -> str:
        out, began = "", time.monotonic()
        for command in re.sub(r"\\\n\s*", "", text).strip().splitlines():
            if command.startswith("deploy/image/build.sh"):
                continue  # the image is there
            named = re.sub(r"<node>|\bNODE\b(?!:)", "n1", command)
            named = re.sub(r"\S*\b(gang|job)\.yaml", lambda file: str(tmp_path / f"{file[1]}.yaml"), named)
            named = re.sub("image.tag=NEW", f"image.tag={built_image.tag},devicePlugin.podLabels.hour=first", named)
            if named.startswith("helm install"):
                named = re.sub("image.repository=[^,]*", here, named) + " --wait"
            started = time.monotonic()
            done = shell(cluster, named)
            log.info("%.1f s: %s\n%s%s", time.monotonic() - started, command, done.stdout, done.stderr)
            expected = next((status for start, status in _ENDS_WITH.items() if command.startswith(start)), 0)
            assert done.returncode == expected, f"{command}: {done.stdout}{done.stderr}"
            out += done.stdout
        log.info("%s: %.0f s", title, time.monotonic() - began)
        return out

    run("Install", install)
    resolve_service(cluster)
    shell(cluster, "kubectl label node n2 accelerator=huawei-Ascend910")
    wait_until(
        lambda: all(
            node["status"]["allocatable"].get(RESOURCE) == "8" for node in cluster.api.get("/api/v1/nodes")["items"]
        ),
        timeout_s=60,
        what="both nodes offer their chips",
    )
    (first,) = steps["A first job"]
    rows = re.findall(r"^evaluate-\S+ +(n\d) +(Ascend910-\S+)$", run("A first job", first), re.MULTILINE)
    assert len({node for node, _ in rows}) == 1
    assert [len(chips.split(",")) for _, chips in rows] == [2, 2, 2]
    (waits,) = steps["A gang that waits"]
    assert "evaluate" in run("A gang that waits", waits)
    broken, mended = steps["A broken chip"]
    assert re.search("train-.*Ascend910-3|Ascend910-3.*train-", run("A broken chip", broken))
    run("A broken chip, mended", mended)
    (upgrade,) = steps["An upgrade"]
    upgraded = run("An upgrade", upgrade)
    assert ": 0 problems" in upgraded
    assert len(re.findall(r"^train-\S+ +1/1 +Running +0 ", upgraded, re.MULTILINE)) == 2
