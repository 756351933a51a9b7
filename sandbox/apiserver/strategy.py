"""The create and update strategies of the kinds: defaults, initial status, and which fields an update may change.

Source: k/k pkg/registry/core/{pod,node,namespace}/strategy.go, pkg/apis/core/v1/defaults.go, and responses of 1.34.4.
The functions change the document they are given, which belongs to the request.
"""

from sandbox.apiserver.resources import NAMESPACES, NODES, PODS, Json, ServedResource

_POD_DEFAULTS: Json = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}
_CONTAINER_DEFAULTS = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
_SERVER_METADATA = ("creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "generation", "uid")
_GATED = {
    "type": "PodScheduled",
    "status": "False",
    "lastProbeTime": None,
    "reason": "SchedulingGated",
    "message": "Scheduling is blocked due to non-empty scheduling gates",
}
_QOS_RESOURCES = ("cpu", "memory")


def fill_defaults(resource: ServedResource, document: Json) -> None:
    """Set the defaults of a kind, on create and on every update."""
    if resource is PODS:
        _fill_pod_spec(document.setdefault("spec", {}))
    elif resource is NODES:
        document.setdefault("spec", {})
        status = document.setdefault("status", {})
        if status.get("capacity"):
            status["allocatable"] = {**status["capacity"], **(status.get("allocatable") or {})}
    elif resource is NAMESPACES:
        labels = document["metadata"].get("labels") or {}
        document["metadata"]["labels"] = {**labels, "kubernetes.io/metadata.name": document["metadata"].get("name", "")}
        document.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
        document["status"] = {"phase": "Active", **(document.get("status") or {})}


def _fill_pod_spec(spec: Json) -> None:
    for key, value in _POD_DEFAULTS.items():
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    for container in containers:
        for key, value in _CONTAINER_DEFAULTS.items():
            container.setdefault(key, value)
        _, _, tag = str(container.get("image", "")).rpartition("/")[2].partition(":")
        container.setdefault("imagePullPolicy", "Always" if tag in {"", "latest"} else "IfNotPresent")
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def prepare_for_create(resource: ServedResource, document: Json, now: str) -> None:
    """Set the initial status: a new pod is always Pending, whatever status the client sent."""
    if resource is not PODS:
        return
    spec = document["spec"]
    document["metadata"]["generation"] = 1
    document["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}
    if spec.get("schedulingGates"):
        document["status"]["conditions"] = [{**_GATED, "lastTransitionTime": now}]


def _qos_class(spec: Json) -> str:
    """Return BestEffort, Burstable or Guaranteed; only cpu and memory count, extended resources do not."""
    containers = [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]
    requests = [container.get("resources", {}).get("requests") or {} for container in containers]
    limits = [container.get("resources", {}).get("limits") or {} for container in containers]
    if not any(name in amounts for amounts in (*requests, *limits) for name in _QOS_RESOURCES):
        return "BestEffort"
    guaranteed = all(
        name in limit and request.get(name) == limit[name]
        for request, limit in zip(requests, limits, strict=True)
        for name in _QOS_RESOURCES
    )
    return "Guaranteed" if guaranteed else "Burstable"


def prepare_for_update(resource: ServedResource, subresource: str, document: Json, before: Json) -> None:
    """Restore what this update may not change: the status for the main resource, everything else for `/status`.

    Both may change labels and annotations, of pods too (seen on 1.34.4).
    """
    if subresource == "status":
        _restore(document, before, "spec")
        if resource is PODS:
            _restore(document["metadata"], before["metadata"], "ownerReferences")
            status = document.setdefault("status", {})
            if not status.get("qosClass") and "qosClass" in before["status"]:
                status["qosClass"] = before["status"]["qosClass"]
    elif "status" in resource.subresources:
        _restore(document, before, "status")
    if resource is PODS and document.get("spec") != before["spec"]:
        document["metadata"]["generation"] = before["metadata"].get("generation", 0) + 1


def restore_server_metadata(document: Json, before: Json) -> None:
    """Restore the metadata that only the server writes."""
    for key in _SERVER_METADATA:
        _restore(document["metadata"], before["metadata"], key)


def _restore(part: Json, before: Json, key: str) -> None:
    if key in before:
        part[key] = before[key]
    else:
        part.pop(key, None)


def drop_empty_metadata(document: Json) -> None:
    """Drop the empty metadata that Go's `omitempty` drops, and managedFields, which this server does not track."""
    metadata = document["metadata"]
    metadata.pop("managedFields", None)
    metadata.pop("selfLink", None)
    for key in ("annotations", "finalizers", "generateName", "labels", "ownerReferences"):
        if key in metadata and not metadata[key]:
            del metadata[key]
