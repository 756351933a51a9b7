"""An in-memory Kubernetes API server: what our client, reflector and `kubectl get` use of kube-apiserver 1.34."""

from sandbox.apiserver.app import ApiServer
from sandbox.apiserver.status import StatusError

__all__ = ["ApiServer", "StatusError"]
