"""Every key that the plugin writes at the API server; the chart's admission policy admits no more.

The policy is ``templates/device-plugin/policies.yaml``: the plugin of a node whose administrator is an attacker can
write these keys of that node and its pods, and nothing else. ``tests/deploy`` compares both.
"""

from typing import Final

from ascend.annotations import (
    ALLOCATED,
    CONFIGURATION,
    KUBELET_IDS,
    PREDICATE_TIME,
    REAL,
    RESET_INFO,
    RESETS,
    SERVER_INDEX,
    SERVER_TYPE,
    SUPER_POD_ID,
)
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.cordons import CORDONED
from ascend.deviceinfo import DESCRIPTION, DEVICE_INFO, LABELS, MANUALLY_SEPARATED, SWITCH_INFO, UPGRADE_REASONS
from ascend.rules.identity import ACCELERATOR, ACCELERATOR_TYPE, CHIP_NAME, SUPER_POD_LABEL
from ascend.rules.identity import SERVER_TYPE as SERVER_TYPE_LABEL
from ascend.templates import RESOURCE_CORES
from device_plugin.publish.device_info_configmap import LAST_UPDATE, SIGNATURE
from device_plugin.publish.node_conditions import CONDITIONS, NOT_READY, TAINT
from device_plugin.publish.node_object import CHIP_MEMORY, DRIVER_VERSION
from device_plugin.publish.readmission_labels import CHIPS, PORTS

NODE_LABELS: Final = (
    ACCELERATOR,
    ACCELERATOR_TYPE,
    CHIP_NAME,
    CHIP_MEMORY,
    DRIVER_VERSION,
    SERVER_TYPE_LABEL,
    SUPER_POD_LABEL,
    CHIPS,
    PORTS,
)
"""Labels of the plugin's own Node."""

NODE_ANNOTATIONS: Final = (BASE_DEVICE_INFOS, SUPER_POD_ID, SERVER_INDEX, SERVER_TYPE, RESET_INFO, RESETS)
"""Annotations of the plugin's own Node."""

NODE_CONDITIONS: Final = (*CONDITIONS, NOT_READY)
"""Types of conditions of the plugin's own Node."""

NODE_TAINTS: Final = (TAINT,)
"""Keys of taints of the plugin's own Node."""

POD_ANNOTATIONS: Final = (PREDICATE_TIME, REAL, KUBELET_IDS, CONFIGURATION, ALLOCATED, RESOURCE_CORES)
"""Annotations of the pods of its node, together with those of vNPUs (``ascend.vnpus.RESOURCES``): the claim,
and the chips that somebody else has changed since (``device_plugin/pods/annotation_repairs.py``)."""

REPORT_LABELS: Final = tuple(LABELS)
"""Labels of the node's report."""

REPORT_ANNOTATIONS: Final = (*SIGNATURE, LAST_UPDATE, CORDONED)
"""Annotations of the node's report."""

REPORT_KEYS: Final = (DEVICE_INFO, SWITCH_INFO, MANUALLY_SEPARATED, UPGRADE_REASONS, DESCRIPTION)
"""Keys of the data of the node's report."""
