"""Reads what a pod requests, from the pod, its job and the cluster. No I/O, no await.

Every decision of every front end starts here, so that all of them refuse the same pod with the same sentence.
"""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Final

import msgspec
from msgspec.structs import replace

from allocator.gangs.one_model import has_to_stay
from allocator.gangs.packing import PACKING
from allocator.gangs.policies import policy_of
from allocator.gangs.policy import Policy
from allocator.gangs.progress import group_missing
from allocator.rules.asked import Asked, JobDefaults
from allocator.rules.cores import fewest_chips, requested_cores
from allocator.rules.job import require_group_name, stated_minimum, stated_whole
from allocator.rules.job_products import SUPER_POD_BLOCK, TOR_AFFINITY, avoids_sub_healthy, one_product, wanted_products
from allocator.rules.job_settings import has_settings, with_settings
from allocator.rules.request import ChipRequest, requested_chips, requested_size
from allocator.rules.unsupported import refused_demand
from allocator.rules.validity import (
    JobShape,
    excess_vnpus,
    is_allowed,
    not_allowed,
    refuse_servers,
    requested_vnpus,
    rule_against_several,
)
from allocator.state.cluster import Cluster
from allocator.state.job import Cooperation, Job
from allocator.state.ledger import Ledger
from allocator.state.location import Level
from allocator.state.view import Without
from ascend.annotations import INDEPENDENT, MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.core import SINGLE
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS
from ascend.reasons import Reason

_OF_NO_JOB: Final = (
    f"it has no owner and names no pod group, so no other pod can be placed together with it, as {MIN_AVAILABLE} "
    "requires; name a pod group on all of them, or remove the annotation"
)


class ResolvedRequest(msgspec.Struct, frozen=True):
    """What a pod requests, and the job it belongs to.

    Attributes:
        chips: the properties of the request that rules depend on.
        job: the pod's job.
        gang: the job, if its pods are placed together or not at all; else None.
        policy: where the pods of the job are placed.
    """

    chips: ChipRequest
    job: Job
    gang: Job | None
    policy: Policy


class RequestReader:
    """Reads what pods request.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        defaults: what an administrator has set for all jobs.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, defaults: JobDefaults) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._defaults = defaults

    def handles(self, pod: Pod) -> bool:
        """Whether the allocator judges a pod: it requests chips or a vNPU, or more vNPUs than are allowed."""
        return pod.requests_chips or self._excess_vnpus(pod) is not None

    def read(self, pod: Pod, candidates: Collection[str] | None = None) -> ResolvedRequest:
        """What a pod requests.

        Args:
            pod: the pod.
            candidates: names of the nodes it may be placed on; None for every node.

        Raises:
            Refusal: the request is invalid on every node, or the pod was deleted.
        """
        if self._cluster.is_gone(pod.uid):
            raise Refusal(Reason.POD_GONE, f"pod {pod.key} was deleted")
        part: ChipRequest | None = None
        if pod.names_parts:
            part, vnpus = requested_cores(pod), requested_vnpus(pod)
            if vnpus and part is None and (size := requested_size(pod)):
                part = ChipRequest(0, vnpu=size)
            if vnpus and (excess := self._excess_vnpus(pod)) is not None:
                raise excess
        if pod.metadata.annotations or pod.metadata.labels:
            require_group_name(pod)
            stated_minimum(pod)
            stated_whole(pod)
        job = self._cluster.jobs.job_of(pod)
        if job.is_gang and (never := _OF_NO_JOB if job.kind == SINGLE else job.never_starts(pod)) is not None:
            raise Refusal(Reason.INVALID_MIN_AVAILABLE, f"pod {pod.key}: {never}")
        stated = with_settings(pod, job.settings)
        if part is not None:
            return self._read_part(pod, stated, job, part, candidates)
        return self._read_chips(pod, stated, job, candidates)

    def against_scaling(self, pod: Pod) -> tuple[str, ...]:
        """Why the job of a pod can't be scaled up, a sentence; none if it can, or if it has several pods already.

        Authors are told at the first pod, not by the refusal of the second.
        """
        job = self._cluster.jobs.job_of(pod)
        try:
            request = self.read(pod).chips if job.is_only_so_far(pod) else None
        except Refusal:
            return ()
        if request is None or not request.is_for_chips:
            return ()
        there = self._cluster.labels.products(pod.spec)
        rule = rule_against_several(request.chips, there if request.products is None else there & request.products)
        if rule is None:
            return ()
        sentence = (
            f"if {job.kind} {job.key} is scaled up, its further pods may be refused: {rule}; if they don't communicate "
            f'collectively, give all of them the annotation {INDEPENDENT}: "true"'
        )
        return (sentence,)

    def _read_chips(self, pod: Pod, stated: Pod, job: Job, candidates: Collection[str] | None) -> ResolvedRequest:
        """What a pod requests that requests whole chips.

        Raises:
            Refusal: the request is invalid on every node.
        """
        together = job.cooperation_with(pod)
        is_job = together.known == 1 and (job.key.kind == SINGLE or not job.works_alone(pod))
        chips, is_plain = requested_chips(pod), not has_settings(stated)
        # The pods of a gang may be independent: they start together, and that is all.
        is_collective = not job.is_independent(pod)
        if (unsupported := refused_demand(stated, chips if is_job else None)) is not None:
            raise unsupported
        request = ChipRequest(
            chips,
            distributed=is_collective and together.known is not None and together.known > 1,
            needs_network=together.known != 1,
            products=None if is_plain else wanted_products(stated),
            avoids_sub_healthy=not is_plain and avoids_sub_healthy(stated),
        )
        sizes, several = frozenset({chips}), is_collective and together.least > 1
        if not is_allowed(sizes, request.products, several=several):
            subject = f"job {job.key}" if several else f"pod {pod.key}"
            raise not_allowed(JobShape(subject, sizes, 1 + several, request.products), (stated,))
        if together.known != 1:
            request = self._of_several(pod, job, request, candidates)
        policy: Policy = PACKING
        if not is_plain:
            policy, request = self._by_policy(stated, job, request, together)
        if together.known is None and job.may_be_alone(pod):
            index = self._cluster.view(Without((pod.uid,), (pod.uid,)))
            if index.best(request, candidates) is None:
                # A pod without peers needs no network: chips with an unhealthy network are better than none.
                request = replace(request, needs_network=False)
        return ResolvedRequest(request, job, self._cluster.jobs.gang(job), policy)

    def _read_part(
        self, pod: Pod, stated: Pod, job: Job, request: ChipRequest, candidates: Collection[str] | None
    ) -> ResolvedRequest:
        """The request of a pod for a vNPU or AI cores: of the rules of jobs only products and nodes count.

        vNPUs have no network and no ring, so the pods of a job may be anywhere; AI cores that are whole chips are
        linked, so the rules of several pods count.

        Raises:
            Refusal: it asks for what no vNPU can have.
        """
        refuse_servers(stated)
        if (unsupported := refused_demand(stated, None)) is not None:
            raise unsupported
        request = replace(request, products=wanted_products(stated), avoids_sub_healthy=avoids_sub_healthy(stated))
        if request.cores and fewest_chips(request.cores):
            together = job.cooperation_with(pod)
            several = together.known is not None and together.known > 1
            if several or (together.known is None and not job.may_be_alone(pod)):
                request = replace(request, distributed=several and not job.is_independent(pod), needs_network=True)
                request = self._of_several(pod, job, request, candidates)
        return ResolvedRequest(request, job, self._cluster.jobs.gang(job), PACKING)

    def _of_several(self, pod: Pod, job: Job, request: ChipRequest, candidates: Collection[str] | None) -> ChipRequest:
        """The request of a pod of a job of several pods: for one product, and for servers of their own if it says so.

        Raises:
            Refusal: several products are possible.
        """
        products = self._one_product(pod, job, request.products, candidates)
        is_spread = not job.is_independent(pod) and self._is_spread(products)
        model = "" if job.is_gang and has_to_stay(pod, job, products, self._cluster.labels) else None
        if (products, is_spread, model) != (request.products, request.is_spread, request.model):
            return replace(request, products=products, is_spread=is_spread, model=model)
        return request

    def policy(self, pod: Pod) -> Policy:
        """Where the pods of a pod's job are placed.

        Raises:
            Refusal: the request is invalid on every node, or the pod was deleted.
        """
        return self.read(pod).policy

    def _by_policy(
        self, stated: Pod, job: Job, request: ChipRequest, together: Cooperation
    ) -> tuple[Policy, ChipRequest]:
        """The policy that places a job's pods, and the pod's request under it; the pod has all settings of the job.

        Raises:
            Refusal: what the job asks of its policy is invalid.
        """
        block = stated.metadata.annotations.get(SUPER_POD_BLOCK)
        if block is not None and block != str(request.chips) and not job.is_gang and together.known in {None, 1}:
            # A single pod has been refused by now: these are several that work alone, or nobody knows how many.
            raise _not_together(job, Level.SUPER_POD)
        pods = together.known if together.known is not None else together.least
        policy = policy_of(Asked(job.key, stated, request.chips, pods, request.products, self._defaults))
        if policy is PACKING:
            return policy, request
        if not job.is_gang:
            if policy.gives_way:
                return PACKING, request
            raise _not_together(job, policy.level)
        if request.needs_network != policy.needs_network:
            request = replace(request, needs_network=policy.needs_network)
        return policy, request

    def _one_product(
        self, pod: Pod, job: Job, named: frozenset[str] | None, candidates: Collection[str] | None
    ) -> frozenset[str] | None:
        """The one product for all pods of a job of several pods.

        The candidate nodes of one pod say nothing of the others of its gang, which is placed as a whole; the pods of
        other jobs follow the pod that was placed first.

        Raises:
            Refusal: several are possible.
        """
        there = self._cluster.labels.products(pod.spec)
        try:
            several = "has several pods" if job.cooperation_with(pod).known is not None else "may have several pods"
            return one_product(f"job {job.key} {several}", named, there, self._preferred_products(pod, job))
        except Refusal:
            if self._cluster.jobs.lacks_group(job):
                raise group_missing(pod, job, self._cluster.jobs) from None  # which may name it
            offered = self._cluster.labels.only_product(candidates) if candidates and not job.is_gang else None
            if offered is None:
                raise
            return one_product("", named, (offered,), ())

    def _is_spread(self, products: frozenset[str] | None) -> bool:
        """Whether each pod of a job needs a server alone: the job's single product is not shared by peers."""
        if products is None or len(products) != 1:
            return False
        (name,) = products
        return not PRODUCTS[name].shared_by_peers and name not in self._defaults.sharing_products

    def _preferred_products(self, pod: Pod, job: Job) -> Iterator[str]:
        """The product of the pod's own reservation, those of the placed pods of its job, and the default."""
        own = (pod.uid,) if self._ledger.get(pod.uid) is not None else ()
        for uid in chain(own, job.placed):
            reservation = self._ledger.get(uid)
            node = reservation.node if reservation is not None else job.pods[uid].spec.node_name
            record = self._cluster.nodes.get(node)
            if record is not None and record.product is not None:
                yield record.product.name
        yield self._defaults.product

    def _excess_vnpus(self, pod: Pod) -> Refusal | None:
        job = self._cluster.jobs.job_of(pod)
        return excess_vnpus(pod, job.key, job.vnpus_with(pod), self._defaults.vnpus_per_job)


def _not_together(job: Job, level: Level | None) -> Refusal:
    what = {
        None: "nodes that are chosen for all its pods, which are",
        Level.SUPER_POD: "blocks of nodes of one SuperPod, which are",
        Level.HYPER_NODE: "nodes of one HyperNode (networkTopology), which are",
        Level.SWITCH: f"servers below few leaf switches ({TOR_AFFINITY}), which are",
    }
    return Refusal(
        Reason.INVALID_MIN_AVAILABLE,
        f"job {job.key} requests {what.get(level, 'nodes near each other, which are')} placed together; say how many "
        f"of its pods start together: name a PodGroup with that minMember, or set the annotation {MIN_AVAILABLE}",
    )
