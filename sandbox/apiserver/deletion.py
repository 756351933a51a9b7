"""When a delete takes an object away and when it only marks it.

Source: apiserver pkg/registry/rest/delete.go `BeforeDelete`,
k/k pkg/registry/core/pod/strategy.go `CheckGracefulDelete`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sandbox.apiserver.resources import NAMESPACES, PODS, Resource
from sandbox.apiserver.status import conflict
from sandbox.apiserver.store import Entry

Json = dict[str, Any]

_RFC3339 = "%Y-%m-%dT%H:%M:%SZ"
_OVER = frozenset({"Failed", "Succeeded"})


def timestamp(moment: datetime) -> str:
    """A moment as the API writes it: UTC, whole seconds."""
    return moment.strftime(_RFC3339)


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a delete does: first write `marked` where given, then take the object out where `remove`."""

    marked: Json | None
    remove: bool


def check_preconditions(resource: Resource, entry: Entry, preconditions: Json) -> None:
    """Refuse where uid or resourceVersion of DeleteOptions are not the object's.

    Raises:
        StatusError: 409.
    """
    metadata = entry.document["metadata"]
    uid, version = preconditions.get("uid"), preconditions.get("resourceVersion")
    if uid is not None and uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(resource, entry.name, why, kind=resource.kind)
    if version is not None and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified"
        )
        raise conflict(resource, entry.name, why, kind=resource.kind)


def plan_deletion(resource: Resource, entry: Entry, grace_s: int | None, now: datetime) -> Deletion:
    """Decide what a delete does.

    A pod on a node with a grace period is marked and stays until its kubelet deletes it with grace 0; a later delete
    may only shorten the period. Anything with finalizers is marked and stays until an update empties them.

    Args:
        resource: The kind.
        entry: The object.
        grace_s: gracePeriodSeconds of the request, None for the object's own.
        now: The present.
    """
    document = entry.copy()
    metadata = document["metadata"]
    if resource is NAMESPACES:
        metadata["deletionTimestamp"] = timestamp(now)
        document["status"] = {**document.get("status", {}), "phase": "Terminating"}
        return Deletion(document, remove=True)
    finalizers = bool(metadata.get("finalizers"))
    if "deletionTimestamp" in metadata:
        period_s = metadata.get("deletionGracePeriodSeconds", 0)
        if grace_s is None or grace_s >= period_s:
            return Deletion(None, remove=period_s == 0 and not finalizers)
        marked_at = datetime.strptime(metadata["deletionTimestamp"], _RFC3339).replace(tzinfo=now.tzinfo)
        requested = marked_at - timedelta(seconds=period_s)
        period_s = max(grace_s, 0)
    else:
        period_s = _grace_of_pod(document, grace_s) if resource is PODS else 0
        if resource is not PODS and not finalizers:
            return Deletion(None, remove=True)
        requested = now
        if "generation" in metadata:
            metadata["generation"] += 1
    metadata["deletionTimestamp"] = timestamp(requested + timedelta(seconds=period_s))
    metadata["deletionGracePeriodSeconds"] = period_s
    return Deletion(document, remove=period_s == 0 and not finalizers)


def _grace_of_pod(pod: Json, grace_s: int | None) -> int:
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in _OVER:
        return 0
    period_s = int(spec.get("terminationGracePeriodSeconds", 0) if grace_s is None else grace_s)
    return 1 if period_s < 0 else period_s


def is_finished(document: Json) -> bool:
    """Whether an update emptied the finalizers of a marked object, so that it goes now."""
    metadata = document["metadata"]
    return (
        "deletionTimestamp" in metadata
        and metadata.get("deletionGracePeriodSeconds", 0) == 0
        and not metadata.get("finalizers")
    )
