"""Reads the Kubernetes objects that a command looks at: from a cluster, or from files."""
