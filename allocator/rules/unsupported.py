"""The table of requests that are usual in the ecosystem and that the allocator does not fulfil.

Nothing is ignored in silence. A pod whose demand could only be met by something that is missing here is refused; where
its job runs just as well, one of its pods is told, by an Event. The webhook, gRPC and ``npuctl`` have the same
sentences, and the table in ``docs/unsupported.md`` is generated from this one.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeAlias

import msgspec

from allocator.rules.job_products import (
    SERVICE,
    SUPER_POD_AFFINITY,
    SUPER_POD_BLOCK,
    SUPER_POD_FIT,
    TOR_AFFINITY,
    is_mind_ie,
    names_blocks,
)
from allocator.rules.request import counted_chips
from allocator.rules.rescheduling_labels import KNOWN_VALUES, RETRY_TIMES, STRICT, unknown_value
from ascend.annotations import INDEPENDENT, MIN_AVAILABLE, MIXED_MODELS
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.jobs.kind import JobFacts
from ascend.kube.kept import (
    GROUP_CLAIMS,
    GROUP_TOPOLOGY,
    NETWORK_TOPOLOGY,
    PARENT_GROUP,
    SOFT_SHARES,
    TASK_MINIMA,
    TOPOLOGY_MODE,
    meant,
)
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of

_VENDOR: Final = "huawei.com/"
_NOTHING: Final = frozenset({"", "null"})


class Outcome(StrEnum):
    """What becomes of such a pod; the value is a cell of ``docs/unsupported.md``."""

    REFUSED = "refused"
    TOLD = "told once"


class Asking(msgspec.Struct, frozen=True):
    """What a pod asks for, besides chips.

    Attributes:
        labels: its labels.
        annotations: its annotations.
        resources: names of the resources of its containers, without those whose quantity is 0.
        chips: the number of chips of a pod that is a job of its own; None for the pods of other jobs.
        minimum: the minimum of the job that counts before one in an annotation; None without one.
        has_blocks: whether it asks for blocks of nodes of one SuperPod.
        total: the chips of all pods of its job; None if unknown.
    """

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    resources: frozenset[str] = frozenset()
    chips: int | None = None
    minimum: int | None = None
    has_blocks: bool = False
    total: int | None = None


Stated: TypeAlias = Sequence[JobFacts | None]
"""What the pod group and the object of a job say, the one that counts first before the other."""
Finder: TypeAlias = Callable[[Asking], str | None]


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
    (labels, annotations), resources = _marks(pod, job), _resources(pod)
    if (
        not resources
        and _KEYS.isdisjoint(labels)
        and _KEYS.isdisjoint(annotations)
        and not any(_wrong(labels, annotations))
    ):
        return ()  # called for every new pod
    has_blocks = names_blocks(annotations, pod.spec.node_selector)
    total = pods * counted_chips(pod) if pods is not None else None
    asked = Asking(labels, annotations, resources, minimum=_first_minimum(job), has_blocks=has_blocks, total=total)
    return tuple(
        printable(f"{found}: {row.sentence}")
        for row in UNSUPPORTED
        if row.outcome is Outcome.TOLD
        and row.if_rescheduling in {None, reschedules}
        and (found := row.find(asked)) is not None
    )


def requests_other_devices(pod: Pod) -> bool:
    """Whether a pod requests devices of Huawei that the allocator does not place."""
    resources = _resources(pod)
    return bool(resources) and any(row.find(Asking({}, {}, resources)) is not None for row in UNSUPPORTED)


def _marks(pod: Pod, job: Stated) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Labels and annotations of a pod and its job; those of the group count first.

    See docs/spec/scheduling.md#jobs-and-requests.
    """
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    for facts in reversed(job):
        if facts is not None and (facts.labels or facts.annotations):
            labels, annotations = {**labels, **facts.labels}, {**annotations, **facts.annotations}
    return labels, annotations


def _first_minimum(job: Stated) -> int | None:
    """The minimum of a job that counts before one in an annotation (``Job.min_available``)."""
    for facts in filter(None, job):
        if facts.minimum is not None and facts.minimum > 1:
            return facts.minimum
        if MIN_AVAILABLE in facts.annotations:
            return None
    _, source = job or (None, None)
    return source.minimum if source is not None else None


def _resources(pod: Pod) -> frozenset[str]:
    """Names of the resources of Huawei that a pod requests besides chips and vNPUs."""
    found = set()
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers:
            for quantities in (container.resources.limits, container.resources.requests):
                for name in quantities:
                    if (
                        name.startswith(_VENDOR)
                        and name not in {RESOURCE, RESOURCE_CORES}
                        and suffix_of(name) is None
                        and quantities[name] != "0"
                    ):
                        found.add(name)
    return frozenset(name for name in found if suffix_of(name) is None)


_KEYS: Final = {MIN_AVAILABLE, TASK_MINIMA}
"""The keys of all labels and annotations of the table: most pods have none of them."""


def _resource(pattern: str) -> Finder:
    matches = re.compile(re.escape(_VENDOR) + pattern).fullmatch

    def find(asked: Asking) -> str | None:
        found = sorted(filter(matches, asked.resources))
        return f"resource {found[0]}" if found else None

    return find


def _label(key: str, *, but: frozenset[str] = _NOTHING) -> Finder:
    _KEYS.add(key)
    return lambda asked: None if (value := asked.labels.get(key)) is None or value in but else f"label {key}={value}"


def _annotation(key: str, *, but: frozenset[str] = frozenset({""})) -> Finder:
    _KEYS.add(key)

    def find(asked: Asking) -> str | None:
        value = asked.annotations.get(key)
        return None if value is None or value in but else f"annotation {key}={value}"

    return find


def _either(key: str, *, but: frozenset[str] = _NOTHING) -> Finder:
    """Written as a label or as an annotation."""
    return _any_of(_label(key, but=but), _annotation(key, but=but))


def _any_of(*finders: Finder) -> Finder:
    def find(asked: Asking) -> str | None:
        return ", ".join(found for finder in finders if (found := finder(asked)) is not None) or None

    return find


def _outweighed(asked: Asking) -> str | None:
    """A minimum that does not count, because another one does."""
    text = asked.annotations.get(MIN_AVAILABLE)
    if text is None or asked.minimum is None or text == str(asked.minimum):
        return None
    return f"annotation {MIN_AVAILABLE}={text}, where another minimum is {asked.minimum}"


def _wrong_block(asked: Asking) -> str | None:
    """A block that no job may have (docs/spec/superpod.md#block-size)."""
    text = asked.annotations.get(SUPER_POD_BLOCK)
    return None if text is None or _is_number(text) else f"annotation {SUPER_POD_BLOCK}={text!r}"


def _wrong_block_of_one(asked: Asking) -> str | None:
    """A block that no job of a single pod may have."""
    text = asked.annotations.get(SUPER_POD_BLOCK)
    if text is None or asked.chips is None or text == str(asked.chips):
        return None
    return f"annotation {SUPER_POD_BLOCK}={text}"


def _split_blocks(asked: Asking) -> str | None:
    """A label that says nothing about the blocks of its job (docs/spec/superpod.md#soft-affinity)."""
    value, labels = asked.labels.get(SUPER_POD_AFFINITY), asked.labels
    if not value or value == "hard" or not asked.has_blocks:
        return None
    if value != "soft":
        return f"label {SUPER_POD_AFFINITY}={value} (known values: soft, hard)"
    if SERVICE in labels:
        return f"label {SUPER_POD_AFFINITY}={value} of an inference service"
    return f"label {SUPER_POD_AFFINITY}={value} of a MindIE job" if is_mind_ie(labels) else None


def _fit(asked: Asking) -> str | None:
    """An annotation that says nothing about the SuperPods of its job (docs/spec/inference.md#mindie-jobs)."""
    value = asked.annotations.get(SUPER_POD_FIT)
    if not value or not asked.has_blocks or (value == "idlest" and is_mind_ie(asked.labels)):
        return None
    return f"annotation {SUPER_POD_FIT}={value}"


def _unknown_values(*keys: str) -> Finder:
    _KEYS.update(keys)

    def find(asked: Asking) -> str | None:
        found = (unknown_value(key, asked.labels) for key in keys)
        return ", ".join(f"label {label}" for label in found if label is not None) or None

    return find


def _blocks_of_mind_ie(asked: Asking) -> str | None:
    """Several blocks of a MindIE job; MindIE's documents know only one.

    See docs/spec/superpod.md#how-the-reference-follows-the-documents.
    """
    text, labels = asked.annotations.get(SUPER_POD_BLOCK), asked.labels
    if text is None or asked.total is None or text == str(asked.total) or not is_mind_ie(labels):
        return None
    return f"annotation {SUPER_POD_BLOCK}={text} of a MindIE job of {asked.total} chips"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and bool(text.strip("0"))


def _topology(*, is_hard: bool) -> Finder:
    _KEYS.update({NETWORK_TOPOLOGY, TOPOLOGY_MODE})

    def find(asked: Asking) -> str | None:
        stated = (
            (
                f"{NETWORK_TOPOLOGY} of its PodGroup or Volcano Job, or of a part of it, ",
                asked.annotations,
                NETWORK_TOPOLOGY,
            ),
            (f"annotation {TOPOLOGY_MODE}=", asked.annotations, TOPOLOGY_MODE),
            (f"label {TOPOLOGY_MODE}=", asked.labels, TOPOLOGY_MODE),
        )
        modes = ((where, marks.get(key)) for where, marks, key in stated)
        return next((f"{where}{mode}" for where, mode in modes if mode and (mode == "hard") is is_hard), None)

    return find


def _wrong(labels: Iterable[str], annotations: Iterable[str]) -> Iterator[str]:
    """The misspelt ones of labels and annotations, with what is meant."""
    for what, keys in (("label", labels), ("annotation", annotations)):
        for key in keys:
            if (setting := meant(key)) is not None:
                yield f"{what} {key}" + (f" (meant: {setting})" if setting else "")


def _misspelt(asked: Asking) -> str | None:
    return ", ".join(_wrong(asked.labels, asked.annotations)) or None


def _of_group(field: str) -> Finder:
    """A field of a pod group of Kubernetes."""
    _KEYS.add(field)
    return lambda asked: f"{field} of its PodGroup ({value})" if (value := asked.annotations.get(field)) else None


def _task_minima(asked: Asking) -> str | None:
    minima = asked.annotations.get(TASK_MINIMA)
    return None if minima is None else f"spec.minTaskMember of its PodGroup or minAvailable of its tasks ({minima})"


def _labels(*keys: str) -> Finder:
    """All of these labels, whatever their values; the first one may be on many pods."""
    _KEYS.update(keys[1:])

    def find(asked: Asking) -> str | None:
        labels = asked.labels
        return f"labels {' and '.join(f'{key}={labels[key]}' for key in keys)}" if labels.keys() >= set(keys) else None

    return find


def _without_blocks(finder: Finder) -> Finder:
    return lambda asked: None if asked.has_blocks else finder(asked)


_REFUSED_LABELS: Final = frozenset({*SOFT_SHARES, TOPOLOGY_MODE})
_REFUSED_ANNOTATIONS: Final = frozenset(
    {*SOFT_SHARES, SUPER_POD_BLOCK, NETWORK_TOPOLOGY, GROUP_TOPOLOGY, TOPOLOGY_MODE}
)
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
    Unsupported("field `spec.networkTopology` of Volcano's PodGroup or Job, of an entry of `subGroupPolicy` or of a "
        f"task's `partitionPolicy`, or annotation or label `{TOPOLOGY_MODE}`, with the mode `hard`",
        "nodes that are near to each other in the network",
        Outcome.REFUSED, "the allocator does not know the network of the nodes; remove it, or set its mode to soft",
        _topology(is_hard=True)),
    Unsupported(f"field `{GROUP_TOPOLOGY}` of a PodGroup of Kubernetes",
        "nodes with one value of a label",
        Outcome.REFUSED, "kube-scheduler tries one value after the other and does not say which try counts, so the "
        "chips may be on other nodes; remove it, and give the pods a node selector",
        _of_group(GROUP_TOPOLOGY)),
    Unsupported(f"field `{PARENT_GROUP}` of a PodGroup of Kubernetes",
        "how many groups start together",
        Outcome.TOLD, "each group starts as a whole; that several groups do is not ensured",
        _of_group(PARENT_GROUP)),
    Unsupported(f"field `{GROUP_CLAIMS}` of a PodGroup of Kubernetes",
        "devices that the pods of the group share",
        Outcome.TOLD, "the allocator places chips that are requested as resources of the pods; kube-scheduler alone "
        "allocates what is claimed",
        _of_group(GROUP_CLAIMS)),
    Unsupported("annotation `sp-block` of a single pod, unless the number of its chips",
        "blocks of nodes of one SuperPod ([block size](spec/superpod.md#block-size))",
        Outcome.REFUSED, "the block of a single pod is the number of its chips; set it to that, or remove it",
        _wrong_block_of_one, Reason.INVALID_REQUEST),
    Unsupported("annotation `sp-block`, unless a whole number above 0",
        "the same",
        Outcome.REFUSED, "it must be a whole number above 0, a multiple of the chips of each pod, of which the chips "
        "of the job are a multiple",
        _wrong_block, Reason.INVALID_REQUEST),
    Unsupported("resource of a vNPU of another kind, as `huawei.com/Ascend910B-2c`",
        "a part of a chip ([vNPUs](spec/vnpu.md))",
        Outcome.TOLD, f"{_COUNTED}. vNPUs that were cut beforehand are {RESOURCE}-2c and the like",
        _resource(r"Ascend910[^-]*-[0-9]+c.*")),
    Unsupported("resource `huawei.com/npu`",
        "chips of Ascend 950 and Atlas 350 servers",
        Outcome.TOLD, _COUNTED,
        _resource("npu")),
    Unsupported("resource `huawei.com/Ascend310`, `huawei.com/Ascend310P`, …, or any other `huawei.com/Ascend…`, "
        "in capitals or not",
        "chips of another kind",
        Outcome.TOLD, f"{_COUNTED}. Chips of the 910 family are {RESOURCE}",
        _resource(r"(?!Ascend910[^-]*-[0-9]+c)(?i:ascend).*")),
    Unsupported("labels `fault-scheduling`, unless `off`; `pod-rescheduling`, `process-recover-enable`, "
        "`fault-retry-times`; annotation `huawei.com/recover_policy_path`",
        "what is deleted and placed again after a fault ([switches](spec/rescheduling.md#job-switches))",
        Outcome.TOLD, _FAULTS,
        _any_of(_label("fault-scheduling", but=frozenset({"", "off"})), _label("pod-rescheduling"),
                _label("process-recover-enable"), _label("fault-retry-times", but=frozenset({"", "0"})),
                _annotation("huawei.com/recover_policy_path")), if_rescheduling=False),
    Unsupported("label `subHealthyStrategy`, unless `ignore`",
        "to avoid sub-healthy nodes, and to leave a node that becomes sub-healthy",
        Outcome.TOLD, "no new pod is placed on a sub-healthy node, but pods that run on one leave it only if the "
        "allocator's setting reschedule is on",
        _label("subHealthyStrategy", but=frozenset({"", "ignore"})), if_rescheduling=False),
    Unsupported("labels `fault-scheduling`, `subHealthyStrategy`, unknown values, where the allocator reschedules",
        "[rescheduling](rescheduling.md#what-a-job-says)",
        Outcome.TOLD, "the value is unknown, so no pod of the job is deleted after a fault",
        _unknown_values(*STRICT), if_rescheduling=True),
    Unsupported("labels `pod-rescheduling`, `process-recover-enable`, `elastic-scheduling`, `fault-retry-times`, "
        "unknown values, where the allocator reschedules",
        "the same",
        Outcome.TOLD, "the value is unknown, so it is as if there were no such label",
        _unknown_values(*(key for key in KNOWN_VALUES if key not in STRICT), RETRY_TIMES), if_rescheduling=True),
    Unsupported(f"labels `huawei.com/schedule_policy`, `{MIN_AVAILABLE}`, `sp-block`, `sp-fit`, `{INDEPENDENT}`, "
        f"`{MIXED_MODELS}`, `huawei.com/recover_policy_path` and `ProcessRecoverStrategy`; annotations "
        "`super-pod-affinity`, `subHealthyStrategy`, `tor-affinity`, `inferserviceid`, `fault-scheduling`, "
        "`pod-rescheduling`, `process-recover-enable`, `elastic-scheduling` and `fault-retry-times`",
        "[settings](jobs.md#settings-of-jobs), written as the other kind of mark",
        Outcome.TOLD, "these labels count as annotations only, and these annotations as labels only: write "
        "it as the other one",
        _any_of(*map(_label, ("huawei.com/schedule_policy", MIN_AVAILABLE, SUPER_POD_BLOCK, SUPER_POD_FIT, INDEPENDENT,
                              MIXED_MODELS, "huawei.com/recover_policy_path", "ProcessRecoverStrategy")),
                *map(_annotation, (SUPER_POD_AFFINITY, "subHealthyStrategy", TOR_AFFINITY, SERVICE, "fault-scheduling",
                                   "pod-rescheduling", "process-recover-enable", "elastic-scheduling", RETRY_TIMES)))),
    Unsupported("labels and annotations that differ from a [setting](jobs.md#settings-of-jobs) in capitals, separators "
        "or one letter, and unknown ones that begin with `ascend-affinity.io/`",
        "what their author means by them",
        Outcome.TOLD, "no program reads this key; the settings of jobs have other names",
        _misspelt),
    Unsupported(f"annotation `{INDEPENDENT}` or `{MIXED_MODELS}`, other than `true`",
        "whether the pods work alone ([distributed jobs](jobs.md#distributed-jobs)), or may have several "
        "[models](jobs.md#products) of chips",
        Outcome.TOLD, "only the value true counts; with another one it is as if there were no such annotation",
        _any_of(*(_annotation(key, but=frozenset({"true"})) for key in (INDEPENDENT, MIXED_MODELS)))),
    Unsupported(f"annotation `{MIN_AVAILABLE}`, other than `minMember` of its PodGroup (if that is above 1) or "
        "`minAvailable` of its operator's object",
        "how many pods start together ([gangs](gangs.md))",
        Outcome.TOLD, "the minimum of the PodGroup counts if it is above 1, else that of the operator's object",
        _outweighed),
    Unsupported("labels `app` and `jobID` together, of a job without [blocks](superpods.md)",
        "the pods of a MindIE service near each other ([MindIE](spec/inference.md#mindie-jobs))",
        Outcome.TOLD, "pods of one service are not kept near each other, except by affinity that the scheduler applies",
        _without_blocks(_labels("app", "jobID"))),
    Unsupported("annotation `sp-block` of a MindIE job, unless the chips of the job",
        "one block for the whole job ([MindIE](spec/inference.md#mindie-jobs))",
        Outcome.TOLD, "the documents of MindIE give a job one block, its chips; with this one it gets "
        "several blocks, which may be in different SuperPods",
        _blocks_of_mind_ie),
    Unsupported("label or annotation `podgroup-sched-enable`, if `true`",
        "all pods of a job are placed in one step",
        Outcome.TOLD, "the pods of a gang are always placed in one step, in the order of their ranks",
        _either("podgroup-sched-enable", but=frozenset({"", "false"}))),
    Unsupported("label `inferserviceid`, of a job without [blocks](superpods.md)",
        "instances of an inference service near each other ([services](spec/inference.md#inference-services))",
        Outcome.TOLD, "instances of one service are not kept near each other without blocks of nodes (sp-block)",
        _without_blocks(_label("inferserviceid"))),
    Unsupported("annotation or label `huawei.com/infer_service_schedule`",
        "instances of an inference service near each other",
        Outcome.TOLD, "instances of one service are near each other by the label inferserviceid, and sp-block",
        _either("huawei.com/infer_service_schedule")),
    Unsupported("annotation `sp-fit`, label `super-pod-affinity`, of a job without [blocks](superpods.md)",
        "which SuperPod is chosen",
        Outcome.TOLD, "nodes are chosen regardless of SuperPods for a job without blocks of nodes (sp-block)",
        _without_blocks(_any_of(_annotation("sp-fit"), _label("super-pod-affinity")))),
    Unsupported("label `super-pod-affinity` of a job with blocks, other than `soft` or `hard`, or `soft` of an "
        "inference job",
        "whether its blocks may be split ([soft affinity](spec/superpod.md#soft-affinity))",
        Outcome.TOLD, "blocks are split only with the value soft, and never those of inference jobs",
        _split_blocks),
    Unsupported("annotation `sp-fit` of a job with blocks, other than `idlest` of a MindIE job",
        "which SuperPod is chosen",
        Outcome.TOLD, "only the value idlest counts, and only for MindIE jobs (labels app and jobID); SuperPods are "
        "chosen as if there were no such annotation",
        _fit),
    Unsupported("annotation or label `ra-block`",
        "which rack is chosen",
        Outcome.TOLD, "nodes are chosen regardless of racks",
        _either("ra-block")),
    Unsupported("field `spec.networkTopology` of Volcano's PodGroup or Job, of its parts, or "
        f"`{TOPOLOGY_MODE}`, with the mode `soft`",
        "nodes that are near to each other in the network, if possible",
        Outcome.TOLD, "nodes are chosen regardless of the network between them",
        _topology(is_hard=False)),
    Unsupported("field `minAvailable` of the tasks of a Volcano Job, `minTaskMember` of a PodGroup, unless the minimum "
        "of the whole is below their sum, or all pods",
        "how many pods of each task start together",
        Outcome.TOLD, "as many pods start together as the minimum of the whole requires, those of the lowest ranks, of "
        "whatever tasks",
        _task_minima),
    Unsupported("annotation or label `huawei.com/affinity-config`",
        "blocks of nodes at each level of a topology",
        Outcome.TOLD, "nodes are chosen regardless of levels of a topology",
        _either("huawei.com/affinity-config")),
    Unsupported("labels or annotations `huawei.com/scheduler.softShareDev.…`",
        "a share of a chip ([soft-shared chips](spec/vnpu.md#soft-shared-chips))",
        Outcome.REFUSED, "chips are not shared by quota; remove this to get whole chips, or request a vNPU",
        _any_of(*map(_either, SOFT_SHARES))),
)
# fmt: on
