"""Objects and files for tests of the API access."""

import json
from pathlib import Path
from typing import Any

from sandbox.apiserver import ApiServer

TOKENS = {"secret": "admin", "fresh": "admin"}
"""The tokens that the API server accepts, and their users."""


def write_kubeconfig(folder: Path, server: ApiServer, token: str) -> Path:
    """Write a kubeconfig file with this token."""
    path = folder / "kubeconfig.json"
    path.write_text(json.dumps(server.kubeconfig(token)))
    return path


def pod(name: str, namespace: str = "default", **annotations: str) -> dict[str, Any]:
    """A pod to create."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
