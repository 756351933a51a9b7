"""Runs kube-controller-manager, with the controllers that a test needs."""

from collections.abc import Sequence
from typing import Final

from tests.cluster import binaries
from tests.cluster.api import Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.processes import Process

_READY_S: Final = 60.0
WORKLOADS: Final = ("job", "statefulset", "deployment", "replicaset", "garbage-collector")
PODS: Final = (*WORKLOADS, "daemonset", "disruption", "namespace", "serviceaccount", "root-ca-certificate-publisher")
"""What pods with a network and a ServiceAccount need."""


def start_controller_manager(cluster: Cluster, names: Sequence[str] = WORKLOADS) -> Process:
    """Start kube-controller-manager with some controllers, by default those of Jobs, StatefulSets and Deployments.

    Not those of nodes: fake nodes have no kubelet, and would be tainted.
    """
    (port,) = free_ports(1)
    command = [
        str(binaries.path("kube-controller-manager")),
        f"--kubeconfig={cluster.kubeconfig_path}",
        f"--controllers={','.join(f'{name}-controller' for name in names)}",
        f"--root-ca-file={cluster.ca}",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=1000",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
    ]
    process = cluster.process("kube-controller-manager", command)
    process.start()
    process.wait_until(lambda: Server(f"https://127.0.0.1:{port}").answers("/healthz"), timeout_s=_READY_S)
    return process
