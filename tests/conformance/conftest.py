"""One node for all tests of a module; each finds it healthy and empty."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ascend.deviceinfo import NAMESPACE, config_map_name
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture
from tests.conformance.chips import Chips
from tests.conformance.node import PluginNode
from tests.conformance.passage import Passage
from tests.dcmi.compiler import require_compiler


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the real cluster."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="module")
def shared_node(cluster: Cluster) -> Iterator[PluginNode]:  # noqa: F811 - a fixture
    require_compiler()
    node = cluster.nodes[0]
    with (
        tempfile.TemporaryDirectory(prefix="conformance-") as scratch,
        Passage(cluster.url, cluster.ca) as passage,
    ):
        made = PluginNode(cluster, node, Chips(node.folder), passage, Path(scratch))
        try:
            made.start_plugin()
            yield made
        finally:
            made.plugin.process.stop()
            cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config_map_name(node.name)}")


@pytest.fixture
def node(shared_node: PluginNode) -> Iterator[PluginNode]:
    """The node: no pods, eight healthy chips offered."""
    yield shared_node
    shared_node.mend()
