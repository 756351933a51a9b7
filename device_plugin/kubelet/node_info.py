"""The versions of a node's software, as its kubelet reports them."""

import msgspec

from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, KubeObject, Resource


class NodeInfo(msgspec.Struct, rename="camel", frozen=True):
    """What a node reports about its software.

    Attributes:
        kubelet_version: such as ``v1.34.4``.
        container_runtime_version: such as ``containerd://2.1.4``.
    """

    kubelet_version: str = ""
    container_runtime_version: str = ""


class StatusWithVersions(msgspec.Struct, rename="camel", frozen=True):
    """The part of a node's status that has its versions."""

    node_info: NodeInfo = NodeInfo()


class NodeWithVersions(KubeObject, frozen=True, kw_only=True):
    """A node, with its versions only."""

    status: StatusWithVersions = StatusWithVersions()


async def read_node_info(client: KubeClient, node: str) -> NodeInfo:
    """Read the versions of a node's software.

    Raises:
        ApiError: the API server refuses.
        Unreachable: it does not answer.
    """
    found = await client.get(Resource(NodeWithVersions, NODES.kind, NODES.prefix, NODES.plural, NODES.namespaced), node)
    return found.status.node_info
