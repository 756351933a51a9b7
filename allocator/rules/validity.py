"""Which jobs make sense at all: asked by the admission webhook, by gRPC's ValidateJob and by every decision.

What a product takes is in its table (``ascend.products``): spec/scheduling.md §3.4, and for 910A the documents'
stricter rule (seed 001, "Resource Application Constraints"): one pod of 1, 2, 4 or 8 chips, or N pods of 8.
"""

import functools
import re
from collections.abc import Iterable, Iterator

import msgspec

from allocator.rules.job import JobKey
from allocator.rules.job_products import wanted_products, wants_super_pod
from allocator.rules.request import requested_chips
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.objects import Pod, whole_number
from ascend.products import PRODUCTS, Product
from ascend.reasons import Reason
from ascend.slices import ContainerRequest, effective_request

_CORES = "huawei.com/npu-core"
_VIRTUAL = re.compile(re.escape(RESOURCE) + r"-[0-9]+c.*|" + re.escape(_CORES))
"""Resources that are a part of a chip: cut out beforehand, or on demand (spec/scheduling.md §5)."""


class JobShape(msgspec.Struct, frozen=True):
    """What a job asks for, as far as its validity depends on it.

    Attributes:
        key: what it is called in sentences, as ``job default/train``.
        sizes: the numbers of chips its pods ask for; those that ask for none don't count.
        pods: how many pods ask for chips; where that is not known, 2 stands for several.
        products: names of the products it is for; None: any.
        virtual: how many vNPUs its pods ask for.
        super_pod: it asks for blocks of nodes of one SuperPod.
    """

    key: str
    sizes: frozenset[int]
    pods: int = 1
    products: frozenset[str] | None = None
    virtual: int = 0
    super_pod: bool = False


def job_shape(key: str, pods: Iterable[Pod]) -> JobShape:
    """The shape of a job of these pods.

    Raises:
        Refusal: what one of the pods asks for makes no sense, or they contradict each other.
    """
    asking, virtual = [], 0
    for pod in pods:
        virtual += virtual_chips(pod)
        if pod.requests_chips:
            asking.append(pod)
    products = None
    for wanted in filter(None, map(wanted_products, asking)):
        products = wanted if products is None else products & wanted
    if products is not None and not products:
        raise Refusal(Reason.POLICY_MISMATCH, f"{key}: its pods are for different products")
    sizes = frozenset(map(requested_chips, asking))
    return JobShape(key, sizes, len(asking), products, virtual, any(map(wants_super_pod, asking)))


def virtual_chips(pod: Pod) -> int:
    """How many parts of chips (vNPUs) a pod asks for at one time; of any number of AI cores, one.

    Each resource is counted as whole chips are: what a regular init container had goes on to the containers after it.
    """
    asks: dict[str, list[ContainerRequest]] = {}
    for container, kind in pod.ordered_containers:
        asked = {**container.resources.requests, **container.resources.limits}
        for name, quantity in asked.items():
            if _is_part(name):
                asks.setdefault(name, []).append(ContainerRequest(container.name, kind, _parts(name, quantity)))
    return sum(map(effective_request, asks.values()))


@functools.lru_cache(maxsize=1024)  # every decision asks it of the same few names
def _is_part(resource: str) -> bool:
    return _VIRTUAL.fullmatch(resource) is not None


def _parts(resource: str, quantity: str) -> int:
    number = whole_number(quantity)
    # A quantity that is no number is the API server's to refuse; it stands for one.
    return 1 if number is None or (number and resource == _CORES) else number


def invalidity(shape: JobShape) -> Refusal | None:
    """Why a job can be placed nowhere, whatever is free; None where it can.

    The products are tried one by one: a job that is for several needs one that takes it.
    """
    if shape.virtual and shape.sizes:
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} asks for whole chips and for parts of chips (vNPUs)")
    if shape.virtual > 1:
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} asks for {shape.virtual} vNPUs; a job may have one")
    if shape.super_pod and shape.pods > 1:
        return Refusal(
            Reason.UNSUPPORTED_POLICY, f"{shape.key} asks for nodes of one SuperPod; there is no rule for it here yet"
        )
    if _is_taken(shape.sizes, shape.products, several=shape.pods > 1):
        return None
    products = list(_among(shape.products))
    # How many is not always known, and it makes no difference.
    what = f"{'several pods of ' if shape.pods > 1 else ''}{_join(shape.sizes)} chips"
    if len(products) == 1:
        return Refusal(Reason.INVALID_REQUEST, f"{shape.key} asks for {what}; {_rule(products[0])}")
    names = ", ".join(product.name for product in products)
    return Refusal(Reason.INVALID_REQUEST, f"{shape.key} asks for {what}, which no server takes ({names})")


def validate_job(shape: JobShape) -> None:
    """Let a job pass that makes sense.

    Raises:
        Refusal: it makes none, whatever is free.
    """
    refusal = invalidity(shape)
    if refusal is not None:
        raise Refusal(refusal.reason, refusal.message)


def excess_of_parts(pod: Pod, job: JobKey, in_job: int) -> Refusal | None:
    """Why a pod may not have the parts of chips (vNPUs) it asks for; None where it may, or asks for none.

    Args:
        pod: the pod.
        job: its job.
        in_job: how many the pods of the job have or ask for, this one included.
    """
    own = virtual_chips(pod)
    if not own:
        return None
    return invalidity(JobShape(f"pod {pod.key}" if own > 1 else f"job {job}", frozenset(), virtual=max(own, in_job)))


@functools.lru_cache(maxsize=1024)  # every decision asks it, and there are few shapes of jobs
def _is_taken(sizes: frozenset[int], products: frozenset[str] | None, *, several: bool) -> bool:
    return any(sizes.issubset(product.allowed(distributed=several)) for product in _among(products))


def _among(products: frozenset[str] | None) -> Iterator[Product]:
    return (each for each in PRODUCTS.values() if products is None or each.name in products)


def _rule(product: Product) -> str:
    alone, several = product.allowed(distributed=False), product.allowed(distributed=True)
    if alone == several:
        return f"pods on {product.name} servers have {_join(alone)}"
    return f"on {product.name} servers a job is one pod of {_join(alone)} chips, or several pods of {_join(several)}"


def _join(numbers: Iterable[int]) -> str:
    ordered = list(map(str, sorted(numbers)))
    return " or ".join([", ".join(ordered[:-1]), ordered[-1]] if len(ordered) > 1 else ordered)
