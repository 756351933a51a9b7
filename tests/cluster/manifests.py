"""Objects that tests create: pods that request chips, and scheduler extenders."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ascend.templates import RESOURCE_CORES
from ascend.vnpus import SUFFIXES
from tests.cluster.images import BUSYBOX_IMAGE

RESOURCE: Final = "huawei.com/Ascend910"
# The end of a shell command that keeps a container running. As the first process of its PID namespace a plain `sleep`
# would ignore SIGTERM, and every deletion of a pod would take the kubelet's minimum of two seconds.
STAY: Final = 'trap "exit 0" TERM; sleep 2147483647 & wait'


def pod(
    name: str,
    chips: int = 0,
    *,
    command: Sequence[str] = ("sh", "-c", STAY),
    namespace: str = "default",
    node: str | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    resource: str = RESOURCE,
    **spec: Any,
) -> dict[str, Any]:
    """Return a pod with one busybox container, `main`.

    Args:
        name: its name.
        chips: how many chips it requests; 0 for none.
        command: its command; by default it waits for SIGTERM.
        namespace: its namespace.
        node: its node, without a scheduler.
        labels: its labels.
        annotations: its annotations.
        resource: the resource name of the chips.
        **spec: more fields of its spec, such as `schedulerName`.
    """
    container: dict[str, Any] = {
        "name": "main",
        "image": BUSYBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": list(command),
    }
    if chips:
        container["resources"] = {"limits": {resource: str(chips)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {
            "hostNetwork": True,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": [container],
            **({"nodeName": node} if node else {}),
            **spec,
        },
    }


def extender(url: str, *, bind: bool = True, resource: str = RESOURCE, **more: Any) -> dict[str, Any]:
    """Return an entry of `extenders` in the KubeSchedulerConfiguration, for `Cluster.restart_scheduler`.

    Args:
        url: the `urlPrefix` of the verbs `filter`, `preempt` and `bind`.
        bind: whether the extender binds pods instead of the scheduler.
        resource: the managed resource: the scheduler calls the extender for pods that request it.
        **more: other fields, such as `httpTimeout`, `enableHTTPS`, `prioritizeVerb`; they override the defaults.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        **({"bindVerb": "bind"} if bind else {}),
        "httpTimeout": "300s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [
            {"name": name, "ignoredByScheduler": False}
            for name in (resource, RESOURCE_CORES, *(f"{resource}-{suffix}" for suffix in SUFFIXES.values()))
        ],
    } | more
