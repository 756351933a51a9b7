"""Slim types for what the allocator reads of the owners of pods and of pod groups: how many pods belong together."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ascend.kube.kept import LONGEST, MOST_ENTRIES, TASK_MINIMA, settings_among, short
from ascend.kube.objects import KubeObject, Metadata, Resource

DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The condition of a pod that is ended by something other than itself, as the eviction API sets it."""
_SIGNALLED: Final = (137, 143)
"""The exit codes of containers that SIGKILL or SIGTERM ends."""
_BACKOFF_LIMIT: Final = 6


def task_minima(tasks: Mapping[str, int], minimum: int) -> dict[str, str]:
    """The minima of tasks as an annotation; none where Volcano ignores them.

    Volcano does so if the minimum of the whole is below their sum (volcano: pkg/scheduler/api, CheckTaskValid).
    """
    if len(tasks) < 2 or minimum < sum(tasks.values()):  # noqa: PLR2004 - that of a single task is that of the whole
        return {}
    return {TASK_MINIMA: ", ".join(f"{name} {number}" for name, number in sorted(tasks.items()))}


class NetworkTopology(msgspec.Struct, frozen=True, gc=False):
    """How near to each other the nodes of a group of Volcano must be (``hard``) or should be (``soft``)."""

    mode: str = "hard"

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "mode", short(self.mode, LONGEST))


class PartOfGroup(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An entry of ``subGroupPolicy`` of Volcano's PodGroup, or the ``partitionPolicy`` of a task of its Job."""

    network_topology: NetworkTopology | None = None


def strictest(whole: NetworkTopology | None, parts: Iterable[PartOfGroup]) -> NetworkTopology | None:
    """What the whole of a group and its parts require of the network: hard if anything is."""
    found = [whole, *(part.network_topology for part in parts)]
    stated = [topology for topology in found if topology is not None]
    return next((topology for topology in stated if topology.mode == "hard"), stated[0] if stated else None)


class OfJob(KubeObject, frozen=True, kw_only=True):
    """An object of a job; of its metadata only identity, controller and settings of the job are kept."""

    def __post_init__(self) -> None:
        full = self.metadata
        controller = full.controller
        bare = Metadata(
            full.name,
            full.namespace,
            full.uid,
            full.resource_version,
            full.creation_timestamp,
            full.deletion_timestamp,
            labels=settings_among(full.labels),
            annotations=settings_among(full.annotations),
            owner_references=(controller.kept,) if controller is not None else (),
        )
        msgspec.structs.force_setattr(self, "metadata", bare)


class PodGroupSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod group's spec."""

    min_member: int = 1
    network_topology: NetworkTopology | None = None
    min_task_member: dict[str, int] | None = None
    sub_group_policy: tuple[PartOfGroup, ...] | None = None

    def __post_init__(self) -> None:
        if self.sub_group_policy:
            topology = strictest(self.network_topology, self.sub_group_policy)
            msgspec.structs.force_setattr(self, "network_topology", topology)
            msgspec.structs.force_setattr(self, "sub_group_policy", None)
        if self.min_task_member:
            first = dict(list(self.min_task_member.items())[:MOST_ENTRIES])
            kept = {short(name): number for name, number in first.items()}
            msgspec.structs.force_setattr(self, "min_task_member", kept)


class PodGroup(OfJob, frozen=True, kw_only=True):
    """A pod group of Volcano or of the coscheduling plugin."""

    spec: PodGroupSpec = PodGroupSpec()


class StatefulSetSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A StatefulSet's spec."""

    replicas: int = 1
    pod_management_policy: str = "OrderedReady"


class StatefulSet(OfJob, frozen=True, kw_only=True):
    """A StatefulSet."""

    spec: StatefulSetSpec = StatefulSetSpec()

    @property
    def size(self) -> int:
        """The desired number of pods."""
        return self.spec.replicas

    @property
    def is_one_by_one(self) -> bool:
        """Whether a pod is created only when the one before it is ready."""
        return self.spec.pod_management_policy == "OrderedReady"


class PodConditionPattern(msgspec.Struct, frozen=True, gc=False):
    """A condition of failed pods that a rule of a Job is about."""

    type: str = ""
    status: str = "True"


class ExitCodes(msgspec.Struct, frozen=True, gc=False):
    """Exit codes of containers, ``In`` or ``NotIn`` these values."""

    operator: str = "In"
    values: tuple[int, ...] = ()


class PodFailureRule(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a Job does about failed pods."""

    action: str = ""
    on_pod_conditions: tuple[PodConditionPattern, ...] = ()
    on_exit_codes: ExitCodes | None = None

    @property
    def is_about_deleted(self) -> bool:
        """Whether the rule decides about a deleted pod: by condition, or by the exit codes of a signal."""
        if PodConditionPattern(DISRUPTION_TARGET) in self.on_pod_conditions:
            return True
        codes = self.on_exit_codes
        if codes is None or self.action == "Ignore":  # which of the signals ends them is not known before
            return False
        return any((code in codes.values) == (codes.operator == "In") for code in _SIGNALLED)


class PodFailurePolicy(msgspec.Struct, frozen=True, gc=False):
    """The rules of a Job about failed pods."""

    rules: tuple[PodFailureRule, ...] = ()


class BatchJobSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Job's spec."""

    parallelism: int = 1
    completions: int | None = None
    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None


class BatchJobStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The part of a Job's status with the start of its time limit, and the number of failed pods."""

    start_time: str = ""
    failed: int = 0


class BatchJob(OfJob, frozen=True, kw_only=True):
    """A Job."""

    spec: BatchJobSpec = BatchJobSpec()
    status: BatchJobStatus = BatchJobStatus()

    @property
    def size(self) -> int:
        """The desired number of pods at one time."""
        completions = self.spec.completions
        return self.spec.parallelism if completions is None else min(self.spec.parallelism, completions)

    is_one_by_one = False

    @property
    def failures_left(self) -> int:
        """How many more pods may be deleted before it fails; the limit of an index is taken for that of all."""
        if self._on_deletion in {"FailJob", "FailIndex"}:
            return 0
        limit = self.spec.backoff_limit_per_index
        if limit is None:
            limit = _BACKOFF_LIMIT if self.spec.backoff_limit is None else self.spec.backoff_limit
        return max(limit - self.status.failed, 0)

    @property
    def ignores_disruptions(self) -> bool:
        """Whether failed pods with the condition DisruptionTarget don't count."""
        return self._on_deletion == "Ignore"

    @property
    def _on_deletion(self) -> str:
        """The action of the Job's policy for a deleted pod, by the first rule about deleted pods."""
        rules = self.spec.pod_failure_policy.rules if self.spec.pod_failure_policy is not None else ()
        return next((rule.action for rule in rules if rule.is_about_deleted), "Count")


STATEFUL_SETS = Resource(StatefulSet, "StatefulSet", "apis/apps/v1", "statefulsets")
BATCH_JOBS = Resource(BatchJob, "Job", "apis/batch/v1", "jobs")
VOLCANO_POD_GROUPS = Resource(PodGroup, "PodGroup", "apis/scheduling.volcano.sh/v1beta1", "podgroups")
COSCHEDULING_POD_GROUPS = Resource(PodGroup, "PodGroup", "apis/scheduling.x-k8s.io/v1alpha1", "podgroups")
