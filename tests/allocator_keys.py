"""Every annotation that the allocator writes on pods; the chart's policy of its ServiceAccount admits no others.

The policy is ``templates/allocator/account-policy.yaml``, and ``tests/deploy`` compares both.
"""

from typing import Final

from ascend.annotations import (
    ALLOCATED,
    BLOCK,
    BLOCK_SUPER_POD,
    CONFIGURATION,
    DISTRIBUTED,
    FENCE,
    NOMINATED,
    POD_STATUS,
    PREDICATE_TIME,
    RANK,
    REAL,
    REQUEUED,
    SHARED_SWITCH,
    SHARED_SWITCH_IP,
    SWITCH_HEALTH,
)
from ascend.templates import RESOURCE_CORES

IN_BINDINGS: Final = (
    ALLOCATED,
    RESOURCE_CORES,
    PREDICATE_TIME,
    FENCE,
    REAL,
    CONFIGURATION,
    DISTRIBUTED,
    RANK,
    BLOCK,
    BLOCK_SUPER_POD,
    SHARED_SWITCH,
    SWITCH_HEALTH,
    SHARED_SWITCH_IP,
)
"""In Bindings, together with those of vNPUs (``ascend.vnpus.RESOURCES``)."""

ON_PODS: Final = (REQUEUED, POD_STATUS)
"""On pods that exist."""

WITH_STATUS: Final = (NOMINATED,)
"""On pods that exist, in the same request as their status."""
