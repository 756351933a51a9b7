"""A kubelet in this process that behaves as 1.34 does (spec/kubernetes.md §1), with real gRPC over unix sockets."""

from sandbox.kubelet.kubelet import Kubelet
from sandbox.kubelet.runtime import Container

__all__ = ["Container", "Kubelet"]
