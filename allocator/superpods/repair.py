"""Chooses the nodes of a job's blocks, also of a job some of whose pods have ended.

docs/spec/rescheduling.md#superpod-repair, the rules in order: a block all of whose nodes can be used again keeps them;
of a damaged block only the missing nodes are replaced, by others of its SuperPod; a block that its SuperPod can't
complete is placed anew, as the blocks of a new job are. Pods that run never change their nodes. Ranks stay in their
blocks, unless blocks may be split.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import count
from typing import TypeAlias

import msgspec

from allocator.superpods.shares import Share

Place: TypeAlias = Callable[[Mapping[int, int], int], Sequence[Share]]
"""Chooses shares for what is placed anew: from the number of free nodes of each SuperPod, and the number of blocks that
are needed, or of nodes if blocks may be split. Fewer if there is not room for all."""


class Verdict(StrEnum):
    """What becomes of a block."""

    NEW = "new"
    KEPT = "kept"
    PATCHED = "patched"
    MOVED = "moved"


class Slot(msgspec.Struct, frozen=True, gc=False):
    """The place of a rank in its block.

    Attributes:
        rank: the rank.
        node: the node that its pod is or was on; empty if it had none.
        stays: whether its pod is there.
    """

    rank: int
    node: str = ""
    stays: bool = False


class Nodes(msgspec.Struct, frozen=True):
    """The nodes of a cluster, for one job.

    Attributes:
        free: the nodes that each SuperPod has free, by its id, the preferred ones first.
        super_pod_of: the SuperPod of a node; negative if it is in none.
        faulty: names of nodes to be used last, since pods of the job have failed there.
    """

    free: Mapping[int, Sequence[str]]
    super_pod_of: Callable[[str], int]
    faulty: Collection[str] = ()


class Placed(msgspec.Struct, frozen=True, gc=False):
    """Where a rank is placed.

    Attributes:
        node: the name of the node.
        block: the id of its block.
    """

    node: str
    block: int


class Plan(msgspec.Struct, frozen=True):
    """Where the open slots of a job are placed.

    Attributes:
        placed: by rank.
        verdicts: what becomes of each block with an open slot.
    """

    placed: dict[int, Placed]
    verdicts: dict[int, Verdict]


class Lack(msgspec.Struct, frozen=True):
    """Why a job can't be placed.

    Attributes:
        needed: how many nodes are needed, or whole blocks if ``block`` is None and blocks may not be split.
        found: for how many of them there is room.
        block: the block that its SuperPod can't complete, and that can't move because pods of it run; None if there is
            no room for what is placed anew.
        super_pod: the SuperPod of that block; negative if it is unknown.
    """

    needed: int
    found: int
    block: int | None = None
    super_pod: int = -1


def place_job(
    blocks: Mapping[int, Sequence[Slot]], nodes: Nodes, place: Place, *, may_split: bool = False
) -> Plan | Lack:
    """Choose a node for each open slot of a job's blocks.

    Args:
        blocks: the slots of each block by its id, those of one block in the order of ranks.
        nodes: the nodes.
        place: chooses the SuperPods of what is placed anew: of whole blocks, unless they may be split.
        may_split: whether the ranks of a block may be in several SuperPods; then each part is a block of its own.
    """
    repair = _Repair(blocks, nodes)
    lack = repair.patch(may_split=may_split)
    if lack is None:
        lack = repair.split_anew(place) if may_split else repair.place_anew(place)
    return lack if lack is not None else repair.plan


class _Repair:
    def __init__(self, blocks: Mapping[int, Sequence[Slot]], nodes: Nodes) -> None:
        self.plan = Plan({}, {})
        self._nodes = nodes
        self._blocks = blocks
        self._open = {
            number: slots
            for number, each in sorted(blocks.items())
            if (slots := [slot for slot in each if not slot.stays])
        }
        self._taken = {slot.node for slots in blocks.values() for slot in slots if slot.stays}
        self._free = {node for each in nodes.free.values() for node in each}
        self._anew: list[int] = []

    def patch(self, *, may_split: bool) -> Lack | None:
        """Keep what can be kept, and complete damaged blocks; returns why a block can't be that has pods that stay."""
        running = [number for number in self._open if any(slot.stays for slot in self._blocks[number])]
        ended = [number for number in self._open if number not in running and self._home(number) >= 0]
        self._anew = [number for number in self._open if number not in running and number not in ended]
        pins = {number: self._pins(number) for number in (*running, *ended)}
        for number in ended:
            if len(pins[number]) == len(self._open[number]):
                self._settle(number, list(pins.pop(number).values()), Verdict.KEPT)
        # Those that can't move come first, and may use what others would only like to keep.
        for number in running:
            if not self._complete(number, pins) and not self._complete(number, {each: pins[each] for each in running}):
                if not may_split:
                    return self._lack(number)
                self._anew.append(number)
        for number in ended:
            if number in pins and not self._complete(number, pins):
                self._anew.append(number)
                del pins[number]
        return None

    def place_anew(self, place: Place) -> Lack | None:
        """Place the other blocks, each in one SuperPod; returns why they can't be."""
        if not self._anew:
            return None
        left = self._left()
        shares = place({super_pod: len(nodes) for super_pod, nodes in left.items()}, len(self._anew))
        if len(shares) < len(self._anew):
            return Lack(len(self._anew), len(shares))
        for number, share in zip(sorted(self._anew), shares, strict=False):
            verdict = Verdict.MOVED if self._home(number) >= 0 else Verdict.NEW
            chosen = _cut(left[share.super_pod], share.nodes)  # a scheduler may ask for one pod of a block
            self._settle(number, chosen[: len(self._open[number])], verdict)
        return None

    def split_anew(self, place: Place) -> Lack | None:
        """Place the other ranks, of whatever blocks; returns why they can't be."""
        slots = [slot for number in sorted(self._anew) for slot in self._open[number]]
        if not slots:
            return None
        left = self._left()
        shares = place({super_pod: len(nodes) for super_pod, nodes in left.items()}, len(slots))
        if (found := sum(share.nodes for share in shares)) < len(slots):
            return Lack(len(slots), found)
        numbers = self._unused_numbers()
        rest = iter(slots)
        for share in shares:
            number = next(numbers)
            for node in _cut(left[share.super_pod], share.nodes):
                self._put(next(rest).rank, node, number)
            self.plan.verdicts[number] = (
                Verdict.MOVED if number in self._blocks and self._home(number) >= 0 else Verdict.NEW
            )
        return None

    def _unused_numbers(self) -> Iterator[int]:
        """The ids of the blocks that are placed anew and have no pod that stays, then new ones."""
        yield from (number for number in sorted(self._anew) if not any(slot.stays for slot in self._blocks[number]))
        yield from count(max(self._blocks) + 1)

    def _left(self) -> dict[int, list[str]]:
        """The nodes that each SuperPod has left, those on which pods have failed last."""
        return {
            super_pod: sorted((node for node in nodes if node not in self._taken), key=self._nodes.faulty.__contains__)
            for super_pod, nodes in self._nodes.free.items()
        }

    def _home(self, number: int) -> int:
        """The SuperPod of a block: that of a pod that stays, else that of the first node it had; negative for none."""
        slots = sorted(self._blocks[number], key=lambda slot: not slot.stays)
        found = (self._nodes.super_pod_of(slot.node) for slot in slots if slot.node)
        return next((number for number in found if number >= 0), -1)

    def _pins(self, number: int) -> dict[int, str]:
        """The nodes that a block keeps where it can, by rank."""
        home = self._home(number)
        return {
            slot.rank: slot.node
            for slot in self._open[number]
            if self._is_usable(slot.node)
            and slot.node not in self._nodes.faulty
            and self._nodes.super_pod_of(slot.node) == home
        }

    def _complete(self, number: int, pins: Mapping[int, Mapping[int, str]]) -> bool:
        """Complete a block in its SuperPod, if that has enough nodes beside those that other blocks keep."""
        home = self._nodes.free.get(self._home(number), ())
        kept = {node for nodes in pins.values() for node in nodes.values()}
        spare = [node for node in home if self._is_usable(node) and node not in kept]
        spare.sort(key=self._nodes.faulty.__contains__)
        own = {rank: node for rank, node in pins[number].items() if self._is_usable(node)}
        if len(own) + len(spare) < len(self._open[number]):
            return False
        others = iter(spare)
        chosen = [own[slot.rank] if slot.rank in own else next(others) for slot in self._open[number]]
        self._settle(number, chosen, Verdict.PATCHED)
        return True

    def _is_usable(self, node: str) -> bool:
        return node in self._free and node not in self._taken

    def _settle(self, number: int, chosen: Sequence[str], verdict: Verdict) -> None:
        for slot, node in zip(self._open[number], chosen, strict=True):
            self._put(slot.rank, node, number)
        self.plan.verdicts[number] = verdict

    def _put(self, rank: int, node: str, number: int) -> None:
        self.plan.placed[rank] = Placed(node, number)
        self._taken.add(node)

    def _lack(self, number: int) -> Lack:
        home = self._home(number)
        found = sum(self._is_usable(node) for node in self._nodes.free.get(home, ()))
        return Lack(len(self._open[number]), found, number, home)


def _cut(nodes: list[str], number: int) -> list[str]:
    """Take the first nodes of a list."""
    taken = nodes[:number]
    del nodes[:number]
    return taken
