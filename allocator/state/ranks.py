"""The ranks of the pods of one job: no two present pods ever have the same.

A pod has the rank that is written on it, else that of its index, unless the job has several parts whose indexes would
collide and whose sizes are unknown, else the lowest free one. A rank that was read stays, as long as the pod is present
and no other pod has it written.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from allocator.rules.job import marks_of, written_rank
from ascend.jobs.kind import PodSet
from ascend.jobs.marks import Position
from ascend.kube.objects import Pod


class _Wish(msgspec.Struct, frozen=True, gc=False):
    """What a pod states about its rank."""

    written: int | None
    part: str
    position: Position


class Ranks(msgspec.Struct, eq=False, gc=False):
    """The ranks of the present pods of a job, by uid."""

    _wishes: dict[str, _Wish] = {}
    _parts: dict[str, int] = {}
    _known: dict[str, tuple[int, PodSet[Any]]] = {}
    _given: dict[str, int] = {}
    _holders: dict[int, str] = {}
    _wanted: dict[int, int] = {}
    _lowest: int = 0

    def know(self, parts: Iterable[PodSet[Any]]) -> None:
        """Set the parts of the job, as the object from which its pods are created states them."""
        known, first = {}, 0
        for part in parts:
            known[part.part] = (first, part)
            first += part.ranks if part.requests_chips else 0
        if known != self._known:
            self._known = known
            self._count_again()

    def put(self, pod: Pod) -> None:
        """Add or update a present pod."""
        marks = marks_of(pod)
        wish = _Wish(written_rank(pod), marks.part, marks.position)
        old = self._wishes.get(pod.uid)
        if wish == old:
            return
        if old is not None:
            self._forget(pod.uid, old)
        was_one = self._is_one_part
        self._wishes[pod.uid] = wish
        if wish.position.own is not None:
            self._parts[wish.part] = self._parts.get(wish.part, 0) + 1
        if was_one is not self._is_one_part:
            self._count_again()
        else:
            self._count(wish, 1)
        if wish.written is not None:
            self._displace(wish.written, pod.uid)

    def remove(self, uid: str) -> None:
        """Remove a pod that is no longer present."""
        wish = self._wishes.get(uid)
        if wish is not None:
            self._forget(uid, wish)
            self._release(uid)

    def is_given(self, uid: str) -> bool:
        """Whether the rank of a pod was read."""
        return uid in self._given

    def wants(self, uid: str) -> bool:
        """Whether a present pod states its rank."""
        return self._want(self._wishes[uid]) is not None

    def rank_of(self, pod: Pod) -> int:
        """The rank of a pod; a present one keeps it."""
        given = self._given.get(pod.uid)
        if given is not None:
            return given
        wish = self._wishes.get(pod.uid)
        if wish is None:
            marks = marks_of(pod)
            wish = _Wish(written_rank(pod), marks.part, marks.position)
        rank = self._want(wish)
        if rank is None or rank in self._holders:
            rank = self._free()
        if pod.uid in self._wishes:
            self._given[pod.uid] = rank
            self._holders[rank] = pod.uid
        return rank

    @property
    def _is_one_part(self) -> bool:
        """Whether all pods with an index have it in the same part."""
        return len(self._parts) <= 1

    def _want(self, wish: _Wish) -> int | None:
        if wish.written is not None:
            return wish.written
        position = wish.position
        if position.part in self._known:
            first, part = self._known[position.part]
            index = 0 if position.at is None and part.pods == 1 else position.at
            if part.requests_chips and index is not None:
                at = position.outer * part.each + index
                return first + at if at < part.ranks else None
            return None
        return position.own if self._is_one_part else None

    def _free(self) -> int:
        while self._lowest in self._holders or self._wanted.get(self._lowest, 0) > 0:
            self._lowest += 1
        return self._lowest

    def _displace(self, rank: int, uid: str) -> None:
        """Take a rank from a pod to which it was only assigned."""
        holder = self._holders.get(rank)
        if holder is not None and holder != uid and self._wishes[holder].written != rank:
            self._release(holder)
        if self._given.get(uid, rank) != rank:
            self._release(uid)

    def _release(self, uid: str) -> None:
        rank = self._given.pop(uid, None)
        if rank is not None:
            del self._holders[rank]
            self._lowest = min(self._lowest, rank)

    def _forget(self, uid: str, wish: _Wish) -> None:
        was_one = self._is_one_part
        self._wishes.pop(uid, None)
        if wish.position.own is not None:
            self._parts[wish.part] -= 1
            if not self._parts[wish.part]:
                del self._parts[wish.part]
        if was_one is not self._is_one_part:
            self._count_again()
        else:
            self._count(wish, -1)

    def _count(self, wish: _Wish, by: int) -> None:
        """Count the rank that a pod wants, so that no peer is assigned the same."""
        rank = self._want(wish)
        if rank is not None:
            number = self._wanted.get(rank, 0) + by
            if number:
                self._wanted[rank] = number
            else:
                del self._wanted[rank]
            if by < 0:
                self._lowest = min(self._lowest, rank)

    def _count_again(self) -> None:
        """Count all of them, after it has changed whether indexes are ranks."""
        self._wanted.clear()
        for wish in self._wishes.values():
            self._count(wish, 1)
        self._lowest = 0
