"""Pytest fixtures of the real cluster, of which a session has one; in a parallel run each worker is a session.

A conftest imports them: `from tests.cluster.fixtures import cluster, kube_namespace`.
"""

from collections.abc import Iterable, Iterator
from typing import Final
from uuid import uuid4

import pytest

from tests.cluster import controllers, requirements
from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_until

NODES: Final = 2

# The cluster is in the configuration, because a session fixture imported into two conftests would start two clusters.
_SHARED: Final = pytest.StashKey[Cluster]()
_PODS_GONE_S: Final = 30.0


def require_cluster() -> None:
    """Skip the test, with the reasons, if the real cluster cannot run here; in CI fail it."""
    _require(requirements.missing())


def require_controllers(names: Iterable[str]) -> None:
    """Skip the test if a job controller is not built; in CI fail it."""
    absent = controllers.absent(names)
    _require([f"Not built yet: {', '.join(absent)}; run `python -m tests.cluster prepare --long`."] if absent else [])


def _require(sentences: list[str]) -> None:
    if not sentences:
        return
    text = "the real cluster cannot run here: " + " ".join(sentences)
    if requirements.in_ci():
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster of this session: started at its first use, stopped at the end of the session.

    It needs no event loop; its methods block, so async tests call them with `asyncio.to_thread`.
    Its logs are kept if a test of the session failed.
    """
    stash = request.config.stash
    if _SHARED not in stash:
        require_cluster()
        started = Cluster(NODES)
        started.start()
        stash[_SHARED] = started
        request.config.add_cleanup(lambda: stop_cluster(request.session))
    return stash[_SHARED]


def stop_cluster(session: pytest.Session) -> None:
    """Stop the cluster of this session, if it has one, and keep its logs if a test of the session failed."""
    started = session.config.stash.get(_SHARED, None)
    if started is not None:
        del session.config.stash[_SHARED]
        started.stop(keep_logs=session.testsfailed > 0)


@pytest.fixture
def kube_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace for one test; at the end its pods are deleted and stopped by their kubelets."""
    name = f"test-{uuid4().hex[:8]}"
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    pods = f"/api/v1/namespaces/{name}/pods"
    cluster.api.delete(pods)
    wait_until(lambda: not cluster.api.get(pods)["items"], timeout_s=_PODS_GONE_S, what=f"no pod is left in {name}")
