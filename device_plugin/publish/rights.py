"""What the plugin must be allowed to do at the API server, and why; the chart grants exactly this."""

from dataclasses import dataclass

from ascend.deviceinfo import NAMESPACE


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource.

    Attributes:
        verb: as RBAC has it.
        resource: plural.
        why: what the plugin does with it.
        group: the API group; empty for the core one.
        subresource: empty for none.
        namespace: empty for all.
    """

    verb: str
    resource: str
    why: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {name}{f'.{self.group}' if self.group else ''}{where}"


_RIGHTS = (
    Right("get", "pods", "whether a pod whose claim was refused is still the same one"),
    Right("list", "pods", "the node's pods, at the start and when the kubelet asks for one not yet seen"),
    Right("watch", "pods", "the chips written on the node's pods"),
    Right("patch", "pods", "the claim: what a pod was handed"),
    Right("get", "nodes", "this node's address and labels"),
    Right("patch", "nodes", "annotations and labels: what chips the node has"),
    Right("get", "configmaps", "the report an earlier plugin left, and the site's fault rules", namespace=NAMESPACE),
    Right("list", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("watch", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("create", "configmaps", "the node's first report", namespace=NAMESPACE),
    Right("patch", "configmaps", "every later report", namespace=NAMESPACE),
    Right("create", "events", "changes of a chip's health, and pods that were refused", group="events.k8s.io"),
    Right("patch", "events", "the same again: counted, not repeated", group="events.k8s.io"),
)

_MANUAL_READMISSION = (
    Right("list", "nodes", "operators' edits of the labels of chips that wait (readmission: manual)"),
    Right("watch", "nodes", "operators' edits of the labels of chips that wait (readmission: manual)"),
)

KUBELET_PODS = (
    Right("get", "nodes", "the kubelet's own list of pods", subresource="pods"),
    Right("get", "nodes", "the kubelet's own list of pods, of kubelets before 1.33", subresource="proxy"),
)
"""One of these is enough."""


def rights(*, manual_readmission: bool) -> tuple[Right, ...]:
    """All the plugin needs, but for ``KUBELET_PODS``."""
    return _RIGHTS + (_MANUAL_READMISSION if manual_readmission else ())
