"""The session's one real cluster as pytest fixtures, for `tests/cluster` and `tests/e2e` alike.

A conftest imports them: `from tests.cluster.fixtures import cluster, kube_namespace`.
"""

from collections.abc import Iterator
from typing import Final
from uuid import uuid4

import pytest

from tests.cluster import requirements
from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_until

NODES: Final = 2

# In the configuration, not in a session fixture: imported into two conftests, such a fixture would start two clusters.
_SHARED: Final = pytest.StashKey[Cluster]()
_PODS_GONE_S: Final = 30.0


def require_cluster() -> None:
    """Skip the test, with the reasons, where the real cluster cannot run; fail it in CI."""
    sentences = requirements.missing()
    if not sentences:
        return
    text = "the real cluster cannot run here: " + " ".join(sentences)
    if requirements.in_ci():
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster all tests of this session share: started at its first use, stopped at the session's end.

    It is bound to no event loop; its calls block, so async tests wrap them in `asyncio.to_thread`.
    Logs are kept if a test of the session failed.
    """
    stash = request.config.stash
    if _SHARED not in stash:
        require_cluster()
        started = Cluster(NODES)
        started.start()
        stash[_SHARED] = started
        request.config.add_cleanup(lambda: started.stop(keep_logs=request.session.testsfailed > 0))
    return stash[_SHARED]


@pytest.fixture
def kube_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own; at the end its pods are deleted, and ended by their kubelets."""
    name = f"test-{uuid4().hex[:8]}"
    cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    pods = f"/api/v1/namespaces/{name}/pods"
    cluster.api.delete(pods)
    wait_until(lambda: not cluster.api.get(pods)["items"], timeout_s=_PODS_GONE_S, what=f"no pod is left in {name}")
