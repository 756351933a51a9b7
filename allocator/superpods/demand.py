"""What a job asks of the SuperPods: blocks of nodes, and how their SuperPods are chosen.

Which jobs have blocks: docs/spec/superpod.md#which-jobs-have-blocks; how large these are:
docs/spec/superpod.md#block-size. A number of chips that no block may have is refused, because a job whose blocks differ
from what its author believes would start and communicate over the slower network.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

import msgspec

from allocator.rules.asked import Asked, SuperPodLimits
from allocator.rules.job_products import (
    SERVICE,
    SUPER_POD_AFFINITY,
    SUPER_POD_BLOCK,
    SUPER_POD_FIT,
    block_marks,
    is_mind_ie,
    product_marks,
    wants_super_pod,
)
from ascend.errors import Refusal
from ascend.grammar import a, count
from ascend.kube.containers import whole_number
from ascend.kube.objects import Pod
from ascend.products import ASCEND_A3_8, ASCEND_A3_16, ATLAS_850_8, Product
from ascend.reasons import Reason

PRODUCTS: Final = (ASCEND_A3_16, ASCEND_A3_8, ATLAS_850_8)
"""The products whose servers form SuperPods."""


class Kind(StrEnum):
    """By which rule the SuperPods of a job are chosen."""

    TRAINING = "training"
    MIND_IE = "MindIE"
    SERVICE = "inference service"


class Demand(msgspec.Struct, frozen=True):
    """What a job of several pods asks of the SuperPods.

    Attributes:
        size: how many nodes a block has; each pod of the job has one.
        blocks: how many blocks the job has.
        limits: the size of a SuperPod, and its reserve.
        kind: by which rule SuperPods are chosen.
        may_split: whether the nodes of a block may be in several SuperPods.
        idlest: whether a MindIE job prefers the SuperPods with the most free nodes.
        near: the labels of the pods that the job prefers to be near to; empty for none.
    """

    size: int
    blocks: int
    limits: SuperPodLimits
    kind: Kind = Kind.TRAINING
    may_split: bool = False
    idlest: bool = False
    near: tuple[tuple[str, str], ...] = ()


def read_demand(asked: Asked) -> Demand | None:
    """Read a job's demand; None without blocks, or for a single pod, whose block is its own node.

    Raises:
        Refusal: ``UnsupportedPolicy`` if the job is for servers that form no SuperPods, ``InvalidRequest`` if its pods
            don't take whole servers, or its blocks are invalid.
    """
    pod, chips, pods = asked.pod, asked.chips, asked.pods
    if pods == 1 or not wants_super_pod(pod):
        return None
    job = f"job {asked.job}"
    products, limits = asked.products, asked.defaults.super_pods
    product = _product_for(job, pod, chips, [model for model in PRODUCTS if products is None or model.name in products])
    block = _read_block(job, pod, chips * pods)
    if block % product.chips:
        what = f"is no multiple of the {product.chips} chips of {a(f'{product.name} server')}"
        raise _invalid(job, f"{SUPER_POD_BLOCK}={block} {what}")
    if (chips * pods) % block:
        total = f"the {chips * pods} chips of its {pods} pods are no multiple of it"
        raise _invalid(job, f"{SUPER_POD_BLOCK}={block}, but {total}: the last block would be incomplete")
    size = block // product.chips
    if size > limits.size:
        nodes = f"is {count(size, 'node')}, but a SuperPod has {limits.size} (setting super_pod_size)"
        raise _invalid(job, f"{SUPER_POD_BLOCK}={block} {nodes}")
    demand = Demand(size, pods * chips // block, limits)
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if (service := labels.get(SERVICE)) is not None:
        return msgspec.structs.replace(demand, kind=Kind.SERVICE, near=((SERVICE, service),))
    if is_mind_ie(labels):
        near = _preferred_labels(pod)
        return msgspec.structs.replace(
            demand, kind=Kind.MIND_IE, idlest=annotations.get(SUPER_POD_FIT) == "idlest", near=near
        )
    return msgspec.structs.replace(demand, may_split=labels.get(SUPER_POD_AFFINITY) == "soft")


def _product_for(job: str, pod: Pod, chips: int, products: Iterable[Product]) -> Product:
    allowed = list(products)
    if not allowed:
        marks, others = block_marks(pod), [mark for mark in product_marks(pod) if mark not in block_marks(pod)]
        other = f", but is for other servers ({', '.join(others)})" if others else ""
        raise Refusal(
            Reason.UNSUPPORTED_POLICY,
            f"{job} requests nodes of one SuperPod ({', '.join(marks)}), which only A3 and Atlas 850 servers form"
            f"{other}; name one of these, or remove it",
        )
    for product in allowed:
        if product.chips == chips:
            return product
    whole = " or ".join(f"{product.chips} chips ({product.name})" for product in allowed)
    raise _invalid(job, f"each of its pods must request a whole server, {whole}, not {count(chips, 'chip')}")


def _read_block(job: str, pod: Pod, total: int) -> int:
    text = pod.metadata.annotations.get(SUPER_POD_BLOCK)
    if text is None:
        return total
    number = whole_number(text)
    if not number:
        raise _invalid(job, f"{SUPER_POD_BLOCK}={text[:20]!r} is not a number of chips above 0")
    return number


def _invalid(job: str, rest: str) -> Refusal:
    return Refusal(Reason.INVALID_REQUEST, f"{job} requests blocks of nodes of one SuperPod: {rest}")


class _Selector(msgspec.Struct, rename="camel", frozen=True):
    match_labels: dict[str, str] = {}


class _Term(msgspec.Struct, rename="camel", frozen=True):
    label_selector: _Selector | None = None


class _Preference(msgspec.Struct, rename="camel", frozen=True):
    pod_affinity_term: _Term = _Term()


class _PodAffinity(msgspec.Struct, rename="camel", frozen=True):
    preferred_during_scheduling_ignored_during_execution: tuple[_Preference, ...] = ()


class _Affinity(msgspec.Struct, rename="camel", frozen=True):
    pod_affinity: _PodAffinity | None = None


def _preferred_labels(pod: Pod) -> tuple[tuple[str, str], ...]:
    """The labels of the first preferred term of a pod's pod affinity (docs/spec/inference.md#mindie-jobs)."""
    try:
        affinity = msgspec.json.decode(pod.spec.affinity, type=_Affinity) if pod.spec.affinity else _Affinity()
    except msgspec.MsgspecError:
        return ()  # the API server validates it; an older client may leave out a field
    terms = affinity.pod_affinity.preferred_during_scheduling_ignored_during_execution if affinity.pod_affinity else ()
    selector = terms[0].pod_affinity_term.label_selector if terms else None
    return tuple(sorted(selector.match_labels.items())) if selector is not None else ()
