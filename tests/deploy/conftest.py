"""Fixtures: helm, and the session's real cluster."""

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import cluster, kube_namespace, require_cluster
from tests.cluster.requirements import in_ci
from tests.deploy import helm, image
from tests.deploy.chart_programs import installed, running, running_without_extender

__all__ = ["cluster", "installed", "kube_namespace", "running", "running_without_extender"]


@pytest.fixture(scope="session")
def built_helm() -> None:
    """Require helm: without it the test is skipped, or fails in CI."""
    try:
        helm.build()
    except ClusterError as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def built_image() -> image.Image:
    """The image of the working tree: without the tools or Debian's packages the test is skipped, or fails in CI."""
    require_cluster()  # the image needs the same: Linux, root, Debian's packages
    if sentences := image.missing():
        text = " ".join(sentences.values())
        if in_ci():
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    try:
        return image.build()
    except image.NoPackages as error:
        image.skip_or_fail(error)
