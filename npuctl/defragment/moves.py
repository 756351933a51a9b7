"""Pods whose successors fit elsewhere, so that rings or whole servers become free.

A scheduler that packs well still leaves free chips scattered once jobs end. What an operator could do about that is
found by trying: the pods of a ring end, their controllers create them anew, and the allocator places the successors as
always. If more rings are free afterwards, that is a proposal; otherwise the pods are put back.
"""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Literal, TypeAlias

import msgspec

from allocator.rescheduling.owners import why_nobody
from allocator.rules.vacancy import Vacancy
from allocator.state.holding import Holding
from allocator.state.node import NodeRecord
from ascend.chips import ChipSet, chip_ids, chip_name, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.products import Product
from npuctl.evaluation import Evaluation
from npuctl.plan.rescheduling import anew

Unit: TypeAlias = Literal["rings", "servers"]
"""What is to become free: rings, meshes or cards of linked chips, or all chips of servers."""


_BROKEN: Final = "a chip that can't be used, or is reserved"


class Move(msgspec.Struct, frozen=True):
    """A pod to delete, and where the allocator places the pod that its controller creates anew.

    Attributes:
        pod: ``namespace/name``.
        node: the node that it is on.
        chips: the names of its chips.
        to: the node of its successor.
        to_chips: the names of the successor's chips.
        started: when it was started (RFC 3339): what it has not saved since is computed again; empty if unknown.
    """

    pod: str
    node: str
    chips: tuple[str, ...]
    to: str
    to_chips: tuple[str, ...]
    started: str = ""


class _Candidate(msgspec.Struct, frozen=True, order=True):
    """A unit that would be free without pods that can move; the cheapest comes first."""

    pods: int
    chips: int
    node: str
    unit: ChipSet


class Defragmentation:
    """Looks for moves.

    Args:
        evaluation: the cluster; it is changed as the moves would change it.
        unit: what is to become free.
        product: only servers of this product, by its name; empty for all.

    Attributes:
        obstacles: the number of units that no moves can free, by what is on them.
    """

    def __init__(self, evaluation: Evaluation, unit: Unit, product: str = "") -> None:
        self._evaluation = evaluation
        self._cluster = evaluation.allocator.cluster
        self._product = product.lower()
        self._units: Callable[[Product], tuple[ChipSet, ...]] = _rings if unit == "rings" else _servers
        self._moved: set[str] = set()
        self.obstacles: Counter[str] = Counter()

    def free(self) -> int:
        """The number of free units; chips that are kept for a job that waits count as free."""
        return sum(
            len(bucket) * sum(not unit & ~(vacancy.free | vacancy.kept) for unit in self._units(vacancy.product))
            for bucket in self._cluster.index.buckets
            if self._counts((vacancy := bucket.vacancy).product)
        )

    def find(self, wanted: int) -> list[Move]:
        """Moves by which at least so many more units become free, if there are; the cheapest unit first.

        Each unit is tried once: what is found is a good answer, not the best of all.
        """
        moves, goal = list[Move](), self.free() + wanted
        for candidate in sorted(self._candidates()):
            if (free := self.free()) >= goal:
                break
            moves += self._try(candidate, free)
        return moves

    def _candidates(self) -> Iterator[_Candidate]:
        for record in self._cluster.nodes.values():
            if not isinstance(record.offer, Vacancy) or not self._counts(record.offer.product):
                continue
            for unit in self._units(record.offer.product):
                pods = self._pods_on(record, unit)
                if isinstance(pods, str):
                    self.obstacles[pods] += 1
                elif pods:
                    chips = sum(record.holdings[pod.uid].chips.bit_count() for pod in pods)
                    yield _Candidate(len(pods), chips, record.name, unit)

    def _pods_on(self, record: NodeRecord, unit: ChipSet) -> list[Pod] | str:
        """The pods to move off a unit; or why no moves free the unit, as a noun."""
        vacancy = record.offer
        if not isinstance(vacancy, Vacancy) or isinstance(unhealthy := record.unhealthy, Refusal):
            return _BROKEN
        holders = {uid: holding for uid, holding in record.holdings.items() if holding.occupied & unit}
        pods = [pod for uid in holders if (pod := self._cluster.pods.get(uid)) is not None]
        for pod in pods:
            if why := self._why_it_stays(pod, holders[pod.uid]):
                return why
        held = functools.reduce(operator.or_, (holding.chips for holding in holders.values()), 0)
        if unit & ~(vacancy.free | vacancy.kept | held & ~unhealthy):
            return _BROKEN
        return pods

    def _why_it_stays(self, pod: Pod, holding: Holding) -> str:
        """Why a pod can't move; empty if it can."""
        if holding.parts or holding.unreadable or holding.disputed:
            return "a pod with parts of chips, or whose chips are not known,"
        job = self._cluster.jobs.job_of(pod)
        if job.is_gang or job.cooperation_with(pod).known != 1:
            return "a pod of a job of several pods"
        if pod.uid in self._moved or pod.is_terminating or not pod.is_live:
            return "a pod that moves already, or ends"
        if why_nobody(pod, self._cluster.jobs.owners.of(pod), 1) is not None:
            return "a pod that no controller is known to create anew elsewhere"
        return ""

    def _try(self, candidate: _Candidate, free_before: int) -> list[Move]:
        """Move the pods of a unit; none if they don't fit elsewhere, or no more units are free then."""
        record = self._cluster.nodes[candidate.node]
        pods = self._pods_on(record, candidate.unit)  # earlier moves may have changed it
        if isinstance(pods, str) or not pods:
            return []
        chips = {pod.uid: record.holdings[pod.uid].chips for pod in pods}
        for pod in pods:
            self._evaluation.delete(pod)
        moves, successors = list[Move](), list[str]()
        with suppress(Refusal):
            # The largest first: it has the fewest places.
            for pod in sorted(pods, key=lambda pod: (-chips[pod.uid].bit_count(), pod.key)):
                successor = anew(pod)
                successors.append(successor.uid)
                self._evaluation.apply(successor)
                held = self._evaluation.allocator.place(successor)
                self._evaluation.bind(successor, held)
                to_chips = chip_set(held.take.chips)
                started = pod.status.start_time or ""
                moves.append(Move(pod.key, record.name, _names(chips[pod.uid]), held.node, _names(to_chips), started))
        if len(moves) == len(pods) and self.free() > free_before:
            self._moved.update(successors)
            return moves
        for uid in successors:
            self._evaluation.delete(self._cluster.pods[uid])  # as it is, on its node
        for pod in pods:
            self._evaluation.apply(pod)
        return []

    def _counts(self, product: Product) -> bool:
        return self._product in {"", product.name.lower()}


def _names(chips: ChipSet) -> tuple[str, ...]:
    return tuple(map(chip_name, chip_ids(chips)))


def _rings(product: Product) -> tuple[ChipSet, ...]:
    return product.rings


def _servers(product: Product) -> tuple[ChipSet, ...]:
    return (product.all_chips,)
