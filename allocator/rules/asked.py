"""What a job asks for, and what an administrator has set for all jobs: the input of placement policies."""

from collections.abc import Collection, Container
from typing import Final

import msgspec

from allocator.rules.job import JobKey
from ascend.kube.objects import Pod

DEFAULT_SUPER_POD_SIZE: Final = 48
DEFAULT_RESERVE_NODES: Final = 2
DEFAULT_VNPUS_PER_JOB: Final = 1
"""docs/spec/affinity-rules.md#one-vnpu-per-job"""


class SuperPodLimits(msgspec.Struct, frozen=True):
    """The SuperPods of a cluster (docs/spec/superpod.md#superpod-settings).

    Attributes:
        size: the most nodes of a SuperPod.
        reserve: how many nodes of each SuperPod are kept free, where possible, to replace faulty ones.
    """

    size: int = DEFAULT_SUPER_POD_SIZE
    reserve: int = DEFAULT_RESERVE_NODES

    @classmethod
    def of(cls, size: int, reserve: int) -> "SuperPodLimits":
        """The limits that settings mean: a reserve that is no smaller than a SuperPod is the default, or none.

        Args:
            size: the setting ``super_pod_size``, above 0.
            reserve: the setting ``reserve_nodes``; 0 for no reserve, which the reference can't express.
        """
        if reserve < size:
            return cls(size, reserve)
        return cls(size, DEFAULT_RESERVE_NODES if size > DEFAULT_RESERVE_NODES else 0)


DEFAULT_SUPER_PODS: Final = SuperPodLimits()


class SwitchLimits(msgspec.Struct, frozen=True):
    """How jobs use the leaf switches of a cluster (docs/spec/switch-affinity.md#inputs).

    Attributes:
        version: by which rule servers are chosen, ``1.0`` or ``2.0``.
        most_shared: how many switches a job should share with others at most, 1 or 2; only for version 2.0.
    """

    version: str = "1.0"
    most_shared: int = 2


DEFAULT_SWITCHES: Final = SwitchLimits()


class JobDefaults(msgspec.Struct, frozen=True):
    """What an administrator has set for all jobs.

    Attributes:
        product: name of the product for jobs of several pods that name none; empty for none.
        sharing_products: names of products whose servers may take several pods of one job of several pods.
        super_pods: the size of SuperPods, and their reserve.
        vnpus_per_job: how many vNPUs the pods of a job may have at one time; 0 for any number.
        switches: how jobs use the leaf switches.
    """

    product: str = ""
    sharing_products: Container[str] = ()
    super_pods: SuperPodLimits = DEFAULT_SUPER_PODS
    vnpus_per_job: int = DEFAULT_VNPUS_PER_JOB
    switches: SwitchLimits = DEFAULT_SWITCHES


NO_DEFAULTS: Final = JobDefaults()


class Asked(msgspec.Struct, frozen=True):
    """The part of a job's request that decides its policy.

    Attributes:
        job: the job, for sentences, as in ``default/train``.
        pod: one of its pods, as if all settings of the job were written on it.
        chips: how many chips the pod requests.
        pods: how many pods of the job request chips.
        products: names of the products that the job may use; None for any.
        defaults: what an administrator has set.
    """

    job: JobKey | str
    pod: Pod
    chips: int
    pods: int
    products: Collection[str] | None = None
    defaults: JobDefaults = NO_DEFAULTS
