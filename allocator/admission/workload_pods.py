"""The pods of a workload of Kueue, as they are once it is admitted.

Their job's object says how its controller makes them (``ascend.jobs``), so they are recognized as the job that they
will be. Kueue then adds what it has chosen: the labels and tolerations of a ResourceFlavor, and with topology-aware
scheduling the labels of a place (kueue: pkg/podset, and pkg/controller/tas/topology_ungater.go).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from allocator.admission.objects import FlavorSpec, PodSetAssignment, Workload, WorkloadPodSet, updates_of
from allocator.rules.job import marks_of
from ascend.errors import UNREADABLE, InvalidValue
from ascend.jobs.creation import Controller
from ascend.jobs.table import TABLE
from ascend.kube.client import KubeClient
from ascend.kube.kept import short
from ascend.kube.objects import KubeObject, OwnerReference, Pod, PodSpec, Resource, read_object
from ascend.kube.workloads import BATCH_JOBS
from ascend.printable import printable


class OwningJob(KubeObject, frozen=True, kw_only=True):
    """The object of a job; the ``spec``, which may be invalid, is decoded when its pods are asked for."""

    spec: msgspec.Raw = msgspec.Raw(b"null")


def owners() -> dict[tuple[str, str], Resource[OwningJob]]:
    """The objects of jobs whose pods are known, by kind and ``apiVersion``: kinds that the allocator watches."""
    watched = (BATCH_JOBS, *(resource for kind in TABLE.kinds for resource in kind.objects))
    return {
        (obj.kind, obj.api_version): Resource(OwningJob, obj.kind, obj.prefix, obj.plural)
        for obj in watched
        if (obj.kind, obj.api_version) in TABLE.workloads
    }


class FlavorMissing(InvalidValue):
    """A ResourceFlavor of a workload does not exist, or is not known yet."""


class Choices(NamedTuple):
    """What Kueue and other checks add to the pods of a pod set."""

    selector: Mapping[str, str]
    tolerations: tuple[dict[str, Any], ...]


def owner_of(workload: Workload) -> OwnerReference | None:
    """The job of a workload; None for a group of pods."""
    owner = workload.metadata.controller
    return None if owner is None or owner.kind == "Pod" else owner


async def read_job(client: KubeClient, workload: Workload) -> OwningJob | None:
    """The job of a workload, if it is of a kind of ``owners``.

    Raises:
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    owner = owner_of(workload)
    resource = owners().get((owner.kind, owner.api_version)) if owner is not None else None
    if owner is None or resource is None:
        return None
    # As a list, because the allocator may list these objects anyway.
    named = f"metadata.name={owner.name}"
    found = await client.list_objects(resource, workload.metadata.namespace, field_selector=named)
    return next((job for job in found if job.uid == owner.uid), None)


def pods_of(
    workload: Workload, job: OwningJob | None, there: Mapping[str, Pod], flavors: Mapping[str, FlavorSpec]
) -> list[Pod]:
    """The pods of a workload.

    Args:
        workload: the workload.
        job: its object, of a kind of ``owners``; None if it is of another kind, or a group of pods.
        there: the pods of the cluster, by uid.
        flavors: the ResourceFlavors, by name.

    Raises:
        FlavorMissing: a flavor that Kueue has chosen is not among ``flavors``.
        InvalidValue: there are too many, or the object is invalid.
    """
    pods: list[Pod] = []
    made = _created(workload, job, there)
    for pod_set in workload.spec.pod_sets:
        given = _assignment(workload, pod_set)
        of_set, made = made[: pod_set.count], made[pod_set.count :]
        pods += _admitted(of_set[: given.count], _choices(workload, pod_set, given, flavors), given)
    return pods


def _created(workload: Workload, job: OwningJob | None, there: Mapping[str, Pod]) -> list[Pod]:
    """The pods of all pod sets, in the order of these, as they are or as the controller of the job creates them."""
    sets, owner, space = workload.spec.pod_sets, owner_of(workload), workload.metadata.namespace
    number, owning = sum(pod_set.count for pod_set in sets), workload.metadata.owner_references
    own = [pod for owner_pod in owning if (pod := there.get(owner_pod.uid)) is not None]
    if len(own) == number:
        return sorted(map(_ungated, own), key=lambda pod: _set_of(pod, sets))
    if owner is not None and job is not None:
        given = job.metadata
        controller = Controller(owner.api_version, owner.kind, space, owner.name, given.labels, given.annotations)
        created = [pod for pod in _spec_of(job, owner).create(controller) if isinstance(pod, Pod)]
        parts = [short(pod_set.name).lower() for pod_set in sets]
        if sorted(parts) == sorted({_part_of(pod) for pod in created}):
            created.sort(key=lambda pod: parts.index(_part_of(pod)))
        if len(created) == number:
            return created
    known = owner if owner is not None else OwnerReference("kueue.x-k8s.io/v1beta1", "Workload", workload.name)
    generic = Controller(known.api_version, known.kind, space, known.name)
    return [pod for pod_set in sets for pod in generic.pods(pod_set.template, range(pod_set.count), role=pod_set.name)]


def _spec_of(job: OwningJob, owner: OwnerReference) -> Any:
    try:
        return read_object(job.spec, TABLE.workloads[owner.kind, owner.api_version].spec)
    except UNREADABLE as error:
        raise InvalidValue(f"spec of {owner.kind} {job.key}: {error}") from error


def _set_of(pod: Pod, sets: Sequence[WorkloadPodSet]) -> int:
    """To which pod set a pod of a group belongs: the pods of one set have equal containers."""
    found = (at for at, pod_set in enumerate(sets) if pod_set.template.spec.containers == pod.spec.containers)
    return next(found, len(sets))


def _part_of(pod: Pod) -> str:
    """The part of its job that a pod belongs to, in lower case."""
    return marks_of(pod).position.part


def _ungated(pod: Pod) -> Pod:
    return structs.replace(pod, spec=structs.replace(pod.spec, scheduling_gates=()))


def _assignment(workload: Workload, pod_set: WorkloadPodSet) -> PodSetAssignment:
    admission = workload.status.admission
    found = (known for known in admission.pod_set_assignments if known.name == pod_set.name) if admission else iter(())
    return next(found, PodSetAssignment(pod_set.name))


def _choices(
    workload: Workload, pod_set: WorkloadPodSet, given: PodSetAssignment, flavors: Mapping[str, FlavorSpec]
) -> Choices:
    selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    for name in dict.fromkeys(given.flavors.values()):
        flavor = flavors.get(name)
        if flavor is None:
            raise FlavorMissing(f"there is no ResourceFlavor {printable(name)}")
        selector |= flavor.node_labels
        tolerations += flavor.tolerations
    for update in (update for check in workload.status.admission_checks for update in updates_of(check)):
        if update.name == pod_set.name:
            selector |= update.node_selector
            tolerations += update.tolerations
    return Choices(selector, tuple(tolerations))


def _admitted(pods: Iterable[Pod], choices: Choices, given: PodSetAssignment) -> Iterator[Pod]:
    specs: dict[object, PodSpec] = {}  # one for all pods of a template in one place
    places = _places(given)
    for pod in pods:
        spec, place = pod.spec, next(places, ())
        if (admitted := specs.get((id(spec), place))) is None:
            selector = {**choices.selector, **dict(place), **spec.node_selector}
            admitted = structs.replace(spec, node_selector=selector)
            if choices.tolerations:
                tolerations = (*_tolerations(spec), *choices.tolerations)
                admitted = structs.replace(admitted, tolerations=msgspec.json.encode(tolerations).decode())
            specs[id(spec), place] = admitted
        yield structs.replace(pod, spec=admitted)


def _tolerations(spec: PodSpec) -> tuple[dict[str, Any], ...]:
    try:
        return msgspec.json.decode(spec.tolerations or "[]", type=tuple[dict[str, Any], ...])
    except msgspec.DecodeError:
        return ()  # as of any pod


def _places(given: PodSetAssignment) -> Iterator[tuple[tuple[str, str], ...]]:
    """The labels of the place of each pod, in the order of the ranks."""
    assigned = given.topology_assignment
    if assigned is not None:
        for domain in assigned.places():
            place = tuple(zip(assigned.levels, domain.values, strict=False))
            for _ in range(domain.count):
                yield place
