"""Fixtures: helm, and the session's real cluster."""

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import cluster, kube_namespace
from tests.cluster.requirements import in_ci
from tests.deploy import helm
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
