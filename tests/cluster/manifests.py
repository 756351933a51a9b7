"""Objects the tests send to the cluster: pods that ask for chips, and scheduler extenders."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tests.cluster.images import BUSYBOX_IMAGE

RESOURCE: Final = "huawei.com/Ascend910"
# Shell words that keep a container running, to end a command with. As first process of its PID namespace a plain
# `sleep` would ignore SIGTERM, and each deletion of a pod would take the kubelet's two seconds of patience.
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
    """A pod with one busybox container, `main`.

    Args:
        name: the pod's.
        chips: how many to ask for; 0 asks for none.
        command: what to run; by default it does nothing until it is told to end.
        namespace: the pod's.
        node: bind to this node without a scheduler.
        labels: the pod's.
        annotations: the pod's.
        resource: which kind of chip.
        **spec: more fields of the pod's spec, such as `schedulerName`.
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
    """An entry of KubeSchedulerConfiguration's `extenders`, for `Cluster.restart_scheduler`.

    Args:
        url: prefix of the verbs `filter`, `preempt` and `bind`.
        bind: whether the extender binds, or the scheduler does.
        resource: the extender is asked about pods that ask for this.
        **more: further fields, such as `httpTimeout`, `enableHTTPS`, `prioritizeVerb`; they win over the defaults.
    """
    return {
        "urlPrefix": url,
        "filterVerb": "filter",
        "preemptVerb": "preempt",
        **({"bindVerb": "bind"} if bind else {}),
        "httpTimeout": "10s",
        "nodeCacheCapable": True,
        "ignorable": False,
        "managedResources": [{"name": resource, "ignoredByScheduler": False}],
    } | more
