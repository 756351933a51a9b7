"""One job: which of its pods are there, how many of them must be placed together, and which rank each has.

Every event costs the same however large the job is. A pod is *present* unless it has failed or is being deleted: such a
pod is replaced by its controller, and counting both would take half a job for a whole one.
"""

from collections.abc import Iterator, Mapping
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
from allocator.rules.validity import virtual_chips
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_VERSIONS: Final = count(1)


class Cooperation(NamedTuple):
    """How many pods of a job ask for chips and work together.

    Attributes:
        known: so many; None where nobody says.
        least: at least so many, whoever is yet to come. What a gang still lacks may ask for no chips: an mpi-operator
            makes workers before their launcher. So only what no peers could make valid may be refused until they are
            there.
    """

    known: int | None
    least: int


class _Statement(NamedTuple):
    created: str
    name: str
    minimum: int


class Job:
    """A job as it is now; `Jobs` keeps it true.

    Args:
        key: what tells it apart.
        owners: how many pods each owner is to have, as `Jobs` keeps it.

    Attributes:
        size: how many of its present pods ask for chips.
        present: how many pods it has that have not failed and are not being deleted, finished ones among them.
        version: another one after every change of a pod that any answer hangs on, and never that of another job.
    """

    __slots__ = (
        "_given",
        "_lowest",
        "_own",
        "_owners",
        "_parts",
        "_pods",
        "_ranks",
        "_stated",
        "_stated_last",
        "group_minimum",
        "key",
        "present",
        "size",
        "version",
    )

    def __init__(self, key: JobKey, owners: Mapping[JobKey, int]) -> None:
        self.key = key
        self.size = 0
        self.present = 0
        self.version = next(_VERSIONS)
        self.group_minimum: int | None = None
        self._stated: dict[str, _Statement] = {}
        self._stated_last: _Statement | None = None
        self._owners = owners
        self._pods: dict[str, Pod] = {}
        self._own: dict[str, int] = {}
        self._parts: dict[str, int] = {}
        self._ranks: dict[int, str] = {}
        self._given: dict[str, int] = {}
        self._lowest = 0

    @property
    def kind(self) -> str:
        """What it is: the kind of its group or owner."""
        return self.key.kind

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Its present pods, by uid."""
        return MappingProxyType(self._pods)

    @property
    def newest(self) -> Iterator[Pod]:
        """Its present pods, those that have changed last first."""
        return reversed(self._pods.values())

    @property
    def stated_minimum(self) -> int | None:
        """The minimum as its pods state it; None where none does.

        Where they contradict each other, as while a template that was changed is rolled out, the newest of those that
        state one is right: whatever the order in which they were seen, so that it is the same after a restart.
        """
        if self._stated_last is None:
            self._stated_last = max(self._stated.values(), default=None)
        return self._stated_last.minimum if self._stated_last is not None else None

    @property
    def parts(self) -> int:
        """How many parts of chips (vNPUs) its pods that have not ended ask for."""
        return sum(self._parts.values())

    @property
    def min_available(self) -> int:
        """How many pods must be placed together; 1 where each may be placed alone.

        What the pods state counts only where their group leaves it at 1 (spec/scheduling.md §3.1).
        """
        if self.group_minimum is not None and self.group_minimum > 1:
            return self.group_minimum
        return self.stated_minimum or 1

    @property
    def is_gang(self) -> bool:
        """Whether several pods must be placed together."""
        return self.min_available > 1

    def cooperation_with(self, pod: Pod) -> Cooperation:
        """How many of its pods, this one included, ask for chips and work together.

        Who is there already must not matter: the first pod is asked about before its peers exist, and what it is given
        then is to be right when they do.
        """
        if self.is_gang:
            least = max(self._asking_with(pod), self._made_with(pod) or 1, stated_replicas(pod) or 1)
            # Those that are yet to come may all ask for chips; only seen ones are known not to.
            return Cooperation(max(least, self.min_available - (self.present - self.size)), least)
        if works_alone(pod, self.key):
            return Cooperation(1, 1)
        made = self._made_with(pod)
        if made is not None and job_of_owner(pod) == self.key:
            return Cooperation(made, made)
        # One of several owners: of the others' pods nothing is known.
        least = max(made or 1, stated_replicas(pod) or 1)
        return Cooperation(least if least > 1 else None, least)

    def is_distributed_with(self, pod: Pod) -> bool:
        """Whether it counts as distributed (spec/scheduling.md): where nobody says how many pods it has, it does.

        A group of which one pod is enough may be that of a pod alone, so there peers are looked for.
        """
        known = self.cooperation_with(pod).known
        if known is None:
            return self.group_minimum is None or not self.may_be_alone(pod)
        return known > 1

    def may_be_alone(self, pod: Pod) -> bool:
        """Whether no peer of the pod that asks for chips is there, and its own index is not that of a later one."""
        return self._asking_with(pod) <= 1 and not is_later(pod)

    def parts_with(self, pod: Pod) -> int:
        """How many parts of chips (vNPUs) its pods that have not ended ask for, this one included.

        "Only one vNPU can be applied for by a training job" (seed 000): who works for itself is a training job of its
        own, as it is for the number of chips; the pods of a StatefulSet are one, for nobody knows which of them serve.
        """
        if not self.is_gang and works_alone(pod, self.key):
            return virtual_chips(pod)
        return virtual_chips(pod) + sum(parts for uid, parts in self._parts.items() if uid != pod.uid)

    def rank_of(self, pod: Pod) -> int:
        """The pod's rank: its own, else the one it was given, else the lowest free one, which it keeps from now on."""
        rank = self._known_rank(pod)
        if rank is not None:
            return rank
        while self._lowest in self._ranks:
            self._lowest += 1
        if pod.uid in self._pods:
            self._ranks[self._lowest] = pod.uid
            self._given[pod.uid] = self._lowest
        return self._lowest

    def ranked(self) -> list[tuple[int, Pod]]:
        """Its present pods in the order of their ranks; those without one are numbered on the way."""
        unnumbered = [pod for pod in self._pods.values() if self._known_rank(pod) is None]
        for pod in sorted(unnumbered, key=filling_order):
            self.rank_of(pod)
        return sorted(((self.rank_of(pod), pod) for pod in self._pods.values()), key=_by_rank)

    def note_minimum(self, pod: Pod) -> None:
        """Take down the minimum that a pod states."""
        minimum = _minimum(pod)
        if minimum is None:
            self._take_back(pod.uid)
            return
        statement = _Statement(pod.metadata.creation_timestamp or "", pod.name, minimum)
        last = self._stated_last
        self._take_back(pod.uid)
        self._stated[pod.uid] = statement
        if len(self._stated) == 1 or (last is not None and statement >= last):
            self._stated_last = statement

    def put(self, pod: Pod) -> None:
        """A pod of it is present."""
        old = self._remove(pod.uid)
        self.note_minimum(pod)
        self._pods[pod.uid] = pod
        # Schedulers write into the status of every pod they were refused, and then ask about its peers.
        if old is None or not _is_as_before(old, pod):
            self.version = next(_VERSIONS)
        self.present += 1
        self.size += pod.asks_for_chips
        parts = virtual_chips(pod) if pod.is_live else 0
        if parts:
            self._parts[pod.uid] = parts
        rank = own_rank(pod)
        if rank is not None:
            self._own[pod.uid] = rank
            # A pod that brings its rank along displaces one that was only given it.
            self._ranks[rank] = pod.uid

    def remove(self, uid: str) -> None:
        """A pod of it is present no more."""
        self._take_back(uid)
        if self._remove(uid) is not None:
            self.version = next(_VERSIONS)
        self._free(self._given.pop(uid, None), uid)

    def _remove(self, uid: str) -> Pod | None:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return None
        self.present -= 1
        self.size -= pod.asks_for_chips
        self._parts.pop(uid, None)
        self._free(self._own.pop(uid, None), uid)
        return pod

    def _take_back(self, uid: str) -> None:
        if self._stated.pop(uid, None) == self._stated_last:
            self._stated_last = None

    def _made_with(self, pod: Pod) -> int | None:
        owner = job_of_owner(pod)
        return self._owners.get(owner) if owner is not None else None

    def _asking_with(self, pod: Pod) -> int:
        return self.size + (pod.uid not in self._pods and pod.asks_for_chips)

    def _known_rank(self, pod: Pod) -> int | None:
        own = self._own.get(pod.uid) if pod.uid in self._pods else own_rank(pod)
        if own is not None:
            return own
        given = self._given.get(pod.uid)
        return given if given is not None and self._ranks.get(given) == pod.uid else None

    def _free(self, rank: int | None, uid: str) -> None:
        if rank is not None and self._ranks.get(rank) == uid:
            del self._ranks[rank]
            self._lowest = min(self._lowest, rank)


def _minimum(pod: Pod) -> int | None:
    try:
        return stated_minimum(pod)
    except Refusal:
        # Said to whoever asks for the pod to be placed.
        return None


def _is_as_before(old: Pod, new: Pod) -> bool:
    """Whether nothing of a pod has changed but what is reported of it."""
    metadata = msgspec.structs.replace(old.metadata, resource_version=new.metadata.resource_version)
    return metadata == new.metadata and old.spec == new.spec and old.status.phase == new.status.phase


def _by_rank(each: tuple[int, Pod]) -> tuple[int, str]:
    return each[0], each[1].name
