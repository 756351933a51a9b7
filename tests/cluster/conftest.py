"""Fixtures of the real cluster."""

from tests.cluster.fixtures import cluster, kube_namespace

__all__ = ["cluster", "kube_namespace"]
