"""The binding subresource: sets node name and annotations of a pod in one change.

Source: k/k pkg/registry/core/pod/storage/storage.go, `BindingREST` and `setPodNodeAndMetadata`.
"""

from sandbox.apiserver.resources import PODS, Json
from sandbox.apiserver.status import bad_request, conflict, internal, precondition_failed
from sandbox.apiserver.store import StoredObject


def check_binding(binding: Json, name: str) -> None:
    """Refuse an invalid Binding.

    Args:
        binding: The posted document.
        name: The name in the path.

    Raises:
        StatusError: 400 for a wrong name; 500, as the real server, for a wrong target.
    """
    if binding.get("metadata", {}).get("name", "") != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    if target.get("kind", "") not in {"", "Node"}:
        kind = target["kind"]
        raise internal(f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not target.get("name"):
        raise internal("target.name: Required value")


def bind(entry: StoredObject, binding: Json, now: str) -> Json:
    """Return the bound pod: with node name, merged annotations and the PodScheduled condition.

    Args:
        entry: The unbound pod.
        binding: A valid Binding; uid and resourceVersion of its metadata are preconditions.
        now: Transition time of the condition.

    Raises:
        StatusError: 409 if a precondition fails, or the pod is being deleted, is bound, or has scheduling gates.
    """
    metadata = binding["metadata"]
    pod = entry.copy()
    for field, what in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        given, found = metadata.get(field), pod["metadata"][field]
        if given and given != found:
            raise precondition_failed(PODS, entry.namespace, entry.name, what=what, given=given, found=found)
    refusal = _refusal(pod)
    if refusal:
        raise conflict(PODS, entry.name, refusal, subresource="binding")
    pod["spec"]["nodeName"] = binding["target"]["name"]
    annotations = {**(pod["metadata"].get("annotations") or {}), **(metadata.get("annotations") or {})}
    if annotations:
        pod["metadata"]["annotations"] = annotations
    _set_scheduled(pod["status"], now)
    return pod


def _refusal(pod: Json) -> str:
    name, spec = pod["metadata"]["name"], pod["spec"]
    if pod["metadata"].get("deletionTimestamp"):
        return f"pod {name} is being deleted, cannot be assigned to a host"
    if spec.get("nodeName"):
        return f'pod {name} is already assigned to node "{spec["nodeName"]}"'
    if spec.get("schedulingGates"):
        return f"pod {name} has non-empty .spec.schedulingGates"
    return ""


def _set_scheduled(status: Json, now: str) -> None:
    conditions = status.setdefault("conditions", [])
    scheduled = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    for index, condition in enumerate(conditions):
        if condition["type"] == "PodScheduled":
            if condition["status"] == "True":
                scheduled["lastTransitionTime"] = condition.get("lastTransitionTime")
            conditions[index] = scheduled
            return
    conditions.append(scheduled)
