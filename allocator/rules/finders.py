"""How a pod states its demands besides chips: by labels, annotations, resources and fields of its job's objects."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from allocator.rules.rescheduling_labels import unknown_value
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from ascend.jobs.kind import JobFacts
from ascend.kube.kept import NETWORK_TOPOLOGY, PART_TOPOLOGY, TASK_MINIMA, TOPOLOGY_MODE, meant
from ascend.kube.objects import Pod
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of

_VENDOR: Final = "huawei.com/"


_NOTHING: Final = frozenset({"", "null"})


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


KEYS: Final = {MIN_AVAILABLE, TASK_MINIMA}
"""The keys of all labels and annotations that are looked for: most pods have none of them."""

Finder: TypeAlias = Callable[[Asking], str | None]


def read(pod: Pod, job: Stated, pods: int | None) -> Asking | None:
    """The demands of a pod and its job; None if no finder looks for any. Called for every new pod.

    Args:
        pod: the pod.
        job: what its pod group and the object of its job say.
        pods: the number of pods of its job that request chips; None if unknown.
    """
    (labels, annotations), resources = _marks(pod, job), resources_of(pod)
    if not resources and KEYS.isdisjoint([*labels, *annotations]) and not any(wrong(labels, annotations)):
        return None
    has_blocks = names_blocks(annotations, pod.spec.node_selector)
    total = pods * counted_chips(pod) if pods is not None else None
    return Asking(labels, annotations, resources, minimum=_first_minimum(job), has_blocks=has_blocks, total=total)


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


def resources_of(pod: Pod) -> frozenset[str]:
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


def resource(pattern: str) -> Finder:
    """A resource of Huawei by its name."""
    matches = re.compile(re.escape(_VENDOR) + pattern).fullmatch

    def find(asked: Asking) -> str | None:
        found = sorted(filter(matches, asked.resources))
        return f"resource {found[0]}" if found else None

    return find


def label(key: str, *, but: frozenset[str] = _NOTHING) -> Finder:
    """A label, unless it has one of some values."""
    KEYS.add(key)
    return lambda asked: None if (value := asked.labels.get(key)) is None or value in but else f"label {key}={value}"


def annotation(key: str, *, but: frozenset[str] = frozenset({""})) -> Finder:
    """An annotation, unless it has one of some values."""
    KEYS.add(key)

    def find(asked: Asking) -> str | None:
        value = asked.annotations.get(key)
        return None if value is None or value in but else f"annotation {key}={value}"

    return find


def either(key: str, *, but: frozenset[str] = _NOTHING) -> Finder:
    """Written as a label or as an annotation."""
    return any_of(label(key, but=but), annotation(key, but=but))


def any_of(*finders: Finder) -> Finder:
    """Anything that one of the finders finds."""

    def find(asked: Asking) -> str | None:
        return ", ".join(found for finder in finders if (found := finder(asked)) is not None) or None

    return find


def outweighed(asked: Asking) -> str | None:
    """A minimum that does not count, because another one does."""
    text = asked.annotations.get(MIN_AVAILABLE)
    if text is None or asked.minimum is None or text == str(asked.minimum):
        return None
    return f"annotation {MIN_AVAILABLE}={text}, where another minimum is {asked.minimum}"


def wrong_block(asked: Asking) -> str | None:
    """A block that no job may have (docs/spec/superpod.md#block-size)."""
    text = asked.annotations.get(SUPER_POD_BLOCK)
    return None if text is None or _is_number(text) else f"annotation {SUPER_POD_BLOCK}={text!r}"


def wrong_block_of_one(asked: Asking) -> str | None:
    """A block that no job of a single pod may have."""
    text = asked.annotations.get(SUPER_POD_BLOCK)
    if text is None or asked.chips is None or text == str(asked.chips):
        return None
    return f"annotation {SUPER_POD_BLOCK}={text}"


def split_blocks(asked: Asking) -> str | None:
    """A label that says nothing about the blocks of its job (docs/spec/superpod.md#soft-affinity)."""
    value, labels = asked.labels.get(SUPER_POD_AFFINITY), asked.labels
    if not value or value == "hard" or not asked.has_blocks:
        return None
    if value != "soft":
        return f"label {SUPER_POD_AFFINITY}={value} (known values: soft, hard)"
    if SERVICE in labels:
        return f"label {SUPER_POD_AFFINITY}={value} of an inference service"
    return f"label {SUPER_POD_AFFINITY}={value} of a MindIE job" if is_mind_ie(labels) else None


def fit(asked: Asking) -> str | None:
    """An annotation that says nothing about the SuperPods of its job (docs/spec/inference.md#mindie-jobs)."""
    value = asked.annotations.get(SUPER_POD_FIT)
    if not value or not asked.has_blocks or (value == "idlest" and is_mind_ie(asked.labels)):
        return None
    return f"annotation {SUPER_POD_FIT}={value}"


def unknown_values(*keys: str) -> Finder:
    """Labels with values that nobody knows."""
    KEYS.update(keys)

    def find(asked: Asking) -> str | None:
        found = (unknown_value(key, asked.labels) for key in keys)
        return ", ".join(f"label {label}" for label in found if label is not None) or None

    return find


def blocks_of_mind_ie(asked: Asking) -> str | None:
    """Several blocks of a MindIE job; MindIE's documents know only one.

    See docs/spec/superpod.md#how-the-reference-follows-the-documents.
    """
    text, labels = asked.annotations.get(SUPER_POD_BLOCK), asked.labels
    if text is None or asked.total is None or text == str(asked.total) or not is_mind_ie(labels):
        return None
    return f"annotation {SUPER_POD_BLOCK}={text} of a MindIE job of {asked.total} chips"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and bool(text.strip("0"))


def part_topology(*, is_hard: bool) -> Finder:
    """A mode of the network topology of a part of a job."""
    KEYS.add(PART_TOPOLOGY)

    def find(asked: Asking) -> str | None:
        mode = asked.annotations.get(PART_TOPOLOGY)
        return f"{PART_TOPOLOGY} or partitionPolicy ({mode})" if mode and (mode == "hard") is is_hard else None

    return find


KEYS.update({NETWORK_TOPOLOGY, TOPOLOGY_MODE})


def idle_topology(asked: Asking) -> str | None:
    """A network topology that does not count: of a job without a minimum, or with other wishes; or an unknown mode."""
    stated = (
        (f"{NETWORK_TOPOLOGY} of its PodGroup or Volcano Job ", asked.annotations.get(NETWORK_TOPOLOGY)),
        (f"annotation {TOPOLOGY_MODE}=", asked.annotations.get(TOPOLOGY_MODE)),
        (f"label {TOPOLOGY_MODE}=", asked.labels.get(TOPOLOGY_MODE)),
    )
    where, mode = next(((where, mode) for where, mode in stated if mode), ("", ""))
    has_others = asked.has_blocks or TOR_AFFINITY in asked.labels
    is_gang = (asked.minimum or 0) > 1 or asked.annotations.get(MIN_AVAILABLE, "1") != "1"
    counts = mode.startswith(("hard", "soft")) and is_gang and not has_others
    return None if counts or not where else f"{where}{mode}"


def wrong(labels: Iterable[str], annotations: Iterable[str]) -> Iterator[str]:
    """The misspelt ones of labels and annotations, with what is meant."""
    for what, keys in (("label", labels), ("annotation", annotations)):
        for key in keys:
            if (setting := meant(key)) is not None:
                yield f"{what} {key}" + (f" (meant: {setting})" if setting else "")


def misspelt(asked: Asking) -> str | None:
    """Labels and annotations that nobody reads."""
    return ", ".join(wrong(asked.labels, asked.annotations)) or None


def of_group(field: str) -> Finder:
    """A field of a pod group of Kubernetes."""
    KEYS.add(field)
    return lambda asked: f"{field} of its PodGroup ({value})" if (value := asked.annotations.get(field)) else None


def task_minima(asked: Asking) -> str | None:
    """The minima of tasks."""
    minima = asked.annotations.get(TASK_MINIMA)
    return None if minima is None else f"spec.minTaskMember of its PodGroup or minAvailable of its tasks ({minima})"


def labels(*keys: str) -> Finder:
    """All of these labels, whatever their values; the first one may be on many pods."""
    KEYS.update(keys[1:])

    def find(asked: Asking) -> str | None:
        labels = asked.labels
        return f"labels {' and '.join(f'{key}={labels[key]}' for key in keys)}" if labels.keys() >= set(keys) else None

    return find


def without_blocks(finder: Finder) -> Finder:
    """The same, for jobs without blocks."""
    return lambda asked: None if asked.has_blocks else finder(asked)
