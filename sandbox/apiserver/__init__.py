"""An in-memory Kubernetes API server: what our client, our reflector and `kubectl get` use of kube-apiserver 1.34.

The package kmock 0.8 is no substitute: it keeps no resourceVersions and so has no resumable watches, no bookmarks, no
410 Expired and no conflicts, and it lacks patch types, uid preconditions and the binding and status subresources. Our
programs depend on all of these.
"""

from sandbox.apiserver.app import ApiServer
from sandbox.apiserver.status import StatusError

__all__ = ["ApiServer", "StatusError"]
