"""The kubelet's versions and capacity, as reported on the Node."""

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


class KubeletNodeStatus(msgspec.Struct, rename="camel", frozen=True):
    """The part of a node's status that the plugin uses.

    Attributes:
        capacity: the quantity of each resource, usable or not.
        node_info: its versions.
    """

    capacity: dict[str, str] = {}
    node_info: NodeInfo = NodeInfo()


class NodeWithStatus(KubeObject, frozen=True, kw_only=True):
    """A node, with that part of its status only."""

    status: KubeletNodeStatus = KubeletNodeStatus()


async def read_node_status(client: KubeClient, node: str) -> KubeletNodeStatus:
    """Read the status of a node.

    Raises:
        ApiError: the API server refuses.
        Unreachable: it does not answer.
    """
    found = await client.get(Resource(NodeWithStatus, NODES.kind, NODES.prefix, NODES.plural, NODES.namespaced), node)
    return found.status
