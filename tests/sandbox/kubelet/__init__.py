"""The kubelet of the sandbox, seen from a device plugin and from the API server."""
