"""PodGroups of Kubernetes, of Volcano and of the coscheduling plugin: they precede what created the pods."""

from typing import Final

from ascend.jobs.kind import JobKind, Text
from ascend.jobs.marks import by_label, first_of
from ascend.kube.objects import Pod
from ascend.kube.workloads import COSCHEDULING_POD_GROUPS, POD_GROUPS, VOLCANO_POD_GROUPS

KUBERNETES: Final = "PodGroup.scheduling.k8s.io"
VOLCANO: Final = "PodGroup.scheduling.volcano.sh"
COSCHEDULING: Final = "PodGroup.scheduling.x-k8s.io"
VOLCANO_ANNOTATIONS: Final = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COSCHEDULING_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
_OF_PODS = "as of the kind of the pods", "as of the kind of the pods"
_SIZE = "that of the pods' object, else `minMember`"


def _scheduling_group(pod: Pod) -> str | None:
    group = pod.spec.scheduling_group
    return group.pod_group_name or None if group is not None else None


# fmt: off
KINDS: Final = (
    JobKind(
        KUBERNETES,
        Text("PodGroup of Kubernetes", "field `spec.schedulingGroup`", "that of the pods' object, else its minimum",
             "`schedulingPolicy.gang.minCount`; 1 with `basic`", *_OF_PODS),
        _scheduling_group, objects=POD_GROUPS, is_group=True,
    ),
    JobKind(
        VOLCANO,
        Text("PodGroup of Volcano", f"annotation `{VOLCANO_ANNOTATIONS[0]}` (or `{VOLCANO_ANNOTATIONS[1]}`)",
             _SIZE, "`minMember`", *_OF_PODS),
        lambda pod: first_of(pod.metadata.annotations, VOLCANO_ANNOTATIONS), marks=VOLCANO_ANNOTATIONS,
        objects=(VOLCANO_POD_GROUPS,), is_group=True,
    ),
    JobKind(
        COSCHEDULING,
        Text("PodGroup of scheduler-plugins", f"label `{_COSCHEDULING_LABELS[0]}` (or the older "
             f"`{_COSCHEDULING_LABELS[1]}`, with or without `/name`)", _SIZE, "`minMember`", *_OF_PODS),
        by_label(*_COSCHEDULING_LABELS), marks=_COSCHEDULING_LABELS, objects=(COSCHEDULING_POD_GROUPS,), is_group=True,
    ),
)
# fmt: on
