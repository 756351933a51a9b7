"""What a pod asks for, read from the pod, its job and the places its peers have. No I/O, no await.

Every question of every front end begins here, so that the same pod is refused by all of them with the same sentence.
"""

from collections.abc import Collection
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.job import stated_minimum
from allocator.rules.narrowing import shuns_sub_health, wanted_products, wants_super_pod
from allocator.rules.request import Ask, requested_chips
from allocator.rules.validity import JobShape, excess_of_parts, validate_job, virtual_chips
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.peers import product_for_all
from allocator.state.remembered import Remembered
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_Question: TypeAlias = tuple[int, Ask, frozenset[tuple[str, str]]]
"""Which product takes all pods of a job: how many pods, what each of them asks for and selects."""


class Asked(msgspec.Struct, frozen=True):
    """What a pod asks for.

    Attributes:
        ask: what the rules have to know of it.
        job: its job.
        gang: the same where its pods are placed together or not at all, else None.
    """

    ask: Ask
    job: Job
    gang: Job | None


class Asking:
    """Reads what pods ask for.

    Args:
        cluster: what is seen.
        ledger: what is decided.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        # Of many pods that wait for room most ask the same, and each answer would take a look at all their nodes.
        self._products: Remembered[_Question, str | None] = Remembered()

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod is ours to judge: it asks for chips, or for more parts of chips than it may have."""
        return pod.asks_for_chips or self._excess_of_parts(pod) is not None

    def read(self, pod: Pod, candidates: Collection[str] | None = None) -> Asked:
        """What a pod asks for.

        Args:
            pod: the pod.
            candidates: names of the nodes it may be on; None for every node.

        Raises:
            Refusal: its request makes no sense on any node, or it is gone.
        """
        if self._cluster.is_gone(pod.uid):
            raise Refusal("PodGone", f"pod {pod.key} is gone")
        if not pod.asks_for_chips and (excess := self._excess_of_parts(pod)) is not None:
            raise excess
        stated_minimum(pod)
        job = self._cluster.jobs.job_of(pod)
        gang = self._cluster.jobs.gang(job)
        together = job.cooperation_with(pod)
        ask = Ask(
            requested_chips(pod),
            distributed=together.known is not None and together.known > 1,
            minds_network=together.known is None,
            products=wanted_products(pod),
            shuns_sub_health=shuns_sub_health(pod),
        )
        several = together.least > 1
        validate_job(
            JobShape(
                f"job {job.key}" if several else f"pod {pod.key}",
                frozenset({ask.chips}),
                pods=2 if several else 1,
                products=ask.products,
                virtual=virtual_chips(pod),
                super_pod=wants_super_pod(pod),
            )
        )
        if (ask.distributed or ask.minds_network) and gang is None:
            # The plan of a gang sees to this for all of it at once.
            ask = self._among_peers(pod, ask, job, together.known)
        if ask.minds_network and job.may_be_alone(pod):
            with self._ledger.suspended(pod.uid):
                if self._cluster.index.best(ask, candidates) is None:
                    # A pod that is alone needs no network: any chips are better than none.
                    ask = replace(ask, minds_network=False)
        return Asked(ask, job, gang)

    def beside_peers(self, pod: Pod, ask: Ask, job: Job) -> Ask | None:
        """The same ask, kept to the products on which the pod joins its placed peers; None where none are placed.

        A pod that names other servers than its peers are on is meant to be there: a StatefulSet whose template was
        changed replaces pod after pod, and would stop at the first one otherwise.
        """
        products = self._cluster.peer_products(job, pod.uid)
        if products is None:
            return None
        named = self._cluster.pools.named_products(pod.spec.node_selector, ask)
        return ask if named is not None and named.isdisjoint(products) else replace(ask, peers=products)

    def _excess_of_parts(self, pod: Pod) -> Refusal | None:
        job = self._cluster.jobs.job_of(pod)
        return excess_of_parts(pod, job.key, job.parts_with(pod))

    def _among_peers(self, pod: Pod, ask: Ask, job: Job, count: int | None) -> Ask:
        """The same ask, kept to servers where the pod and its peers can work together."""
        beside = self.beside_peers(pod, ask, job)
        if beside is not None:
            return beside
        if not self._cluster.is_mixed or count is None:
            return ask
        # The first of several: where it goes, the others have to follow.
        selector = pod.spec.node_selector
        names = self._cluster.pools.selected(selector) if selector else None
        with self._ledger.suspended(pod.uid):
            known, question = (
                self._products.under(self._cluster.index.version),
                (count, ask, frozenset(selector.items())),
            )
            if question not in known:
                known[question] = product_for_all(count, ask, self._cluster.index, names)
            return replace(ask, prefers=known[question])
