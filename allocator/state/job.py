"""One job: its pods, how many of them must be placed together, and the rank of each.

Every event takes constant time, however large the job is. A pod is *present* unless it has failed, is terminating or is
gated. A controller replaces a failed or terminating pod, and counting both would make half a job look complete; a gated
pod is considered by no scheduler until its gates are removed, and its peers would start without it.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from allocator.rules.job import (
    JobKey,
    filling_order,
    is_later,
    job_of_owner,
    own_rank,
    stated_minimum,
    stated_replicas,
    works_alone,
)
from allocator.rules.validity import requested_vnpus
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_VERSIONS: Final = count(1)


class Cooperation(NamedTuple):
    """The number of pods of a job that request chips and work together.

    Attributes:
        known: the number; None if it is unknown.
        least: a lower bound. Pods that a gang still lacks may request no chips (an mpi-operator creates workers before
            their launcher), so until they exist only what no further pod could make valid is refused.
    """

    known: int | None
    least: int


class _Statement(NamedTuple):
    created: str
    name: str
    minimum: int


class Job:
    """The state of a job; `Jobs` keeps it current.

    Args:
        key: what identifies it.
        owners: the desired number of pods of each owner, kept by `Jobs`.

    Attributes:
        size: the number of its present pods that request chips.
        present: the number of its pods that have not failed and are neither terminating nor gated; finished ones count.
        ended: the number of its present pods that request chips and have succeeded.
        version: changes with every decision-relevant change: of a pod, of the number of pods to place together, and of
            which pods are placed. No two jobs ever have the same version.
        first_version: tells it from a former job with the same key.
    """

    def __init__(self, key: JobKey, owners: Mapping[JobKey, int]) -> None:
        self.key = key
        self.size = 0
        self.present = 0
        self.ended = 0
        self.version = self.first_version = next(_VERSIONS)
        self._group_minimum: int | None = None
        self._stated: dict[str, _Statement] = {}
        self._stated_last: _Statement | None = None
        self._owners = owners
        self._pods: dict[str, Pod] = {}
        self._placed: dict[str, None] = {}  # a set in the order of placement
        self._own: dict[str, int] = {}
        self._vnpus: dict[str, int] = {}
        self._ranks: dict[int, str] = {}
        self._assigned: dict[str, int] = {}
        self._lowest = 0
        self._gated: set[str] = set()

    @property
    def kind(self) -> str:
        """The kind of its group or owner."""
        return self.key.kind

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Its present pods, by uid."""
        return MappingProxyType(self._pods)

    @property
    def newest(self) -> Iterator[Pod]:
        """Its present pods, the last changed first."""
        return reversed(self._pods.values())

    @property
    def stated_minimum(self) -> int | None:
        """The minimum stated by its pods; None if none states one.

        If they contradict each other, as during the rollout of a changed template, the newest pod that states one
        decides: the result is the same after a restart, whatever the order in which the pods are seen.
        """
        if self._stated_last is None:
            self._stated_last = max(self._stated.values(), default=None)
        return self._stated_last.minimum if self._stated_last is not None else None

    @property
    def group_minimum(self) -> int | None:
        """The minimum of its pod group; None without one."""
        return self._group_minimum

    def set_group_minimum(self, minimum: int | None) -> None:
        """Set the minimum of its pod group, after the group was created, changed or deleted."""
        self._group_minimum = minimum
        self.version = next(_VERSIONS)

    @property
    def min_available(self) -> int:
        """How many pods must be placed together; 1 if each may be placed alone.

        What the pods state counts only if their group does not require more than 1
        (docs/spec/scheduling.md#jobs-and-requests).
        """
        if self._group_minimum is not None and self._group_minimum > 1:
            return self._group_minimum
        return self.stated_minimum or 1

    @property
    def is_gang(self) -> bool:
        """Whether several pods must be placed together."""
        return self.min_available > 1

    def cooperation_with(self, pod: Pod) -> Cooperation:
        """The number of its pods, this one included, that request chips and work together.

        Must not depend on which pods exist already: the first pod is placed before its peers exist, and its placement
        must still be right when they do.
        """
        if self.is_gang:
            least = max(self._requesting_with(pod), self._owned_with(pod) or 1, stated_replicas(pod) or 1)
            # Pods that don't exist yet may all request chips; only existing pods are known to request none.
            return Cooperation(max(least, self.min_available - (self.present - self.size)), least)
        if works_alone(pod, self.key):
            return Cooperation(1, 1)
        owned = self._owned_with(pod)
        if owned is not None and job_of_owner(pod) == self.key:
            return Cooperation(owned, owned)
        # The job may have several owners; the numbers of pods of the others are unknown.
        least = max(owned or 1, stated_replicas(pod) or 1)
        return Cooperation(least if least > 1 else None, least)

    def is_distributed_with(self, pod: Pod) -> bool:
        """Whether it counts as distributed (docs/spec/scheduling.md); it does if the number of its pods is unknown.

        A group with a minimum of 1 may be that of a single pod, so there the peers that exist decide.
        """
        known = self.cooperation_with(pod).known
        if known is None:
            return self._group_minimum is None or not self.may_be_alone(pod)
        return known > 1

    def may_be_alone(self, pod: Pod) -> bool:
        """Whether the pod has no peer that requests chips, and its own index is not that of a later pod of a job."""
        return self._requesting_with(pod) <= 1 and not is_later(pod)

    def vnpus_with(self, pod: Pod) -> int:
        """The number of vNPUs that its pods that have not ended request, this one included.

        A training job may request one vNPU (docs/spec/affinity-rules.md#one-vnpu-per-job): a pod that works alone is a
        training job of its own, as for the number of chips; the pods of a StatefulSet are one job, because which of
        them serve is unknown.
        """
        if not self.is_gang and works_alone(pod, self.key):
            return requested_vnpus(pod)
        return requested_vnpus(pod) + sum(vnpus for uid, vnpus in self._vnpus.items() if uid != pod.uid)

    def rank_of(self, pod: Pod) -> int:
        """The pod's rank: its own, else the assigned one, else the lowest free one, which is assigned to it now."""
        rank = self._known_rank(pod)
        if rank is not None:
            return rank
        while self._lowest in self._ranks:
            self._lowest += 1
        if pod.uid in self._pods:
            self._ranks[self._lowest] = pod.uid
            self._assigned[pod.uid] = self._lowest
        return self._lowest

    def ranked(self) -> list[tuple[int, Pod]]:
        """Its present pods in the order of their ranks; assigns a rank to those without one."""
        unnumbered = [pod for pod in self._pods.values() if self._known_rank(pod) is None]
        for pod in sorted(unnumbered, key=filling_order):
            self.rank_of(pod)
        return sorted(
            ((self.rank_of(pod), pod) for pod in self._pods.values()), key=lambda each: (each[0], each[1].name)
        )

    @property
    def gated(self) -> int:
        """The number of its pods that have scheduling gates, and are not present for that reason."""
        return len(self._gated)

    def set_gated(self, uid: str, *, gated: bool) -> None:
        """Record whether a pod has scheduling gates."""
        if gated:
            self._gated.add(uid)
        else:
            self._gated.discard(uid)

    @property
    def placed(self) -> Iterable[str]:
        """The uids of its live pods that request chips and are bound or reserved, in the order of placement."""
        return self._placed

    def placed_beside(self, uid: str) -> int:
        """The number of its other live pods that request chips and are bound or have a reservation."""
        return len(self._placed) - (uid in self._placed)

    def set_placed(self, uid: str, *, placed: bool) -> None:
        """Record whether a live present pod that requests chips is bound or has a reservation."""
        if placed is (uid in self._placed):
            return
        if placed:
            self._placed[uid] = None
        else:
            del self._placed[uid]
        self.version = next(_VERSIONS)

    def note_minimum(self, pod: Pod) -> None:
        """Record the minimum that a pod states."""
        try:
            minimum = stated_minimum(pod)
        except Refusal:
            minimum = None  # refused when the pod is scheduled
        if minimum is None:
            self._forget_minimum(pod.uid)
            return
        statement = _Statement(pod.metadata.creation_timestamp or "", pod.name, minimum)
        last = self._stated_last
        self._forget_minimum(pod.uid)
        self._stated[pod.uid] = statement
        if len(self._stated) == 1 or (last is not None and statement >= last):
            self._stated_last = statement

    def put(self, pod: Pod) -> None:
        """Add or update a present pod."""
        old = self._remove(pod.uid)
        self.note_minimum(pod)
        self._pods[pod.uid] = pod
        # Schedulers update the status of every refused pod, and then filter its peers.
        if old is None or not _is_as_before(old, pod):
            self.version = next(_VERSIONS)
        self.present += 1
        self.size += pod.requests_chips
        self.ended += pod.requests_chips and not pod.is_live
        vnpus = requested_vnpus(pod) if pod.is_live else 0
        if vnpus:
            self._vnpus[pod.uid] = vnpus
        rank = own_rank(pod)
        if rank is not None:
            self._own[pod.uid] = rank
            # A pod with a rank of its own displaces one to which it was only assigned.
            self._ranks[rank] = pod.uid

    def remove(self, uid: str) -> None:
        """Remove a pod that is no longer present."""
        self._forget_minimum(uid)
        self._placed.pop(uid, None)
        if self._remove(uid) is not None:
            self.version = next(_VERSIONS)
        self._free(self._assigned.pop(uid, None), uid)

    def _remove(self, uid: str) -> Pod | None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        self.present -= 1
        self.size -= pod.requests_chips
        self.ended -= pod.requests_chips and not pod.is_live
        self._vnpus.pop(uid, None)
        self._free(self._own.pop(uid, None), uid)
        return pod

    def _forget_minimum(self, uid: str) -> None:
        if self._stated.pop(uid, None) == self._stated_last:
            self._stated_last = None

    def _owned_with(self, pod: Pod) -> int | None:
        owner = job_of_owner(pod)
        return self._owners.get(owner) if owner is not None else None

    def _requesting_with(self, pod: Pod) -> int:
        return self.size + (pod.uid not in self._pods and pod.requests_chips)

    def _known_rank(self, pod: Pod) -> int | None:
        own = self._own.get(pod.uid) if pod.uid in self._pods else own_rank(pod)
        if own is not None:
            return own
        assigned = self._assigned.get(pod.uid)
        return assigned if assigned is not None and self._ranks.get(assigned) == pod.uid else None

    def _free(self, rank: int | None, uid: str) -> None:
        if rank is not None and self._ranks.get(rank) == uid:
            del self._ranks[rank]
            self._lowest = min(self._lowest, rank)


def _is_as_before(old: Pod, new: Pod) -> bool:
    """Whether a pod is unchanged apart from its status; a changed phase counts as a change."""
    metadata = msgspec.structs.replace(old.metadata, resource_version=new.metadata.resource_version)
    return metadata == new.metadata and old.spec == new.spec and old.status.phase == new.status.phase
