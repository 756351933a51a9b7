"""One node for all tests of a module, which is healthy and has no pods before each test."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.deviceinfo import NAMESPACE, config_map_name
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture
from tests.conformance.chips import Chips
from tests.conformance.node import GatedNode, Kubeconfig
from tests.conformance.threaded_proxy import ThreadedProxy
from tests.dcmi.compiler import require_compiler
from tests.e2e.programs import write_kubeconfig
from tests.written_nodes import removal


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as needing the real cluster."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="module")
def shared_node(cluster: Cluster) -> Iterator[GatedNode]:  # noqa: F811 - a fixture
    require_compiler()
    node = cluster.nodes[0]
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as scratch,
        ThreadedProxy(cluster.url, cluster.ca) as proxy,
    ):
        kubeconfig = write_kubeconfig(Path(scratch) / "kubeconfig.json", proxy.url, cluster.admin_token)
        made = GatedNode(cluster, node, Chips(node.folder), Kubeconfig(kubeconfig), proxy)
        try:
            made.start_plugin()
            yield made
        finally:
            made.plugin.process.stop()
            cluster.api.patch(f"/api/v1/nodes/{node.name}", removal())
            cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config_map_name(node.name)}")


@pytest.fixture
def node(shared_node: GatedNode) -> Iterator[GatedNode]:
    """The node without pods, with eight healthy, allocatable chips."""
    yield shared_node
    shared_node.restore()
