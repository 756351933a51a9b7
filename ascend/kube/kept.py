"""The kept parts of tenants' objects: keys that are read, a limited number of labels, values of limited length.

An object may have 1.5 MB, and a namespace thousands of objects, but all of them share the memory of one process. What
is longer than its limit ends in ``…``, so it is no valid value of anything, and whoever reads it says whose it is.
"""

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import Final

from ascend.annotations import (
    BACKUP_SOURCE,
    BLOCK,
    BLOCK_SUPER_POD,
    DISTRIBUTED,
    FENCE,
    INDEPENDENT,
    KUBELET_IDS,
    MIN_AVAILABLE,
    MIXED_MODELS,
    NOMINATED,
    OURS,
    PREDICATE_TIME,
    RANK,
    REAL,
    REQUEUED,
    SHARED_SWITCH,
    SHARED_SWITCH_IP,
    SWITCH_HEALTH,
)
from ascend.chips import RESOURCE
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import RESOURCES as VNPUS

LONGEST: Final = 1024
"""Characters of a value, and of a sentence in a status."""
LONGEST_LIST: Final = 4096
"""Characters of a list of chips: 100 entries and more, which is invalid."""
LONGEST_NAME: Final = 253
"""Characters of a name: no object has a longer one."""
LONGEST_JSON: Final = 16 * 1024
"""Characters of affinity and tolerations."""
MOST_LABELS: Final = 64
"""Labels of a pod; beyond it only those that are read by their keys count."""
MOST_WRONG: Final = 4
"""Misspelt annotations of a pod or an object of its job, and misspelt labels of the latter: their author is told."""
MOST_ENTRIES: Final = 64
"""Entries of node selectors, volumes, conditions, statuses, environments and resources of the maker."""
MOST_CONTAINERS: Final = 64
"""Containers of a pod; beyond it only as many that request chips, vNPUs or AI cores, or name devices of their own."""

_SHOWN: Final = 100
_VENDOR: Final = "huawei.com/"

TOPOLOGY_MODE: Final = "volcano.sh/network-topology-mode"
"""The annotation of pods and workloads, for KubeRay a label, from which PodGroups of Volcano get this field."""
TOPOLOGY_TIERS: Final = ("volcano.sh/network-topology-highest-tier", "volcano.sh/network-topology-highest-tier-allowed")
"""Likewise, for the highest tier; the second one is KubeRay's."""
SOFT_SHARES: Final = tuple(f"huawei.com/scheduler.softShareDev.{key}" for key in ("policy", "aicoreQuota", "hbmQuota"))
"""The labels of a job that request a share of a chip."""
NETWORK_TOPOLOGY: Final = "spec.networkTopology"
"""Stands for this field of a pod group or a Volcano Job among its annotations: ``hard highestTierAllowed=2``."""
PART_TOPOLOGY: Final = "spec.subGroupPolicy.networkTopology"
"""Stands for the same field of a part of a pod group or a Volcano Job, with the mode as value."""
TASK_MINIMA: Final = "spec.minTaskMember"
"""Stands for the minima of the tasks of a pod group or a Volcano Job, if they add something to that of the whole."""
GROUP_TOPOLOGY: Final = "spec.schedulingConstraints.topology"
"""Stands for this field of a pod group of Kubernetes, with the key of the node label as value."""
PARENT_GROUP: Final = "spec.parentCompositePodGroupName"
"""Stands for this field of a pod group of Kubernetes."""
GROUP_CLAIMS: Final = "spec.resourceClaims"
"""Stands for this field of a pod group of Kubernetes, with the names of the claims."""
FIELDS: Final = frozenset({NETWORK_TOPOLOGY, PART_TOPOLOGY, TASK_MINIMA, GROUP_TOPOLOGY, PARENT_GROUP, GROUP_CLAIMS})
"""What stands for fields of the objects of jobs."""

DECIDING: Final = frozenset({
    "huawei.com/schedule_policy", "subHealthyStrategy", "sp-block", "super-pod-affinity", "sp-fit", "tor-affinity",
    NETWORK_TOPOLOGY, PART_TOPOLOGY, GROUP_TOPOLOGY, TOPOLOGY_MODE, *TOPOLOGY_TIERS, INDEPENDENT, MIXED_MODELS,
    *SOFT_SHARES,
})  # fmt: skip
"""The labels and annotations on which the placement of a job depends, besides its minimum."""
SETTINGS: Final = (DECIDING - FIELDS) | frozenset({
    "ra-block", "ray.io/gang-scheduling-enabled", "fault-scheduling", "fault-retry-times", "pod-rescheduling",
    "process-recover-enable", "elastic-scheduling", "ProcessRecoverStrategy", "ome.io/inferenceservice",
    "inferserviceid", "app", "jobID", "podgroup-sched-enable", MIN_AVAILABLE,
    "huawei.com/recover_policy_path", "huawei.com/infer_service_schedule", "huawei.com/affinity-config",
})  # fmt: skip
"""Labels and annotations that decide how a job is placed, or would where that is supported."""

_MARKS: Final = frozenset({
    "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io/min-available",
    *(f"leaderworkerset.sigs.k8s.io/{key}" for key in ("name", "group-index", "size", "worker-index")),
    *(f"training.kubeflow.org/{key}"
      for key in ("operator-name", "job-name", "replica-type", "job-role", "replica-index")),
    *(f"jobset.sigs.k8s.io/{key}" for key in (
        "jobset-name", "job-index", "global-replicas", "replicatedjob-name", "replicatedjob-replicas")),
    *(f"kueue.x-k8s.io/pod-group-{key}" for key in ("name", "serving", "total-count", "pod-index", "pod-index-label")),
    *(f"ray.io/{key}" for key in ("cluster", "group", "node-type")),
    *(f"modelserving.volcano.sh/{key}" for key in ("name", "group-name", "role", "entry")),
    "storm-service-name", "roleset-name", "role-name", "stormservice.orchestration.aibrix.ai/role-replica-index",
    "spark-app-selector", "spark-role",
    "batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index", "statefulset.kubernetes.io/pod-name",
    "volcano.sh/task-spec", "volcano.sh/task-index", "volcano.sh/job-name", "deploy-name", "pod-template-hash",
})  # fmt: skip
"""Labels and annotations by which controllers say to which job a pod belongs, and its position in it."""

_WRITTEN: Final = frozenset({
    RESOURCE, RESOURCE_CORES, PREDICATE_TIME, REAL, KUBELET_IDS, FENCE, NOMINATED, DISTRIBUTED, RANK, BLOCK,
    BLOCK_SUPER_POD, SHARED_SWITCH, SWITCH_HEALTH, SHARED_SWITCH_IP, BACKUP_SOURCE,
    "backupNewPodName", "needVolcanoOpe", "fault-type", "kubernetes.io/config.source", "kubernetes.io/config.mirror",
    "vnpu-dvpp", "vnpu-level",
})  # fmt: skip
"""Labels and annotations that the two programs, MindCluster or the kubelet write on pods."""

_OUR_PREFIX: Final = "ascend-affinity.io/"
_GENERIC: Final = frozenset({"app", "jobID"})
"""Settings with names that many others resemble."""
_LONG: Final = 8
"""Letters from which on two names that differ in one are hardly both meant."""
_SEPARATORS: Final = str.maketrans(dict.fromkeys("-_./ "))

POD_KEYS: Final = SETTINGS | _MARKS | _WRITTEN | FIELDS | {*VNPUS}
"""The labels and annotations of pods that are read. A new reader needs a new key here: tests use the same pods."""

DESCRIBED: Final[set[str]] = set()
"""The labels of the kinds of jobs that settings describe; ``ascend.jobs.table`` sets them with the kinds."""


def _variants(key: str) -> set[str]:
    """Names by which keys with one wrong, missing or additional letter are found: without each of the letters."""
    plain = key.casefold().translate(_SEPARATORS)
    shorter = (plain[:at] + plain[at + 1 :] for at in range(len(plain) if len(plain) >= _LONG else 0))
    return {plain, *shorter}


_NEAR: Final = {variant: key for key in sorted(SETTINGS - _GENERIC) for variant in _variants(key)}


@lru_cache(maxsize=256)
def meant(key: str) -> str | None:
    """The setting that the author of a misspelt label or annotation means.

    Empty if that is unknown: no program reads such a key with our own prefix. None if the key is right, or of others.
    """
    if key in POD_KEYS or key == REQUEUED or len(key) > LONGEST_NAME:
        return None
    found = next((_NEAR[variant] for variant in sorted(_variants(key)) if variant in _NEAR), None)
    return "" if found is None and key.startswith(_OUR_PREFIX) else found


def _misspelt(values: Iterable[str]) -> list[str]:
    """The misspelt ones of labels or annotations, among the first ones that no program reads."""
    others = islice((key for key in values if key not in POD_KEYS), MOST_ENTRIES)
    return [key for key in others if meant(key) is not None][:MOST_WRONG]


def short(text: str, limit: int = LONGEST_NAME) -> str:
    """A text, or its beginning if it is longer than a limit."""
    return text if len(text) <= limit else f"{text[:_SHOWN]}…"


def short_json(text: str, *, is_list: bool) -> str:
    """JSON of a limited length. Longer JSON is replaced by a placeholder, another for each content."""
    if len(text) <= LONGEST_JSON:
        return text
    digest = hashlib.sha256(text.encode(errors="replace")).hexdigest()
    return f'[{{"key":"too-long/{digest}"}}]' if is_list else f'{{"tooLong":"{digest}"}}'


def kept_annotations(values: dict[str, str]) -> dict[str, str]:
    """The annotations of a pod that are read, or were meant to be; the same object if these are all."""
    if values.keys() <= POD_KEYS and max(map(len, values.values()), default=0) <= LONGEST:
        return values
    kept = {}
    for key, value in values.items():
        if key in POD_KEYS:
            kept[key] = value if len(value) <= LONGEST else _value(key, value)
    for key in _misspelt(values):
        kept[key] = short(values[key], _SHOWN)
    return kept


def kept_labels(values: dict[str, str]) -> dict[str, str]:
    """The labels of a pod: normally all, since selectors may name any; the same object if none is left out."""
    if len(values) <= MOST_LABELS:  # the API server limits their lengths
        return values
    read = POD_KEYS | DESCRIBED
    others = [key for key in values if key not in read][:MOST_LABELS]
    return {key: value for key, value in values.items() if key in read} | {key: values[key] for key in others}


def settings_among(values: dict[str, str]) -> dict[str, str]:
    """The labels or annotations that may decide how a job is placed, or were meant to."""
    return {key: short(values[key], LONGEST) for key in (*filter(SETTINGS.__contains__, values), *_misspelt(values))}


def kept_quantities(values: dict[str, str]) -> dict[str, str]:
    """The resources of the maker that a container requests."""
    if len(values) <= MOST_ENTRIES:
        return {key: short(value, _SHOWN) for key, value in values.items() if key.startswith(_VENDOR)} or _NOTHING
    ours = [key for key in values if key.startswith(_VENDOR)]
    first = sorted(ours, key=lambda key: (key not in {RESOURCE, RESOURCE_CORES}, not key.startswith(f"{RESOURCE}-")))
    return {key: short(values[key], _SHOWN) for key in first[:MOST_ENTRIES]} or _NOTHING


def kept_selector(values: dict[str, str]) -> dict[str, str]:
    """A node selector; one with too many labels becomes a selector that no node matches, as none may be left out."""
    return values if len(values) <= MOST_ENTRIES else {"nodeSelector": f"more than {MOST_ENTRIES} labels"}


_NOTHING: Final[dict[str, str]] = {}


def _value(key: str, value: str) -> str:
    return short(value, LONGEST_LIST if key in OURS else LONGEST)
