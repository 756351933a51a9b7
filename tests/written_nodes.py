"""What the device plugin writes on a Node, and how to remove it.

The plugin never removes a label of a Node, and keeps a ``servertype`` it finds. So test modules that share a cluster
remove what theirs has written, or the next module's servers keep the type of these.
"""

from ascend.annotations import BASE_DEVICE_INFOS, SERVER_INDEX, SERVER_TYPE, SUPER_POD_ID
from ascend.kube.objects import JsonObject
from ascend.rules.identity import ACCELERATOR, ACCELERATOR_TYPE, CHIP_NAME, SUPER_POD_LABEL
from ascend.rules.identity import SERVER_TYPE as SERVER_TYPE_LABEL
from device_plugin.publish.node_object import CHIP_MEMORY, DRIVER_VERSION

LABELS = (ACCELERATOR, ACCELERATOR_TYPE, CHIP_NAME, CHIP_MEMORY, DRIVER_VERSION, SERVER_TYPE_LABEL, SUPER_POD_LABEL)
ANNOTATIONS = (BASE_DEVICE_INFOS, SUPER_POD_ID, SERVER_INDEX, SERVER_TYPE)


def removal() -> JsonObject:
    """Return the merge patch of a Node that removes all of it."""
    return {"metadata": {"labels": dict.fromkeys(LABELS), "annotations": dict.fromkeys(ANNOTATIONS)}}
