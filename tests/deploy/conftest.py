"""Fixtures: helm, and the session's real cluster."""

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.fixtures import cluster
from tests.cluster.requirements import in_ci
from tests.deploy import helm

__all__ = ["cluster"]


@pytest.fixture(scope="session")
def built_helm() -> None:
    """Helm is there; where it cannot be had, the test is skipped, or fails in CI."""
    try:
        helm.build()
    except ClusterError as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
