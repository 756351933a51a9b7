"""A pod's status as its kubelet derives it from the pod's containers."""

from collections.abc import Mapping
from datetime import datetime

from ascend.kube.objects import JsonObject
from sandbox.kubelet.runtime import Container, Runtime
from sandbox.pods import ContainerSpec, FullPod

Failures = Mapping[str, tuple[str, str]]
"""Why containers could not be created: by name, reason and message."""


def derive_status(pod: FullPod, runtime: Runtime, failures: Failures, *, node_ip: str, now: datetime) -> JsonObject:
    """The status of an admitted pod, with the phase it has while its containers start, run and end."""
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    init = [_container_status(each, runtime.find(pod.uid, each.name), failures, stamp) for each in pod.init_containers]
    apps = [_container_status(each, runtime.find(pod.uid, each.name), failures, stamp) for each in pod.containers]
    phase = _phase(apps)
    ready = "True" if all(each["ready"] for each in apps) else "False"
    initialized = "True" if any("containerID" in each for each in apps) or not init else "False"
    conditions = [
        {"type": kind, "status": value, "lastTransitionTime": stamp}
        for kind, value in (("Initialized", initialized), ("Ready", ready), ("ContainersReady", ready))
    ]
    status: JsonObject = {
        "phase": phase,
        "conditions": conditions,
        "hostIP": node_ip,
        "podIP": node_ip,
        "startTime": stamp,
        "containerStatuses": apps,
    }
    return {**status, "initContainerStatuses": init} if init else status


def _phase(apps: list[JsonObject]) -> str:
    states = [each["state"] for each in apps]
    if any("waiting" in state for state in states):
        return "Pending"
    if any("running" in state for state in states):
        return "Running"
    return "Failed" if any(state["terminated"]["exitCode"] for state in states) else "Succeeded"


def _container_status(spec: ContainerSpec, container: Container | None, failures: Failures, stamp: str) -> JsonObject:
    status: JsonObject = {
        "name": spec.name,
        "image": spec.image,
        "imageID": "",
        "restartCount": 0,
        "ready": False,
        "started": False,
        "lastState": {},
    }
    if spec.name in failures:
        reason, message = failures[spec.name]
        return {**status, "state": {"waiting": {"reason": reason, "message": message}}}
    if container is None:
        return {**status, "state": {"waiting": {"reason": "ContainerCreating"}}}
    status |= {"containerID": container.id, "imageID": spec.image, "restartCount": container.restarts}
    if container.running:
        return {**status, "ready": True, "started": True, "state": {"running": {"startedAt": stamp}}}
    code = container.exit_code or 0
    ended = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "containerID": container.id,
        "startedAt": stamp,
        "finishedAt": stamp,
    }
    return {**status, "ready": not code and spec.restart_policy == "", "state": {"terminated": ended}}
