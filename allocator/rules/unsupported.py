"""The table of requests that are usual in the ecosystem and that the allocator does not fulfil.

Nothing is ignored in silence. A pod whose demand could only be met by something that is missing here is refused; where
its job runs just as well, one of its pods is told, by an Event. The webhook, gRPC and ``npuctl`` have the same
sentences, and the table in ``docs/unsupported.md`` is generated from this one.
"""

from enum import StrEnum
from typing import Final

import msgspec

from allocator.rules import finders
from allocator.rules.finders import Asking, Finder, Stated
from allocator.rules.job_products import SERVICE, SUPER_POD_AFFINITY, SUPER_POD_BLOCK, SUPER_POD_FIT, TOR_AFFINITY
from allocator.rules.rescheduling_labels import KNOWN_VALUES, RETRY_TIMES, STRICT
from ascend.annotations import INDEPENDENT, MIN_AVAILABLE, MIXED_MODELS
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.kept import GROUP_CLAIMS, GROUP_TOPOLOGY, PARENT_GROUP, PART_TOPOLOGY, SOFT_SHARES, TOPOLOGY_MODE
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Reason


class Outcome(StrEnum):
    """What becomes of such a pod; the value is a cell of ``docs/unsupported.md``."""

    REFUSED = "refused"
    TOLD = "told once"


class Unsupported(msgspec.Struct, frozen=True):
    """A row: a request of a pod or job that the allocator does not fulfil.

    Attributes:
        what: how it is written on a pod, for the documentation.
        meaning: what it requests of MindCluster or of another program of the ecosystem.
        outcome: what becomes of the pod.
        sentence: what is missing here, and what helps; without the pod.
        find: how a pod states it, as in ``label tor-affinity=normal-schema``; None if it does not.
        reason: the reason of the refusal, if pods are refused.
        if_rescheduling: whether it concerns only an allocator that reschedules, or only one that does not; None for
            both.
    """

    what: str
    meaning: str
    outcome: Outcome
    sentence: str
    find: Finder
    reason: Reason = Reason.UNSUPPORTED_POLICY
    if_rescheduling: bool | None = None


def refused_demand(pod: Pod, chips: int | None) -> Refusal | None:
    """Why a pod is refused on every node; None if it asks for nothing that must not be ignored.

    Args:
        pod: the pod, with the settings of its job.
        chips: the number of its chips, if it is a job of its own; else None.
    """
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if _REFUSED_LABELS.isdisjoint(labels) and _REFUSED_ANNOTATIONS.isdisjoint(annotations):
        return None  # called by every decision
    asked = Asking(labels, annotations, chips=chips)
    for row in UNSUPPORTED:
        if row.outcome is Outcome.REFUSED and (found := row.find(asked)) is not None:
            return Refusal(row.reason, f"pod {pod.key}: {found}: {row.sentence}")
    return None


def without_effect(
    pod: Pod, job: Stated = (), pods: int | None = None, *, reschedules: bool = False
) -> tuple[str, ...]:
    """What a pod asks for without effect, one sentence for each.

    Args:
        pod: the pod.
        job: what its pod group and the object of its job say.
        pods: the number of pods of its job that request chips; None if unknown.
        reschedules: whether pods are rescheduled after faults.
    """
    if (asked := finders.read(pod, job, pods)) is None:
        return ()
    return tuple(
        printable(f"{found}: {row.sentence}")
        for row in UNSUPPORTED
        if row.outcome is Outcome.TOLD
        and row.if_rescheduling in {None, reschedules}
        and (found := row.find(asked)) is not None
    )


def requests_other_devices(pod: Pod) -> bool:
    """Whether a pod requests devices of Huawei that the allocator does not place."""
    resources = finders.resources_of(pod)
    return bool(resources) and any(row.find(Asking({}, {}, resources)) is not None for row in UNSUPPORTED)


_REFUSED_LABELS: Final = frozenset(SOFT_SHARES)
_REFUSED_ANNOTATIONS: Final = frozenset({*SOFT_SHARES, SUPER_POD_BLOCK, PART_TOPOLOGY, GROUP_TOPOLOGY})
_FAULTS: Final = (
    "jobs are rescheduled after faults only if the allocator's setting reschedule is on; otherwise the job's own "
    "controller replaces pods that have ended"
)
_COUNTED: Final = (
    "the allocator does not place it; its scheduler only counts it, and a device plugin has to offer and assign it"
)

# A table: how it is written; what it requests; what becomes of the pod; the sentence; how it is found.
# fmt: off
UNSUPPORTED: Final = (
    Unsupported("field `networkTopology` of an entry of `subGroupPolicy` of Volcano's PodGroup, or of a task's "
        "`partitionPolicy`, with the mode `hard`",
        "nodes that are near to each other in the network for each part of a job",
        Outcome.REFUSED, "nodes are near to each other for all pods of a job only: write it on the whole, or set its "
        "mode to soft",
        finders.part_topology(is_hard=True)),
    Unsupported(f"field `{GROUP_TOPOLOGY}` of a PodGroup of Kubernetes",
        "nodes with one value of a label",
        Outcome.REFUSED, "kube-scheduler tries one value after the other and does not say which try counts, so the "
        "chips may be on other nodes; remove it, and give the pods a node selector",
        finders.of_group(GROUP_TOPOLOGY)),
    Unsupported(f"field `{PARENT_GROUP}` of a PodGroup of Kubernetes",
        "how many groups start together",
        Outcome.TOLD, "each group starts as a whole; that several groups do is not ensured",
        finders.of_group(PARENT_GROUP)),
    Unsupported(f"field `{GROUP_CLAIMS}` of a PodGroup of Kubernetes",
        "devices that the pods of the group share",
        Outcome.TOLD, "the allocator places chips that are requested as resources of the pods; kube-scheduler alone "
        "allocates what is claimed",
        finders.of_group(GROUP_CLAIMS)),
    Unsupported("annotation `sp-block` of a single pod, unless the number of its chips",
        "blocks of nodes of one SuperPod ([block size](spec/superpod.md#block-size))",
        Outcome.REFUSED, "the block of a single pod is the number of its chips; set it to that, or remove it",
        finders.wrong_block_of_one, Reason.INVALID_REQUEST),
    Unsupported("annotation `sp-block`, unless a whole number above 0",
        "the same",
        Outcome.REFUSED, "it must be a whole number above 0, a multiple of the chips of each pod, of which the chips "
        "of the job are a multiple",
        finders.wrong_block, Reason.INVALID_REQUEST),
    Unsupported("resource of a vNPU of another kind, as `huawei.com/Ascend910B-2c`",
        "a part of a chip ([vNPUs](spec/vnpu.md))",
        Outcome.TOLD, f"{_COUNTED}. vNPUs that were cut beforehand are {RESOURCE}-2c and the like",
        finders.resource(r"Ascend910[^-]*-[0-9]+c.*")),
    Unsupported("resource `huawei.com/npu`",
        "chips of Ascend 950 and Atlas 350 servers",
        Outcome.TOLD, _COUNTED,
        finders.resource("npu")),
    Unsupported("resource `huawei.com/Ascend310`, `huawei.com/Ascend310P`, …, or any other `huawei.com/Ascend…`, "
        "in capitals or not",
        "chips of another kind",
        Outcome.TOLD, f"{_COUNTED}. Chips of the 910 family are {RESOURCE}",
        finders.resource(r"(?!Ascend910[^-]*-[0-9]+c)(?i:ascend).*")),
    Unsupported("labels `fault-scheduling`, unless `off`; `pod-rescheduling`, `process-recover-enable`, "
        "`fault-retry-times`; annotation `huawei.com/recover_policy_path`",
        "what is deleted and placed again after a fault ([switches](spec/rescheduling.md#job-switches))",
        Outcome.TOLD, _FAULTS,
        finders.any_of(finders.label("fault-scheduling", but=frozenset({"", "off"})), finders.label("pod-rescheduling"),
                finders.label("process-recover-enable"), finders.label("fault-retry-times", but=frozenset({"", "0"})),
                finders.annotation("huawei.com/recover_policy_path")), if_rescheduling=False),
    Unsupported("label `subHealthyStrategy`, unless `ignore`",
        "to avoid sub-healthy nodes, and to leave a node that becomes sub-healthy",
        Outcome.TOLD, "no new pod is placed on a sub-healthy node, but pods that run on one leave it only if the "
        "allocator's setting reschedule is on",
        finders.label("subHealthyStrategy", but=frozenset({"", "ignore"})), if_rescheduling=False),
    Unsupported("labels `fault-scheduling`, `subHealthyStrategy`, unknown values, where the allocator reschedules",
        "[rescheduling](rescheduling.md#what-a-job-says)",
        Outcome.TOLD, "the value is unknown, so no pod of the job is deleted after a fault",
        finders.unknown_values(*STRICT), if_rescheduling=True),
    Unsupported("labels `pod-rescheduling`, `process-recover-enable`, `elastic-scheduling`, `fault-retry-times`, "
        "unknown values, where the allocator reschedules",
        "the same",
        Outcome.TOLD, "the value is unknown, so it is as if there were no such label",
        finders.unknown_values(*(key for key in KNOWN_VALUES if key not in STRICT), RETRY_TIMES), if_rescheduling=True),
    Unsupported(f"labels `huawei.com/schedule_policy`, `{MIN_AVAILABLE}`, `sp-block`, `sp-fit`, `{INDEPENDENT}`, "
        f"`{MIXED_MODELS}`, `huawei.com/recover_policy_path` and `ProcessRecoverStrategy`; annotations "
        "`super-pod-affinity`, `subHealthyStrategy`, `tor-affinity`, `inferserviceid`, `fault-scheduling`, "
        "`pod-rescheduling`, `process-recover-enable`, `elastic-scheduling` and `fault-retry-times`",
        "[settings](jobs.md#settings-of-jobs), written as the other kind of mark",
        Outcome.TOLD, "these labels count as annotations only, and these annotations as labels only: write "
        "it as the other one",
        finders.any_of(*map(finders.label, ("huawei.com/schedule_policy", MIN_AVAILABLE, SUPER_POD_BLOCK, SUPER_POD_FIT,
            INDEPENDENT, MIXED_MODELS, "huawei.com/recover_policy_path", "ProcessRecoverStrategy")),
                *map(finders.annotation, (SUPER_POD_AFFINITY, "subHealthyStrategy", TOR_AFFINITY, SERVICE,
            "fault-scheduling", "pod-rescheduling", "process-recover-enable", "elastic-scheduling", RETRY_TIMES)))),
    Unsupported("labels and annotations that differ from a [setting](jobs.md#settings-of-jobs) in capitals, separators "
        "or one letter, and unknown ones that begin with `ascend-affinity.io/`",
        "what their author means by them",
        Outcome.TOLD, "no program reads this key; the settings of jobs have other names",
        finders.misspelt),
    Unsupported(f"annotation `{INDEPENDENT}` or `{MIXED_MODELS}`, other than `true`",
        "whether the pods work alone ([distributed jobs](jobs.md#distributed-jobs)), or may have several "
        "[models](jobs.md#products) of chips",
        Outcome.TOLD, "only the value true counts; with another one it is as if there were no such annotation",
        finders.any_of(*(finders.annotation(key, but=frozenset({"true"})) for key in (INDEPENDENT, MIXED_MODELS)))),
    Unsupported(f"annotation `{MIN_AVAILABLE}`, other than `minMember` of its PodGroup (if that is above 1) or "
        "`minAvailable` of its operator's object",
        "how many pods start together ([gangs](gangs.md))",
        Outcome.TOLD, "the minimum of the PodGroup counts if it is above 1, else that of the operator's object",
        finders.outweighed),
    Unsupported("labels `app` and `jobID` together, of a job without [blocks](superpods.md)",
        "the pods of a MindIE service near each other ([MindIE](spec/inference.md#mindie-jobs))",
        Outcome.TOLD, "pods of one service are not kept near each other, except by affinity that the scheduler applies",
        finders.without_blocks(finders.labels("app", "jobID"))),
    Unsupported("annotation `sp-block` of a MindIE job, unless the chips of the job",
        "one block for the whole job ([MindIE](spec/inference.md#mindie-jobs))",
        Outcome.TOLD, "the documents of MindIE give a job one block, its chips; with this one it gets "
        "several blocks, which may be in different SuperPods",
        finders.blocks_of_mind_ie),
    Unsupported("label or annotation `podgroup-sched-enable`, if `true`",
        "all pods of a job are placed in one step",
        Outcome.TOLD, "the pods of a gang are always placed in one step, in the order of their ranks",
        finders.either("podgroup-sched-enable", but=frozenset({"", "false"}))),
    Unsupported("label `inferserviceid`, of a job without [blocks](superpods.md)",
        "instances of an inference service near each other ([services](spec/inference.md#inference-services))",
        Outcome.TOLD, "instances of one service are not kept near each other without blocks of nodes (sp-block)",
        finders.without_blocks(finders.label("inferserviceid"))),
    Unsupported("annotation or label `huawei.com/infer_service_schedule`",
        "instances of an inference service near each other",
        Outcome.TOLD, "instances of one service are near each other by the label inferserviceid, and sp-block",
        finders.either("huawei.com/infer_service_schedule")),
    Unsupported("annotation `sp-fit`, label `super-pod-affinity`, of a job without [blocks](superpods.md)",
        "which SuperPod is chosen",
        Outcome.TOLD, "nodes are chosen regardless of SuperPods for a job without blocks of nodes (sp-block)",
        finders.without_blocks(finders.any_of(finders.annotation("sp-fit"), finders.label("super-pod-affinity")))),
    Unsupported("label `super-pod-affinity` of a job with blocks, other than `soft` or `hard`, or `soft` of an "
        "inference job",
        "whether its blocks may be split ([soft affinity](spec/superpod.md#soft-affinity))",
        Outcome.TOLD, "blocks are split only with the value soft, and never those of inference jobs",
        finders.split_blocks),
    Unsupported("annotation `sp-fit` of a job with blocks, other than `idlest` of a MindIE job",
        "which SuperPod is chosen",
        Outcome.TOLD, "only the value idlest counts, and only for MindIE jobs (labels app and jobID); SuperPods are "
        "chosen as if there were no such annotation",
        finders.fit),
    Unsupported("annotation or label `ra-block`",
        "which rack is chosen",
        Outcome.TOLD, "nodes are chosen regardless of racks",
        finders.either("ra-block")),
    Unsupported("the same, with the mode `soft`",
        "the same, if possible",
        Outcome.TOLD, "nodes are near to each other for all pods of a job only",
        finders.part_topology(is_hard=False)),
    Unsupported(f"field `spec.networkTopology` or annotation or label `{TOPOLOGY_MODE}`, with the mode `soft` of a job "
        "with blocks or switch affinity, or with any mode of one without a minimum above 1; or with an unknown mode",
        "nodes that are [near to each other](switches.md#hypernodes-of-volcano)",
        Outcome.TOLD, "it counts for pods that are placed together, without blocks of nodes or switch affinity, and "
        "only with the modes hard and soft",
        finders.idle_topology),
    Unsupported("field `minAvailable` of the tasks of a Volcano Job, `minTaskMember` of a PodGroup, unless the minimum "
        "of the whole is below their sum, or all pods",
        "how many pods of each task start together",
        Outcome.TOLD, "as many pods start together as the minimum of the whole requires, those of the lowest ranks, of "
        "whatever tasks",
        finders.task_minima),
    Unsupported("annotation or label `huawei.com/affinity-config`",
        "blocks of nodes at each level of a topology",
        Outcome.TOLD, "nodes are chosen regardless of levels of a topology",
        finders.either("huawei.com/affinity-config")),
    Unsupported("labels or annotations `huawei.com/scheduler.softShareDev.…`",
        "a share of a chip ([soft-shared chips](spec/vnpu.md#soft-shared-chips))",
        Outcome.REFUSED, "chips are not shared by quota; remove this to get whole chips, or request a vNPU",
        finders.any_of(*map(finders.either, SOFT_SHARES))),
)
# fmt: on
