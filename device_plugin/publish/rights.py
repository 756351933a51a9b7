"""The rights that the plugin needs at the API server, with their purposes; the chart grants no more."""

from dataclasses import dataclass

from ascend.deviceinfo import NAMESPACE
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource.

    Attributes:
        verb: as in RBAC.
        resource: plural.
        why: what the plugin uses it for.
        group: the API group; empty for the core group.
        subresource: empty for none.
        namespace: empty for all.
        setting: the setting that needs it; empty if it is always needed.
    """

    verb: str
    resource: str
    why: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    setting: str = ""

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {name}{f'.{self.group}' if self.group else ''}{where}"


JOB_FILES = "job_files: true"

RIGHTS = (
    Right("get", "pods", "after a refused claim, check whether the pod was recreated"),
    Right("list", "pods", "the node's pods, at the start and if the kubelet admits one the watch has not shown"),
    Right("watch", "pods", "the chips written on the node's pods"),
    Right("patch", "pods", "the claim: which chips a pod was given"),
    Right("get", "nodes", "this node's address and labels, and what earlier plugins have left on it"),
    Right("list", "nodes", "this node's object, which may be made again without our annotations and labels"),
    Right("watch", "nodes", "changes of this node's object"),
    Right("patch", "nodes", "annotations and labels: which chips the node has; the taint of taint_from"),
    Right("patch", "nodes", "conditions of this node: the health of its chips", subresource="status"),
    Right("get", "nodes", "the kubelet's count of registrations: another plugin's", subresource="metrics"),
    Right("get", "configmaps", "an earlier plugin's report, and the site's fault rules", namespace=NAMESPACE),
    Right("list", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("watch", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("create", "configmaps", "the node's first report", namespace=NAMESPACE),
    Right("patch", "configmaps", "every later report", namespace=NAMESPACE),
    Right("create", "events", "changes of health, and pods whose chips fail or do not match", group="events.k8s.io"),
    Right("patch", "events", "repetitions of an Event: counted, not repeated", group="events.k8s.io"),
    *(
        Right(verb, "configmaps", "reset-config-<job> and data-trace-<job> of the jobs on the node", setting=JOB_FILES)
        for verb in ("list", "watch")
    ),
)
"""All rights with any settings, except ``KUBELET_PODS``."""

KUBELET_PODS = (
    Right("get", "nodes", "the kubelet's own list of pods", subresource="pods"),
    Right("get", "nodes", "the kubelet's own list of pods, of kubelets before 1.33", subresource="proxy"),
)
"""One of these two is enough."""


def rights(*, job_files: bool) -> tuple[Right, ...]:
    """Return the rights the plugin needs with these settings, except ``KUBELET_PODS``."""
    return tuple(right for right in RIGHTS if job_files or right.setting != JOB_FILES)


async def is_granted(client: KubeClient, right: Right, *, subject: JsonObject | None = None) -> bool:
    """Whether an API server grants a right to a client, or to a subject.

    Raises:
        ApiError: the API server refused to say it.
        Unreachable: it did not answer.
    """
    return await client.may(
        right.verb,
        right.resource,
        group=right.group,
        subresource=right.subresource,
        namespace=right.namespace,
        subject=subject,
    )
