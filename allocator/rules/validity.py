"""Which jobs are valid at all: used by the admission webhook, by gRPC's ValidateJob and by every decision.

The numbers of chips that each product allows are in its table (``ascend.products``):
docs/spec/products.md#valid-requests, and for 910A the documents' stricter rule
(docs/spec/affinity-rules.md#valid-requests): one pod of 1, 2, 4 or 8 chips, or N pods of 8.
"""

import functools
import re
from collections.abc import Iterable, Iterator

import msgspec

from allocator.rules.asked import DEFAULT_VNPUS_PER_JOB
from allocator.rules.cores import fewest_chips, requested_cores
from allocator.rules.job import JobKey, is_independent, stated_minimum
from allocator.rules.job_products import NO_TOR_AFFINITY, SUPER_POD_BLOCK, TOR_AFFINITY, product_marks, wanted_products
from allocator.rules.request import counted_chips, requested_chips, requested_what
from allocator.rules.unsupported import refused_demand
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.grammar import a, count
from ascend.kube.containers import whole_number
from ascend.kube.kept import NETWORK_TOPOLOGY, TOPOLOGY_MODE
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS, Product
from ascend.reasons import Reason
from ascend.slices import ContainerRequest, effective_request
from ascend.templates import RESOURCE_CORES

_VNPU = re.compile(re.escape(RESOURCE) + r"-[0-9]+c.*|" + re.escape(RESOURCE_CORES))
"""Resources that are vNPUs, parts of a chip: created beforehand, or on demand (docs/spec/vnpu.md)."""


class JobShape(msgspec.Struct, frozen=True):
    """The part of a job's request that decides its validity.

    Attributes:
        key: the subject of messages, as in ``job default/train``.
        sizes: the numbers of chips that its pods request; pods that request none don't count.
        pods: the number of pods that request chips and work together; if it is unknown, 2 stands for several.
        products: names of the products that the job may use; None for any.
        vnpus: the number of vNPUs that its pods request.
        most_vnpus: how many of them one pod requests, at most.
    """

    key: str
    sizes: frozenset[int]
    pods: int = 1
    products: frozenset[str] | None = None
    vnpus: int = 0
    most_vnpus: int = 0


def job_shape(key: str, pods: Iterable[Pod]) -> JobShape:
    """The shape of a job of these pods.

    Raises:
        Refusal: the request of a pod is invalid, or the pods contradict each other.
    """
    requesting, vnpus, most = list[Pod](), 0, 0
    sizes: set[int] = set()
    for pod in pods:
        own = requested_vnpus(pod)
        vnpus, most = vnpus + own, max(most, own)
        if not pod.requests_chips:
            continue
        requesting.append(pod)
        cores = requested_cores(pod)
        if cores is None and (not own or counted_chips(pod)):
            sizes.add(requested_chips(pod))
        else:
            refuse_servers(pod)
    for pod in requesting:
        chips = max(sizes) if len(requesting) == 1 and sizes else None
        if (unsupported := refused_demand(pod, chips)) is not None:
            raise unsupported
    products = None
    for wanted in filter(None, map(wanted_products, requesting)):
        products = wanted if products is None else products & wanted
    if products is not None and not products:
        raise Refusal(Reason.POLICY_MISMATCH, f"{key}: its pods are for different products")
    number = len(requesting)
    if all(is_independent(pod.metadata.annotations) for pod in requesting):
        number = 1
        if all((stated_minimum(pod) or 1) == 1 for pod in requesting):
            vnpus = most  # each pod is a job of its own
    return JobShape(key, frozenset(sizes), number, products, vnpus, most)


def refuse_servers(pod: Pod) -> None:
    """Accept a pod with a vNPU or AI cores unless it asks for whole servers: for blocks, or below few switches.

    Raises:
        Refusal: it does.
    """
    block = pod.metadata.annotations.get(SUPER_POD_BLOCK)
    if block is not None:
        sentence = (
            f"annotation {SUPER_POD_BLOCK}={block}: blocks consist of pods that request {RESOURCE}, "
            f"this one requests {requested_what(pod)}"
        )
        raise Refusal(Reason.UNSUPPORTED_POLICY, f"pod {pod.key}: {sentence}; remove the annotation")
    value = pod.metadata.labels.get(TOR_AFFINITY, NO_TOR_AFFINITY)
    if value != NO_TOR_AFFINITY:
        sentence = (
            f"label {TOR_AFFINITY}={value[:40]}: switch affinity is for pods that request {RESOURCE}, this one "
            f"requests {requested_what(pod)}"
        )
        raise Refusal(Reason.UNSUPPORTED_POLICY, f"pod {pod.key}: {sentence}; remove the label")
    topology = pod.metadata.annotations.get(NETWORK_TOPOLOGY) or pod.metadata.annotations.get(TOPOLOGY_MODE, "")
    if topology.startswith("hard"):
        sentence = f"network topology hard is for pods that request {RESOURCE}, this one requests {requested_what(pod)}"
        raise Refusal(Reason.UNSUPPORTED_POLICY, f"pod {pod.key}: {sentence}; set its mode to soft")


def requested_vnpus(pod: Pod) -> int:
    """The number of vNPUs that a pod requests at once; AI cores count as 1, or 0 if they are whole chips.

    Each resource is counted as whole chips are: what a regular init container had goes on to the containers after it.
    """
    if not pod.names_parts:  # most pods
        return 0
    requests: dict[str, list[ContainerRequest]] = {}
    for container, kind in pod.ordered_containers:
        resources = {**container.resources.requests, **container.resources.limits}
        for name, quantity in resources.items():
            if _is_vnpu(name):
                requests.setdefault(name, []).append(ContainerRequest(container.name, kind, _vnpus(name, quantity)))
    return sum(map(effective_request, requests.values()))


@functools.lru_cache(maxsize=1024)  # called by every decision, with the same few names
def _is_vnpu(resource: str) -> bool:
    return _VNPU.fullmatch(resource) is not None


def _vnpus(resource: str, quantity: str) -> int:
    number = whole_number(quantity)
    if number is None:
        return 1  # the API server refuses an invalid quantity
    return int(number > 0 and not fewest_chips(number)) if resource == RESOURCE_CORES else number


def invalidity(
    shape: JobShape, pods: Iterable[Pod] = (), *, vnpus_per_job: int = DEFAULT_VNPUS_PER_JOB
) -> Refusal | None:
    """Why a job fits on no node, whatever is free; None if it is valid.

    A job that may use several products is valid if one of them allows it.

    Args:
        shape: the shape of the job.
        pods: those of its pods whose marks the sentence names, if they name the products.
        vnpus_per_job: how many vNPUs its pods may have; 0 for any number.
    """
    if shape.vnpus and shape.sizes:
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} requests both whole chips and vNPUs")
    if shape.most_vnpus > 1:
        rule = "a pod may have one, in one container"
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} requests {shape.most_vnpus} vNPUs; {rule}")
    if vnpus_per_job and shape.vnpus > vnpus_per_job:
        most = "one" if vnpus_per_job == 1 else str(vnpus_per_job)
        rule = f"a job may have {most} at a time (allocator setting vnpus_per_job)"
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} requests {shape.vnpus} vNPUs; {rule}")
    if shape.vnpus or is_allowed(shape.sizes, shape.products, several=shape.pods > 1):
        return None
    return not_allowed(shape, pods)


def not_allowed(shape: JobShape, pods: Iterable[Pod] = ()) -> Refusal:
    """The refusal of a job whose pods request numbers of chips that none of its products allows."""
    products = list(_among(shape.products))
    # The number of pods is not always known, and it makes no difference.
    what = f"{'several pods of ' if shape.pods > 1 else ''}{_chips(shape.sizes)}"
    marks = dict.fromkeys(mark for pod in pods for mark in product_marks(pod))
    named = f" (its servers are named by {' and '.join(marks)})" if marks else ""
    if len(products) == 1:
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} requests {what}; {_rule(products[0])}{named}")
    names = ", ".join(product.name for product in products)
    return Refusal(Reason.INVALID_REQUEST, f"{shape.key} requests {what}, which no product allows ({names}){named}")


def excess_vnpus(pod: Pod, job: JobKey, in_job: int, vnpus_per_job: int = DEFAULT_VNPUS_PER_JOB) -> Refusal | None:
    """Why a pod may not have the vNPUs it requests; None if it may, or requests none.

    Args:
        pod: the pod.
        job: its job.
        in_job: the number of vNPUs that the pods of the job have or request, this pod included.
        vnpus_per_job: how many they may have; 0 for any number.
    """
    own = requested_vnpus(pod)
    if not own:
        return None
    chips = counted_chips(pod)
    key = f"pod {pod.key}" if own > 1 or chips else f"job {job}"
    shape = JobShape(key, frozenset({chips} if chips else ()), vnpus=max(own, in_job), most_vnpus=own)
    return invalidity(shape, vnpus_per_job=vnpus_per_job)


def rule_against_several(chips: int, products: Iterable[str]) -> str | None:
    """The rule of the first of some products with which one pod may have so many chips, but not several; or None."""
    for product in _among(frozenset(products)):
        if chips in product.allowed(distributed=False) and chips not in product.allowed(distributed=True):
            return _rule(product)
    return None


@functools.lru_cache(maxsize=1024)  # called by every decision, and there are few shapes of jobs
def is_allowed(sizes: frozenset[int], products: frozenset[str] | None, *, several: bool) -> bool:
    """Whether a product of these names, or any, allows pods with these numbers of chips."""
    return any(sizes.issubset(product.allowed(distributed=several)) for product in _among(products))


def _among(products: frozenset[str] | None) -> Iterator[Product]:
    return (product for product in PRODUCTS.values() if products is None or product.name in products)


def _rule(product: Product) -> str:
    alone, several = product.allowed(distributed=False), product.allowed(distributed=True)
    if alone == several:
        return f"a pod on {a(f'{product.name} server')} may request {_chips(alone)}"
    return f"on {product.name} servers a job is one pod of {_chips(alone)}, or several pods of {_chips(several)}"


def _chips(numbers: Iterable[int]) -> str:
    """Numbers of chips as in ``1, 2 or 4 chips``."""
    *others, last = sorted(numbers)
    return f"{', '.join(map(str, others))} or {count(last, 'chip')}" if others else count(last, "chip")
