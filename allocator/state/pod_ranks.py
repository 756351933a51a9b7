"""The ranks of a job's pods with chips, also of backup pods.

The backup pod of a hot switch has the rank of the pod that it replaces, and names that pod in an annotation until it is
deleted (docs/spec/superpod.md#other-details): MindCluster's operator makes it so.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import Any

import msgspec

from allocator.rules.job import filling_order, written_rank
from allocator.state.ranks import Ranks
from ascend.annotations import BACKUP_SOURCE
from ascend.jobs.kind import PodSet
from ascend.kube.objects import Pod
from ascend.turn import Steps

_STEP = 64
"""After so many pods there may be a pause."""


class PodRanks(msgspec.Struct, eq=False, gc=False):
    """The ranks of the present pods of a job."""

    _ranks: Ranks = msgspec.field(default_factory=Ranks)
    _parts: tuple[str, ...] = ()
    _pods: dict[str, Pod] = {}
    _uids: dict[str, str] = {}  # by name
    _naming: dict[str, dict[str, None]] = {}  # the uids of the pods that name a pod in their annotation
    _replaced: dict[str, str] = {}  # the uid of the pod that each backup replaces

    @property
    def backups(self) -> int:
        """How many pods stand by to replace others."""
        return len(self._replaced)

    def know(self, parts: Iterable[PodSet[Any]]) -> None:
        """Set the parts of the job, as the object from which its pods are created states them."""
        known = tuple(parts)
        self._parts = tuple(part.part for part in known)
        self._ranks.know(known)

    def put(self, pod: Pod) -> None:
        """Add or update a present pod that requests chips."""
        self._forget_name(pod.uid)
        self._pods[pod.uid] = pod
        self._uids[pod.name] = pod.uid
        if source := pod.metadata.annotations.get(BACKUP_SOURCE):
            self._naming.setdefault(source, {})[pod.uid] = None
        self._settle(pod.uid)
        self._settle_naming(pod.name)

    def remove(self, uid: str) -> None:
        """Remove a pod that is no longer present."""
        self._forget_name(uid)
        self._replaced.pop(uid, None)
        self._ranks.remove(uid)
        if (pod := self._pods.pop(uid, None)) is not None and self._uids.get(pod.name) == uid:
            del self._uids[pod.name]
            self._settle_naming(pod.name)

    def rank_of(self, pod: Pod) -> int:
        """The rank of a pod: of the pod that a backup replaces, else its own, else the lowest free rank."""
        return self._ranks.rank_of(self._pods[self._replaced[pod.uid]] if pod.uid in self._replaced else pod)

    def assign(self) -> Steps[None]:
        """Assign a rank to every pod without one."""
        ranks, keys = self._ranks, []
        for number, uid in enumerate(list(self._pods), start=1):
            if (pod := self._unread(uid)) is not None:
                keys.append((not ranks.wants(uid), filling_order(pod, self._parts), uid))
            if not number % _STEP:
                yield
        for number, (*_, uid) in enumerate(sorted(keys, key=itemgetter(0, 1)), start=1):
            if (pod := self._unread(uid)) is not None:
                ranks.rank_of(pod)
            if not number % _STEP:
                yield

    def _unread(self, uid: str) -> Pod | None:
        """A pod whose own rank was not read, if it is still present."""
        return self._pods.get(uid) if uid not in self._replaced and not self._ranks.is_given(uid) else None

    def _settle(self, uid: str) -> None:
        """Give a pod a rank of its own, unless it is the backup of a running pod."""
        pod = self._pods[uid]
        replaced = self._pods.get(self._uids.get(pod.metadata.annotations.get(BACKUP_SOURCE, ""), ""))
        # A pod's author may write any name: a backup has the same rank written as the pod that it names.
        is_backup = replaced is not None and replaced.uid != uid and replaced.spec.node_name
        if is_backup and replaced is not None and written_rank(replaced) == written_rank(pod) is not None:
            self._ranks.remove(uid)
            self._replaced[uid] = replaced.uid
        else:
            self._replaced.pop(uid, None)
            self._ranks.put(pod)

    def _settle_naming(self, name: str) -> None:
        for uid in self._naming.get(name, ()):
            self._settle(uid)

    def _forget_name(self, uid: str) -> None:
        pod = self._pods.get(uid)
        source = pod.metadata.annotations.get(BACKUP_SOURCE) if pod is not None else None
        if source:
            del self._naming[source][uid]
            if not self._naming[source]:
                del self._naming[source]
