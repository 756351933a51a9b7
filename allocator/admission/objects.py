"""Kueue's objects, as far as an admission check reads them, in both versions of its API.

They differ, as far as is read here, in how places are written. See kueue: apis/kueue, workload_types.go and
admissioncheck_types.go.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from ascend.errors import InvalidValue
from ascend.jobs.templates import Count, PodTemplate
from ascend.kube.objects import JsonObject, KubeObject, Resource

CONTROLLER: Final = "ascend-affinity.io/chips"
"""``spec.controllerName`` of the AdmissionChecks that the allocator answers."""


class Condition(msgspec.Struct, frozen=True):
    """A condition of an object."""

    type: str = ""
    status: str = ""


class _Conditions(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Domain(msgspec.Struct, frozen=True):
    """Where Kueue places some pods: the values of the labels of the levels, and the number of pods."""

    values: tuple[str, ...] = ()
    count: Count = 0


class _Roots(msgspec.Struct, frozen=True):
    """The values of a label in several domains: a root for each, and a common prefix and suffix."""

    roots: tuple[str, ...] = ()
    prefix: str = ""
    suffix: str = ""


class _Values(msgspec.Struct, frozen=True):
    """The value of a label in all domains of a slice, or in each."""

    universal: str | None = None
    individual: _Roots = _Roots()

    def of(self, number: int) -> str:
        """The value in a domain of the slice."""
        if self.universal is not None:
            return self.universal
        return f"{self.individual.prefix}{self.individual.roots[number]}{self.individual.suffix}"


class _Counts(msgspec.Struct, frozen=True):
    """The number of pods in all domains of a slice, or in each."""

    universal: Count | None = None
    individual: tuple[Count, ...] = ()


class _Slice(msgspec.Struct, rename="camel", frozen=True):
    """Several domains of v1beta2."""

    domain_count: Count = 0
    values_per_level: tuple[_Values, ...] = ()
    pod_counts: _Counts = _Counts()

    def domains(self) -> Iterator[Domain]:
        """Its domains.

        Raises:
            InvalidValue: there are fewer values or counts than domains.
        """
        counts = self.pod_counts
        for number in range(self.domain_count):
            try:
                count = counts.universal if counts.universal is not None else counts.individual[number]
                yield Domain(tuple(values.of(number) for values in self.values_per_level), count)
            except IndexError:
                raise InvalidValue("a topologyAssignment has fewer values than domains") from None


class TopologyAssignment(msgspec.Struct, frozen=True):
    """Where topology-aware scheduling places the pods of a pod set, in the order of their ranks.

    v1beta1 has ``domains``, v1beta2 ``slices``.
    """

    levels: tuple[str, ...] = ()
    domains: tuple[Domain, ...] = ()
    slices: tuple[_Slice, ...] = ()

    def places(self) -> Iterator[Domain]:
        """The domains of either version.

        Raises:
            InvalidValue: those of v1beta2 are malformed.
        """
        yield from self.domains
        for part in self.slices:
            yield from part.domains()


class PodSetAssignment(msgspec.Struct, rename="camel", frozen=True):
    """What a pod set is admitted with: a ResourceFlavor for each resource, the number of pods, and where they are."""

    name: str = ""
    flavors: dict[str, str] = {}
    count: Count | None = None
    topology_assignment: TopologyAssignment | None = None


class Admission(msgspec.Struct, rename="camel", frozen=True):
    """What quota is reserved for."""

    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class WorkloadPodSet(msgspec.Struct, frozen=True):
    """Pods of a workload that are made from one template."""

    name: str = "main"
    count: Count = 1
    template: PodTemplate = PodTemplate()


class WorkloadSpec(msgspec.Struct, rename="camel", frozen=True):
    """What Kueue is to admit."""

    pod_sets: tuple[WorkloadPodSet, ...] = ()
    active: bool = True
    priority: int | None = None


class RequeueState(msgspec.Struct, rename="camel", frozen=True):
    """The delay of a workload that has lost its quota, and how often Kueue has counted such a delay."""

    requeue_at: datetime | None = None
    count: int = 0


class WorkloadStatus(msgspec.Struct, rename="camel", frozen=True):
    """How far the admission is; of the checks, all that is written there, since a patch replaces the list."""

    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[JsonObject, ...] = ()
    requeue_state: RequeueState | None = None


class Workload(KubeObject, frozen=True, kw_only=True):
    """What Kueue admits: one for each job, or group of pods, with a queue."""

    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def is_true(self, condition: str) -> bool:
        """Whether a condition of this type is true."""
        return Condition(condition, "True") in self.status.conditions

    @property
    def has_reservation(self) -> bool:
        """Whether quota is reserved for it, and it neither ends nor gives the quota back."""
        ends = not self.spec.active or self.metadata.deletion_timestamp is not None
        return self.is_true("QuotaReserved") and not (ends or self.is_true("Evicted") or self.is_true("Finished"))

    @property
    def is_placed(self) -> bool:
        """Whether Kueue has chosen where its pods are."""
        admission = self.status.admission
        return admission is not None and any(
            assignment.topology_assignment for assignment in admission.pod_set_assignments
        )

    def without_places(self) -> "Workload":
        """The same without that choice."""
        given = self.status.admission.pod_set_assignments if self.status.admission is not None else ()
        admission = Admission(tuple(replace(assignment, topology_assignment=None) for assignment in given))
        return replace(self, status=replace(self.status, admission=admission))

    @property
    def requeue_at_s(self) -> float:
        """When its delay ends, Unix seconds; 0 without a delay."""
        state = self.status.requeue_state
        return state.requeue_at.timestamp() if state is not None and state.requeue_at is not None else 0.0

    def retries(self, checks: set[str]) -> int:
        """How often Kueue has withdrawn the quota because of these checks; 0 if the last eviction had another cause.

        The message tells that from evictions of other checks and of waitForPodsReady; only newer releases count
        (kueue: pkg/workload, resetChecksOnEviction).
        """
        found = (
            check.get("retryCount")
            for check in self.status.admission_checks
            if check.get("name") in checks and str(check.get("message")).endswith("Previously: Retry")
        )
        return max((number if isinstance(number, int) else 1 for number in found), default=0)

    def states(self, checks: set[str]) -> dict[str, str]:
        """The states of these checks, by their names."""
        found = ((str(check.get("name")), str(check.get("state"))) for check in self.status.admission_checks)
        return {name: state for name, state in found if name in checks}


class PodSetUpdate(msgspec.Struct, rename="camel", frozen=True):
    """What a check adds to the pods of a pod set."""

    name: str = ""
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()


def updates_of(check: JsonObject) -> tuple[PodSetUpdate, ...]:
    """What a check adds to pods.

    Raises:
        InvalidValue: it is malformed.
    """
    try:
        return msgspec.convert(check.get("podSetUpdates") or (), tuple[PodSetUpdate, ...])
    except msgspec.ValidationError as error:
        raise InvalidValue(f"podSetUpdates of an admission check: {error}") from error


class AdmissionCheckSpec(msgspec.Struct, rename="camel", frozen=True):
    """Who answers a check."""

    controller_name: str = ""


class AdmissionCheck(KubeObject, frozen=True, kw_only=True):
    """A check that ClusterQueues name."""

    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: _Conditions = _Conditions()

    @property
    def is_active(self) -> bool:
        """Whether the controller has said that it answers the check."""
        return Condition("Active", "True") in self.status.conditions


class FlavorSpec(msgspec.Struct, rename="camel", frozen=True):
    """The labels of the nodes of a flavor, and the tolerations of pods for these."""

    node_labels: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()


class ResourceFlavor(KubeObject, frozen=True, kw_only=True):
    """A kind of nodes whose quota is counted."""

    spec: FlavorSpec = FlavorSpec()


class Kinds(NamedTuple):
    """The kinds of a version of the API."""

    workloads: Resource[Workload]
    checks: Resource[AdmissionCheck]
    flavors: Resource[ResourceFlavor]
    topologies: Resource[KubeObject]


def kinds(version: str) -> Kinds:
    """The kinds of a version of Kueue's API."""
    api = f"apis/kueue.x-k8s.io/{version}"
    return Kinds(
        Resource(Workload, "Workload", api, "workloads"),
        Resource(AdmissionCheck, "AdmissionCheck", api, "admissionchecks", namespaced=False),
        Resource(ResourceFlavor, "ResourceFlavor", api, "resourceflavors", namespaced=False),
        Resource(KubeObject, "Topology", api, "topologies", namespaced=False),
    )


VERSIONS: Final = ("v1beta2", "v1beta1")
"""The versions that are known, the newest first: Kueue serves v1beta1 to 0.17, and v1beta2 from 0.15 on."""
