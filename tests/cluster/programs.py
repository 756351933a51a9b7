"""Starts our two programs on a running real cluster, for `python -m tests.cluster up`."""

import importlib.util
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from ascend.products import ASCEND_910A
from sandbox.cluster import full_server, save_server
from tests.cluster.api import Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.manifests import RESOURCE
from tests.cluster.nodes import Node
from tests.cluster.processes import Process

PRODUCT: Final = ASCEND_910A
DEVICE_NODES: Final = ("davinci_manager", *(f"davinci{number}" for number in range(PRODUCT.chips)))

# The command lines. `str.format` fills in:
#   kubeconfig  the kubeconfig file of the administrator
#   http, grpc  the addresses (host:port) of the program's servers; HTTP serves the extender's verbs and the probes
#   node        the node's name
#   state       the state file of the simulated chips; edit it to make chips fail or recover
#   devices     the folder of the node's device nodes
#   pods_url    the address of the kubelet's list of pods
# A plugin runs in the mount namespace of its node, which has its own /var/lib/kubelet.
ALLOCATOR: Final = (
    "ascend-allocator",
    *("--kubeconfig", "{kubeconfig}"),
    *("--extender-address", "{http}"),
    *("--grpc-address", "{grpc}"),
)
DEVICE_PLUGIN: Final = (
    "ascend-device-plugin",
    *("--kubeconfig", "{kubeconfig}"),
    *("--node-name", "{node}"),
    *("--driver", "simulated", "--simulated-state", "{state}"),
    *("--injection", "both"),
    *("--device-root", "{devices}"),
    *("--kubelet-pods-url", "{pods_url}"),
    *("--http-address", "{http}"),
)
EXTENDER_PATH: Final = "/scheduler"
READY_PATH: Final = "/readyz"

_MODULES: Final = {"ascend-allocator": "allocator.cli", "ascend-device-plugin": "device_plugin.cli"}
_READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Programs:
    """Our programs on a cluster: one allocator, and a device plugin per node in the order of the nodes."""

    allocator: Process
    device_plugins: tuple[Process, ...]


def missing_programs() -> list[str]:
    """Return the programs that are not installed beside this Python, or whose module is missing."""
    return [
        program
        for program, module in _MODULES.items()
        if not _installed(program).exists() or importlib.util.find_spec(module) is None
    ]


def start_programs(cluster: Cluster) -> Programs:
    """Start the allocator, a plugin per node, and the scheduler with the allocator as its extender.

    Returns when the allocator is ready and all chips are allocatable.

    Raises:
        ClusterError: a program is not installed, ended, or was not ready in time; the text shows the end of its log.
    """
    if absent := missing_programs():
        raise ClusterError(f"not installed: {', '.join(absent)}; `up --bare` starts the cluster without them")
    http, grpc = (f"127.0.0.1:{port}" for port in free_ports(2))
    command = _filled(ALLOCATOR, kubeconfig=str(cluster.kubeconfig_path), http=http, grpc=grpc)
    allocator = cluster.process("ascend-allocator", command)
    allocator.start()
    plugins = tuple(_start_plugin(cluster, node) for node in cluster.nodes)
    cluster.restart_scheduler(f"http://{http}{EXTENDER_PATH}")
    for node, plugin in zip(cluster.nodes, plugins, strict=True):
        what = f"offering {PRODUCT.chips} {RESOURCE}"
        plugin.wait_until(partial(_offers_all, cluster, node), timeout_s=_READY_S, what=what)
    allocator.wait_until(partial(Server(f"http://{http}").answers, READY_PATH), timeout_s=_READY_S)
    return Programs(allocator, plugins)


def _start_plugin(cluster: Cluster, node: Node) -> Process:
    state = node.folder / "chips.json"
    save_server(full_server(PRODUCT), state)
    (port,) = free_ports(1)
    command = _filled(
        DEVICE_PLUGIN,
        kubeconfig=str(cluster.kubeconfig_path),
        node=node.name,
        state=str(state),
        devices=str(node.make_device_nodes(DEVICE_NODES)),
        pods_url=node.pods_url,
        http=f"127.0.0.1:{port}",
    )
    plugin = node.process("ascend-device-plugin", command)
    plugin.start()
    return plugin


def _offers_all(cluster: Cluster, node: Node) -> bool:
    offered = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"].get(RESOURCE, "0")
    return int(offered) == PRODUCT.chips


def _installed(program: str) -> Path:
    return Path(sys.executable).with_name(program)


def _filled(command: tuple[str, ...], **values: str) -> list[str]:
    program, *arguments = command
    return [str(_installed(program)), *(argument.format(**values) for argument in arguments)]
