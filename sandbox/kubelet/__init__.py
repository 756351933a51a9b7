"""A kubelet in this process that behaves as 1.34 does (docs/spec/kubelet.md), with real gRPC over unix sockets."""

from sandbox.kubelet.kubelet import Kubelet
from sandbox.kubelet.runtime import RuntimeContainer

__all__ = ["Kubelet", "RuntimeContainer"]
