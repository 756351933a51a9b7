"""The settings of a job from all places: the PodGroup, the operator's object, and the pods.

docs/spec/scheduling.md#jobs-and-requests: those of the PodGroup count first. Two places that contradict each other are
refused, since nobody can say which of them is meant.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from msgspec.structs import replace

from allocator.rules.job import JobKey, minimum_from
from allocator.rules.job_products import SUPER_POD_AFFINITY, SUPER_POD_BLOCK
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.kind import JobFacts
from ascend.kube.kept import DECIDING
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.rules.identity import ACCELERATOR_TYPE

_NONE: Final[frozenset[tuple[str, str]]] = frozenset()
_EMPTY: Final = "''"
"""What sentences show for an empty value."""


def has_settings(pod: Pod) -> bool:
    """Whether the placement of a job depends on more than the numbers of its pods and of their chips.

    Args:
        pod: one of its pods, with the settings of the job.
    """
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    is_plain = DECIDING.isdisjoint(labels) and DECIDING.isdisjoint(annotations)
    return not is_plain or ACCELERATOR_TYPE in pod.spec.node_selector


class SettingsPlace(NamedTuple):
    """Where settings of a job are written, other than on its pods.

    Attributes:
        name: for sentences, as in ``PodGroup default/train``.
        labels: the deciding labels there.
        annotations: the deciding annotations there, and the minimum.
    """

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]


def deciding(values: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """The deciding ones of labels or annotations, with their values."""
    if DECIDING.isdisjoint(values):  # most labels
        return _NONE
    return frozenset((name, values[name]) for name in DECIDING & values.keys())


def places(facts: Iterable[tuple[JobKey | None, JobFacts | None]]) -> tuple[SettingsPlace, ...]:
    """The places with settings, the most important one first.

    Args:
        facts: what is known of the group and of the object of a job, with their kinds and names.
    """
    found = []
    for key, stated in facts:
        if stated is not None:
            labels = {name: value for name, value in stated.labels.items() if name in DECIDING}
            annotations = {
                name: value for name, value in stated.annotations.items() if name in DECIDING or name == MIN_AVAILABLE
            }
            if labels or annotations:
                found.append(SettingsPlace(f"{key.kind} {key}" if key is not None else "", labels, annotations))
    return tuple(found)


def with_settings(pod: Pod, written: tuple[SettingsPlace, ...]) -> Pod:
    """The pod as if all settings of its job were written on it.

    Args:
        pod: the pod.
        written: the other places with settings of its job.

    Raises:
        Refusal: ``PolicyMismatch`` if two places contradict each other, ``InvalidMinAvailable`` if they do so about the
            minimum, or one of them has no positive number.
    """
    if not written:  # most jobs
        return pod
    metadata = pod.metadata
    on_pod = SettingsPlace(f"pod {pod.key}", metadata.labels, metadata.annotations)
    for place in written:
        if (minimum := place.annotations.get(MIN_AVAILABLE)) is not None:
            minimum_from(minimum, f"{place.name}: {MIN_AVAILABLE}")
    everywhere = (*written, on_pod)
    labels = _merged(pod, "label", [(place.name, place.labels) for place in everywhere])
    annotations = _merged(pod, "annotation", [(place.name, place.annotations) for place in everywhere])
    return replace(
        pod,
        metadata=replace(metadata, labels=metadata.labels | labels, annotations=metadata.annotations | annotations),
    )


def require_one_block(job: str, pod: Pod, peers: Iterable[Pod], written: tuple[SettingsPlace, ...]) -> None:
    """Refuse pods of one job that ask for different blocks: whichever is scheduled first would decide for all.

    Args:
        job: the job, for the sentence, as in ``job default/train``.
        pod: one of its pods.
        peers: others that are placed with it.
        written: the other places with settings of the job.

    Raises:
        Refusal: ``InvalidRequest``; the sentence names no pod.
    """
    block, affinity = pod.metadata.annotations.get(SUPER_POD_BLOCK), pod.metadata.labels.get(SUPER_POD_AFFINITY)
    for peer in peers:
        labels, annotations = peer.metadata.labels, peer.metadata.annotations
        if annotations.get(SUPER_POD_BLOCK) == block and labels.get(SUPER_POD_AFFINITY) == affinity:
            continue  # all of thousands of pods
        own, other = _block_of(pod, written), _block_of(peer, written)
        if own != other:
            said = next(pair for pair in zip(own, other, strict=True) if pair[0] != pair[1])
            both = " and ".join(sorted(said, key=lambda part: (part.startswith("no "), part)))
            raise Refusal(Reason.INVALID_REQUEST, f"{job}: its pods have {both}; make them agree")


def _block_of(pod: Pod, written: tuple[SettingsPlace, ...]) -> tuple[str, str]:
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    blocks = [annotations, *(place.annotations for place in written)]
    affinities = [labels, *(place.labels for place in written)]
    return _stated(SUPER_POD_BLOCK, blocks), _stated(SUPER_POD_AFFINITY, affinities)


def _stated(key: str, maps: Iterable[Mapping[str, str]]) -> str:
    return next((f"{key}={values[key]}" for values in maps if key in values), f"no {key}")


def _merged(pod: Pod, what: str, maps: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    values: dict[str, tuple[str, str]] = {}
    for where, given in maps:
        for key in DECIDING | {MIN_AVAILABLE}:
            if (value := given.get(key)) is not None:
                first = values.setdefault(key, (value, where))
                if first[0] != value:
                    raise _contradiction(pod, f"{what} {key}", first, (value, where))
    return {key: value for key, (value, _) in values.items() if key != MIN_AVAILABLE}


def _contradiction(pod: Pod, key: str, one: tuple[str, str], two: tuple[str, str]) -> Refusal:
    reason = Reason.INVALID_MIN_AVAILABLE if key.endswith(MIN_AVAILABLE) else Reason.POLICY_MISMATCH
    said = [f"{value or _EMPTY} on {where}" for value, where in (one, two)]
    sentence = f"{key} is {said[0]}, but {said[1]}; make them agree, or remove one"
    return Refusal(reason, f"pod {pod.key}: {sentence}")
