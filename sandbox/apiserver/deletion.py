"""Deletion: when it removes an object at once, and when it only sets the deletionTimestamp.

Source: apiserver pkg/registry/rest/delete.go `BeforeDelete`,
k/k pkg/registry/core/pod/strategy.go `CheckGracefulDelete`.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sandbox.apiserver.resources import NAMESPACES, PODS, Json, ServedResource
from sandbox.apiserver.status import conflict
from sandbox.apiserver.store import StoredObject

_RFC3339 = "%Y-%m-%dT%H:%M:%SZ"
_TERMINAL_PHASES = frozenset({"Failed", "Succeeded"})


def timestamp(moment: datetime) -> str:
    """Format a time as the API does: UTC, whole seconds."""
    return moment.strftime(_RFC3339)


@dataclass(frozen=True, slots=True)
class Deletion:
    """The steps of a delete: write `marked`, unless it is None, then remove the object if `remove` is set."""

    marked: Json | None
    remove: bool


def check_preconditions(resource: ServedResource, entry: StoredObject, preconditions: Json) -> None:
    """Refuse the delete if uid or resourceVersion in the DeleteOptions differ from the object's.

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


def plan_deletion(resource: ServedResource, entry: StoredObject, grace_s: int | None, now: datetime) -> Deletion:
    """Return the steps of a delete.

    A bound pod with a grace period gets a deletionTimestamp and remains until its kubelet deletes it with grace period
    0; a later delete may only shorten the period. An object with finalizers gets a deletionTimestamp and remains until
    an update removes them.

    Args:
        resource: The kind.
        entry: The object.
        grace_s: gracePeriodSeconds of the request; None for the object's own.
        now: The current time.
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
        period_s = _pod_grace_period(document, grace_s) if resource is PODS else 0
        if resource is not PODS and not finalizers:
            return Deletion(None, remove=True)
        requested = now
        if "generation" in metadata:
            metadata["generation"] += 1
    metadata["deletionTimestamp"] = timestamp(requested + timedelta(seconds=period_s))
    metadata["deletionGracePeriodSeconds"] = period_s
    return Deletion(document, remove=period_s == 0 and not finalizers)


def _pod_grace_period(pod: Json, grace_s: int | None) -> int:
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in _TERMINAL_PHASES:
        return 0
    period_s = int(spec.get("terminationGracePeriodSeconds", 0) if grace_s is None else grace_s)
    return 1 if period_s < 0 else period_s


def is_finished(document: Json) -> bool:
    """Whether an object with a deletionTimestamp has no finalizers and no grace period left, and must be removed."""
    metadata = document["metadata"]
    return (
        "deletionTimestamp" in metadata
        and metadata.get("deletionGracePeriodSeconds", 0) == 0
        and not metadata.get("finalizers")
    )
