"""The environment variables by which ascend-docker-runtime gives containers chips, and which pods may set them.

A pod's own value wins over the device plugin's, and the runtime asks for no request. So a pod may only take
``ASCEND_VISIBLE_DEVICES`` from an annotation that its author can't write, as the makers' manifests do. An admission
policy of the chart (visible-devices.yaml) has the same rule.
"""

from typing import Final

from ascend.annotations import ALLOCATED, REAL, WRITERS, Writer
from ascend.vnpus import RESOURCES

VISIBLE_DEVICES: Final = "ASCEND_VISIBLE_DEVICES"

RESERVED: Final = (
    VISIBLE_DEVICES,
    "ASCEND_RUNTIME_OPTIONS",
    "ASCEND_RUNTIME_MOUNTS",
    "ASCEND_VNPU_SPECS",
    "ASCEND_ALLOW_LINK",
)
"""The variables: the chips, whether their ids are those of vNPUs, folders of the node, a vNPU to be cut, and whether
mounts may follow symbolic links."""

GRANTED: Final = (ALLOCATED, REAL, *(key for key, writer in WRITERS.items() if writer is Writer.OTHERS), *RESOURCES)
"""The annotations from which a pod may take ``ASCEND_VISIBLE_DEVICES``: its author can't write them."""


def field_path(annotation: str) -> str:
    """The path of an annotation, as ``fieldRef`` names it."""
    return f"metadata.annotations['{annotation}']"


def is_granted(variable: str, path: str) -> bool:
    """Whether a pod may take a variable from a field of its own.

    Args:
        variable: the name of the variable, as it is written.
        path: the path of the field.
    """
    return variable == VISIBLE_DEVICES and path in map(field_path, GRANTED)


def is_reserved(variable: str) -> bool:
    """Whether the runtime reads a variable with this name; it ignores spaces around it."""
    return variable.strip() in RESERVED


def may_begin_reserved(prefix: str) -> bool:
    """Whether variables with this prefix (``envFrom``) may be reserved, whatever follows it."""
    return bool(prefix) and any(name.startswith(prefix.strip()) for name in RESERVED)
