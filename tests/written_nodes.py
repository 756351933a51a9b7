"""How to remove what the device plugin writes on a Node.

The plugin never removes a label of a Node, and keeps a ``servertype`` it finds. So test modules that share a cluster
remove what theirs has written, or the next module's servers keep the type of these.
"""

from ascend.kube.objects import JsonObject
from tests.plugin_keys import NODE_ANNOTATIONS, NODE_LABELS


def removal() -> JsonObject:
    """Return the merge patch of a Node that removes all of it."""
    return {"metadata": {"labels": dict.fromkeys(NODE_LABELS), "annotations": dict.fromkeys(NODE_ANNOTATIONS)}}
