"""The kubelet's device plugin API."""
