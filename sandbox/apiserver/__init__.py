"""An in-memory Kubernetes API server: what our client, reflector and `kubectl get` use of kube-apiserver 1.34.

Why not the package kmock: version 0.8 keeps no resourceVersions, so it has neither resumable watches, bookmarks and 410
nor conflicts; and it has no patch types, no uid preconditions and no binding or status subresources. These are what our
programs stand on.
"""

from sandbox.apiserver.app import ApiServer
from sandbox.apiserver.status import StatusError

__all__ = ["ApiServer", "StatusError"]
