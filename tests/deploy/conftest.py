"""Fixtures: helm, and the session's real cluster."""

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import cluster, kube_namespace
from tests.cluster.requirements import in_ci
from tests.deploy import helm
from tests.deploy.installed_chart import installed, running, running_beside_a_stock_scheduler

__all__ = ["cluster", "installed", "kube_namespace", "running", "running_beside_a_stock_scheduler"]


@pytest.fixture(scope="session")
def built_helm() -> None:
    """Build helm; if that is impossible, skip the test, or fail it in CI."""
    try:
        helm.build()
    except ClusterError as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
