"""Starts our two programs on a running real cluster, as `python -m tests.cluster up` shows them."""

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cluster.api import Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.manifests import RESOURCE
from tests.cluster.processes import Process

CHIPS_PER_NODE: Final = 8

# The command lines, in one place. Filled in by `str.format` with:
#   kubeconfig  file of the administrator
#   port        of the allocator's HTTP server: the extender's verbs below /scheduler, the probe /readyz
#   node        the node's name
#   devices     folder with the node's device nodes davinci0 ... davinci7
# A plugin is started in its node's mount namespace: /var/lib/kubelet there is that node's own.
ALLOCATOR: Final = ("ascend-allocator", "--kubeconfig", "{kubeconfig}", "--http-port", "{port}")
DEVICE_PLUGIN: Final = (
    "ascend-device-plugin",
    "--kubeconfig",
    "{kubeconfig}",
    "--node-name",
    "{node}",
    "--driver",
    "simulated",
    "--device-root",
    "{devices}",
)
EXTENDER_PATH: Final = "/scheduler"
READY_PATH: Final = "/readyz"

_MODULES: Final = {"ascend-allocator": "allocator.cli", "ascend-device-plugin": "device_plugin.cli"}
_READY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Programs:
    """Our programs on a cluster: one allocator, and one device plugin per node, in the order of the nodes."""

    allocator: Process
    device_plugins: tuple[Process, ...]


def missing_programs() -> list[str]:
    """Names of our programs that are not installed beside this Python, or have nothing to run."""
    return [
        program
        for program, module in _MODULES.items()
        if not _installed(program).exists() or importlib.util.find_spec(module) is None
    ]


def start_programs(cluster: Cluster) -> Programs:
    """Start the allocator, point the scheduler at it, start a plugin per node; returns when all chips are offered.

    Raises:
        ClusterError: a program is not installed, ended, or did not get ready; the text shows the end of its log.
    """
    if absent := missing_programs():
        raise ClusterError(f"not installed: {', '.join(absent)}; `up --bare` starts the cluster without them")
    (port,) = free_ports(1)
    kubeconfig = str(cluster.kubeconfig_path)
    allocator = cluster.process("ascend-allocator", _filled(ALLOCATOR, kubeconfig=kubeconfig, port=str(port)))
    allocator.start()
    server = Server(f"http://127.0.0.1:{port}")
    allocator.wait_until(lambda: server.answers(READY_PATH), timeout_s=_READY_S)
    cluster.restart_scheduler(f"http://127.0.0.1:{port}{EXTENDER_PATH}")
    plugins = []
    for node in cluster.nodes:
        devices = node.make_device_nodes(f"davinci{number}" for number in range(CHIPS_PER_NODE))
        command = _filled(DEVICE_PLUGIN, kubeconfig=kubeconfig, node=node.name, devices=str(devices))
        plugin = node.process("ascend-device-plugin", command)
        plugin.start()
        plugins.append(plugin)
    for node, plugin in zip(cluster.nodes, plugins, strict=True):
        plugin.wait_until(
            lambda name=node.name: _offered(cluster, name) == CHIPS_PER_NODE,  # type: ignore[misc]  # bound in a loop
            timeout_s=_READY_S,
            what=f"offering {CHIPS_PER_NODE} {RESOURCE} on {node.name}",
        )
    return Programs(allocator, tuple(plugins))


def _offered(cluster: Cluster, node: str) -> int:
    return int(cluster.api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get(RESOURCE, 0))


def _installed(program: str) -> Path:
    return Path(sys.executable).with_name(program)


def _filled(command: tuple[str, ...], **values: str) -> list[str]:
    program, *arguments = command
    return [str(_installed(program)), *(argument.format(**values) for argument in arguments)]
