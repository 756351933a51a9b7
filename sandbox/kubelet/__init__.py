"""A kubelet in this process, faithful to 1.34 as spec/kubernetes.md §1 has it: real gRPC over real unix sockets."""

from sandbox.kubelet.kubelet import Kubelet
from sandbox.kubelet.podserver import PodsAnswer
from sandbox.kubelet.runtime import Container

__all__ = ["Container", "Kubelet", "PodsAnswer"]
