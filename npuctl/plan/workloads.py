"""Expands workloads that were not submitted yet into the pods that their controllers would create."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import structs

from allocator.state.kinds import all_kinds
from allocator.state.owned import SETTINGS
from ascend.errors import InvalidValue
from ascend.jobs.creation import Controller
from ascend.jobs.kind import JobSpec
from ascend.jobs.table import TABLE, WORKLOADS
from ascend.kube.objects import KubeObject, Metadata, Pod
from ascend.printable import shown
from npuctl.plan.placement import UnplannedWorkload
from npuctl.reading.manifest import Manifest, Named
from npuctl.reading.objects import ClusterObjects

_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""A label of workloads that are created suspended: Kueue resumes them when it has admitted them."""
_CREATED: Final = tuple((row.creates, row.infix, row.kind) for row in WORKLOADS.values() if row.creates)
"""What is created from workloads under a generated name: its kind, what is before the suffix, and the workload."""
_PARTS_SUSPENDED: Final = ("runPolicy", "rayClusterSpec", "rayClusterConfig")
"""The parts of a workload's ``spec`` that can suspend it, beside that itself."""
_OWN_CONTROLLERS: Final = frozenset({
    "kubernetes.io/job-controller", "jobset.sigs.k8s.io/jobset-controller", "kubeflow.org/training-operator",
    "trainer.kubeflow.org/trainjob-controller", "ray.io/kuberay-operator",
})  # fmt: skip
"""Values of ``managedBy`` with which the controller of the kind creates the pods."""
_WITHOUT_PODS: Final = ("Template", "Runtime")
"""How kinds end whose objects are used by others, and for which nobody creates pods."""
_DEVICES: Final = ("huawei.com/ascend", "huawei.com/npu")
"""How the names of devices begin, in lower case: a name in other letters is another resource, and an error."""


class Expansion(NamedTuple):
    """The objects with the pods of workloads.

    Attributes:
        objects: all objects.
        unplanned: the workloads that request chips and could not be expanded.
        without_chips: the workloads whose pods request no chips.
        existing: the workloads with chips whose pods are among the objects already.
        kinds: the number of expanded workloads by kind.
        misplaced: settings of jobs on workloads that pass them on to no pod, a sentence for each.
    """

    objects: ClusterObjects
    unplanned: tuple[UnplannedWorkload, ...]
    without_chips: tuple[str, ...]
    existing: tuple[str, ...]
    kinds: Counter[str]
    misplaced: tuple[str, ...] = ()


def expand(workloads: Iterable[Manifest], objects: ClusterObjects) -> Expansion:
    """Add the pods of workloads to the objects, unless one of the objects is already owned by the workload.

    Raises:
        InvalidValue: a workload is invalid; the message has file, document number and field.
    """
    owners = _owners(objects.pods)
    # The names of what these create are their own with a suffix.
    owners |= {
        (space, parent, name.rpartition(separator)[0])
        for space, kind, name in owners
        for created, separator, parent in _CREATED
        if kind == created
    }
    made: list[KubeObject] = []
    taken = {pod.key for pod in objects.pods}
    unplanned, without_chips, existing, expanded = [], [], [], Counter[str]()
    # The allocator tells of settings on these that have no effect.
    watched = frozenset(known.resource.kind for known in all_kinds())
    misplaced: list[str] = []
    for source in workloads:
        kind, requests_chips = source.origin.kind, _requests_chips(source.body, set())
        if (row := TABLE.workloads.get((kind, source.version))) is None:
            if requests_chips and not kind.endswith(_WITHOUT_PODS):
                named = source.convert(Named).metadata
                message = f"npuctl plan does not expand {kind} of {source.version}"
                unplanned.append(UnplannedWorkload(kind, named.namespace, named.name, message))
            continue
        expanded[kind] += 1
        manifest = source.convert(msgspec.defstruct("Manifest", [("spec", row.spec)], bases=(Named,)))
        namespace, name = manifest.metadata.namespace, manifest.metadata.name
        if (namespace, kind, name) in owners:
            existing.append(f"{kind} {namespace}/{name}")
        elif not requests_chips:
            without_chips.append(f"{kind} {namespace}/{name}")
        elif (why := _without_pods(source.body["spec"], is_queued=_QUEUE in manifest.metadata.labels)) is not None:
            unplanned.append(UnplannedWorkload(kind, namespace, name, why))
        else:
            given = manifest.metadata
            workload = Controller(source.version, kind, namespace, name, given.labels, given.annotations)
            pods = _create(source, workload, manifest.spec)
            if kind not in watched and pods:
                misplaced += _misplaced(workload, [child.metadata for child in pods])
            if not owners.isdisjoint(_owners(pods)):
                # The objects have pods that its controller created through another workload, such as a Job.
                existing.append(f"{kind} {namespace}/{name}")
                continue
            for created in pods:
                made.append(_renamed(created, kind) if created.key in taken and isinstance(created, Pod) else created)
                taken.add(made[-1].key)
    return Expansion(
        objects.plus(made, _watched(made)),
        tuple(unplanned),
        tuple(without_chips),
        tuple(existing),
        expanded,
        tuple(misplaced),
    )


def _create(manifest: Manifest, workload: Controller, spec: Any) -> list[KubeObject]:
    if isinstance(spec, JobSpec) and not spec.pod_sets:
        raise manifest.origin.error("spec", f"it has no templates of pods where {workload.version} has them")
    try:
        return list(spec.create(workload))
    except InvalidValue as error:
        raise manifest.origin.error("spec", str(error)) from error


def _watched(made: Iterable[KubeObject]) -> dict[str, list[KubeObject]]:
    # The objects that are created between workloads and pods count as of the first kind of their type.
    watched = {kind.resource.type: kind.name for kind in reversed(all_kinds()) if kind.is_optional}
    found: defaultdict[str, list[KubeObject]] = defaultdict(list)
    for child in made:
        if kind := watched.get(type(child)):
            found[kind].append(child)
    return found


def _misplaced(workload: Controller, made: Collection[Metadata]) -> Iterator[str]:
    """Settings on workloads that the allocator does not watch: they have no effect."""
    for what, own, passed_on in (
        ("label", workload.labels, [metadata.labels for metadata in made]),
        ("annotation", workload.annotations, [metadata.annotations for metadata in made]),
    ):
        for key in sorted(SETTINGS & own.keys() - frozenset().union(*passed_on)):
            where = f"{workload.kind} {workload.namespace}/{workload.name}"
            yield f"{what} {key} on {where} has no effect; write it in the metadata of its pod template"


def _owners(objects: Iterable[KubeObject]) -> set[tuple[str, str, str]]:
    """Return namespace, kind and name of the controllers of these objects."""
    controllers = ((obj.metadata.namespace, obj.metadata.controller) for obj in objects)
    return {(namespace, owner.kind, owner.name) for namespace, owner in controllers if owner is not None}


def _renamed(pod: Pod, kind: str) -> Pod:
    """Return a pod whose name another pod has already, with the kind of its workload before its name."""
    name = f"{kind.lower()}-{pod.name}"
    return structs.replace(pod, metadata=structs.replace(pod.metadata, name=name, uid=f"{kind} {pod.uid}"))


def _without_pods(spec: dict[str, Any], *, is_queued: bool) -> str | None:
    """Why the controller of a workload creates no pods here; None if it does."""
    parts = [part for part in (spec, *(spec.get(part) for part in _PARTS_SUSPENDED)) if isinstance(part, dict)]
    managers = (manager for part in parts if (manager := part.get("managedBy")) not in {None, *_OWN_CONTROLLERS})
    if (manager := next(managers, None)) is not None:
        return f"it is managed by {shown(manager)} (managedBy), so its controller creates no pods here"
    if spec.get("paused") is True:
        return "it is paused, so its controller creates no pods"
    if any(part.get("suspend") is True for part in parts) and not is_queued:
        return "it is suspended, so its controller creates no pods"
    return None


def _requests_chips(value: Any, seen: set[int]) -> bool:
    """Whether the resources of a container, or what becomes one, name devices of the maker; a quota names them, too."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, list):
        return any(_requests_chips(entry, seen) for entry in value)
    return any(
        (str(key).lower().startswith("resource") and isinstance(part, dict) and _names_devices(part))
        or _requests_chips(part, seen)
        for key, part in value.items()
    )


def _names_devices(resources: dict[str, Any]) -> bool:
    return any(
        str(name).lower().startswith(_DEVICES) and str(quantity) != "0"
        for kind in ("limits", "requests")
        if isinstance(quantities := resources.get(kind), dict)
        for name, quantity in quantities.items()
    )
