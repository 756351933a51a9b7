"""Carries out ``npuctl kueue``: prints manifests, and writes nothing to the cluster.

Kueue finds the places of nodes by their labels. The device plugin labels its Node with the SuperPod, MindCluster's also
with the rack; nobody labels nodes with their leaf switch, which is in a ConfigMap. So the labels of nodes are among the
manifests: who applies them needs the right to patch nodes, and no program of the cluster does. All that are known are
printed, also those that nodes have: a server may have moved, and server-side apply removes what a later manifest lacks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import yaml
from msgspec.structs import replace

from allocator.admission.objects import CONTROLLER, kinds
from ascend.errors import InvalidValue
from ascend.grammar import some
from ascend.kube.objects import NODES, Node, Resource
from ascend.rules.identity import ACCELERATOR, ACCELERATOR_TYPE, RACK_LABEL, SERVER_TYPE, SUPER_POD_LABEL
from npuctl.offline_allocator import OfflineAllocator
from npuctl.output import print_utf8, warn
from npuctl.reading.source import Source

SWITCH_LABEL: Final = "ascend-affinity.io/leaf-switch"
"""The label of a node with the number of its leaf switch."""
HOSTNAME: Final = "kubernetes.io/hostname"
_OF_PRODUCT: Final = (ACCELERATOR, ACCELERATOR_TYPE, SERVER_TYPE)
"""The labels that tell the servers of a product from others."""


async def run_kueue(source: Source, version: str, *, servers: bool) -> int:
    """Print the manifests.

    Args:
        source: the objects.
        version: the version of Kueue's API.
        servers: whether the lowest level is the server: then Kueue chooses each pod's server, not the allocator.

    Raises:
        InvalidValue: the input is invalid, or there is no node with chips.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    api = kinds(version)
    allocator = OfflineAllocator(await source.read(), source.settings, source.now_ns)
    products, manifests = defaultdict[str, list[Node]](list), list[dict[str, Any]]()
    for name, record in sorted(allocator.cluster.nodes.items()):
        if (node := record.node) is None or record.product is None:
            continue
        at, labels = allocator.cluster.index.topology.location(name), node.metadata.labels
        ids = {SUPER_POD_LABEL: at.super_pod, RACK_LABEL: at.rack, SWITCH_LABEL: at.switch}
        if known := {label: str(number) for label, number in ids.items() if number >= 0}:
            manifests.append(_manifest(NODES, name, labels=known))
            node = replace(node, metadata=replace(node.metadata, labels=labels | known))
        products[record.product.name].append(node)
    if not products:
        raise InvalidValue("there is no node with chips of a known product")
    for product, nodes in sorted(products.items()):
        others = [node for name, some_nodes in products.items() if name != product for node in some_nodes]
        name, labels = f"ascend-{product.lower()}", _common_labels(nodes, others)
        levels = [{"nodeLabel": label} for label in _levels(product, nodes, servers=servers)]
        if not labels and (levels or others):
            keys = " or ".join(_OF_PRODUCT)
            warn(f"{product}: no label {keys} tells its nodes from others, so there is no ResourceFlavor for them")
            continue
        if levels:
            manifests.append(_manifest(api.topologies, name, {"levels": levels}))
        manifests.append(
            _manifest(api.flavors, name, {"nodeLabels": labels, **({"topologyName": name} if levels else {})})
        )
    manifests.append(_manifest(api.checks, "chips", {"controllerName": CONTROLLER}))
    print_utf8(yaml.safe_dump_all(manifests, sort_keys=False))
    return 0


def _levels(product: str, nodes: Sequence[Node], *, servers: bool) -> list[str]:
    """The labels of the levels that these nodes have, the highest first."""
    levels = []
    for label in (SUPER_POD_LABEL, RACK_LABEL, SWITCH_LABEL):
        without = [node.name for node in nodes if label not in node.metadata.labels]
        if len(without) < len(nodes):
            levels.append(label)
            if without:
                warn(f"{product}: Kueue leaves out nodes without label {label}: {some(without)}")
    return [*levels, HOSTNAME] if servers else levels


def _common_labels(nodes: Sequence[Node], others: Sequence[Node]) -> dict[str, str]:
    """The labels common to some nodes that no node of another product has; empty without such labels."""
    first = nodes[0].metadata.labels
    common = {
        key: first[key]
        for key in _OF_PRODUCT
        if key in first and all(node.metadata.labels.get(key) == first[key] for node in nodes)
    }
    return {} if any(common.items() <= node.metadata.labels.items() for node in others) else common


def _manifest(
    resource: Resource[Any], name: str, spec: Mapping[str, Any] | None = None, **metadata: Mapping[str, str]
) -> dict[str, Any]:
    head = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": name, **metadata}}
    return head if spec is None else {**head, "spec": spec}
