"""Slim types for what the allocator reads of the owners of pods and of pod groups: how many pods belong together."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ascend.kube.kept import (
    GROUP_CLAIMS,
    GROUP_TOPOLOGY,
    LONGEST,
    MOST_ENTRIES,
    NETWORK_TOPOLOGY,
    PARENT_GROUP,
    PART_TOPOLOGY,
    TASK_MINIMA,
    settings_among,
    short,
)
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


class NetworkTopology(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How near to each other the nodes of a group of Volcano must be (``hard``) or should be (``soft``)."""

    mode: str = "hard"
    highest_tier_allowed: int | None = None
    highest_tier_name: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "mode", short(self.mode))
        msgspec.structs.force_setattr(self, "highest_tier_name", short(self.highest_tier_name))

    @property
    def asked(self) -> str:
        """The same in one line."""
        if self.highest_tier_allowed is not None:
            return f"{self.mode} highestTierAllowed={self.highest_tier_allowed}"
        return f"{self.mode} highestTierName={self.highest_tier_name}" if self.highest_tier_name else self.mode


class PartOfGroup(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An entry of ``subGroupPolicy`` of Volcano's PodGroup, or the ``partitionPolicy`` of a task of its Job."""

    network_topology: NetworkTopology | None = None


def topologies(whole: NetworkTopology | None, parts: Iterable[PartOfGroup]) -> dict[str, str]:
    """What the whole of a group and its parts require of the network, as annotations; of the parts hard if any is."""
    modes = sorted(part.network_topology.mode for part in parts if part.network_topology is not None)
    found = {NETWORK_TOPOLOGY: whole.asked if whole is not None else "", PART_TOPOLOGY: next(iter(modes), "")}
    return {field: value for field, value in found.items() if value}


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


class _Gang(msgspec.Struct, rename="camel", frozen=True, gc=False):
    min_count: int = 1


class SchedulingPolicy(msgspec.Struct, frozen=True, gc=False):
    """The policy of a pod group of Kubernetes; ``basic`` has no gang."""

    gang: _Gang = _Gang()


class TopologyConstraint(msgspec.Struct, frozen=True, gc=False):
    """A label that the nodes of all pods of a group must have with the same value."""

    key: str = ""


class SchedulingConstraints(msgspec.Struct, frozen=True, gc=False):
    """What a pod group of Kubernetes requires of the nodes of all its pods."""

    topology: tuple[TopologyConstraint, ...] = ()


class GroupClaim(msgspec.Struct, frozen=True, gc=False):
    """A claim for devices that the pods of a group share."""

    name: str = ""


class PodGroupSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod group's spec: the first four fields are of Volcano, the first one of the coscheduling plugin as well."""

    min_member: int = 1
    network_topology: NetworkTopology | None = None
    min_task_member: dict[str, int] | None = None
    sub_group_policy: tuple[PartOfGroup, ...] | None = None
    scheduling_policy: SchedulingPolicy | None = None
    scheduling_constraints: SchedulingConstraints | None = None
    parent_composite_pod_group_name: str | None = None
    resource_claims: tuple[GroupClaim, ...] = ()

    def __post_init__(self) -> None:
        if self.scheduling_policy is not None:
            msgspec.structs.force_setattr(self, "min_member", self.scheduling_policy.gang.min_count)
        if self.sub_group_policy:
            parts = tuple(part for part in self.sub_group_policy if part.network_topology is not None)
            msgspec.structs.force_setattr(self, "sub_group_policy", parts[:MOST_ENTRIES])
        if self.min_task_member:
            first = dict(list(self.min_task_member.items())[:MOST_ENTRIES])
            kept = {short(name): number for name, number in first.items()}
            msgspec.structs.force_setattr(self, "min_task_member", kept)

    @property
    def asked(self) -> dict[str, str]:
        """What it says about the placement besides the minimum, as annotations."""
        constraints, claims = self.scheduling_constraints, self.resource_claims[:MOST_ENTRIES]
        found = {
            **topologies(self.network_topology, self.sub_group_policy or ()),
            GROUP_TOPOLOGY: ", ".join(rule.key for rule in constraints.topology) if constraints is not None else "",
            PARENT_GROUP: self.parent_composite_pod_group_name or "",
            GROUP_CLAIMS: ", ".join(claim.name for claim in claims),
        }
        return {field: short(value, LONGEST) for field, value in found.items() if value}


class PodGroup(OfJob, frozen=True, kw_only=True):
    """A pod group of Volcano or of the coscheduling plugin."""

    spec: PodGroupSpec = PodGroupSpec()


class KubernetesPodGroup(PodGroup, frozen=True, kw_only=True):
    """A pod group of Kubernetes itself."""


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
POD_GROUPS = tuple(
    Resource(KubernetesPodGroup, "PodGroup", f"apis/scheduling.k8s.io/{version}", "podgroups")
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
COSCHEDULING_POD_GROUPS = Resource(PodGroup, "PodGroup", "apis/scheduling.x-k8s.io/v1alpha1", "podgroups")
