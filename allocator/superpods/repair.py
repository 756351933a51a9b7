"""Chooses the nodes of a job's blocks, also of a job some of whose pods have ended.

docs/spec/rescheduling.md#superpod-repair, the rules in order: a block all of whose nodes can be used again keeps them;
of a damaged block only the missing nodes are replaced, by others of its SuperPod; a block that its SuperPod can't
complete is placed anew, as the blocks of a new job are. Pods that run never change their nodes. Ranks stay in their
blocks, unless blocks may be split.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import count, islice
from typing import TypeAlias

import msgspec

from allocator.superpods.stages import Share

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
    """The nodes of a cluster, for one job; names are asked for only where they are needed.

    Attributes:
        rooms: how many nodes each SuperPod has free, by its id.
        names: the free nodes of a SuperPod, the preferred ones first; none of one that is not in ``rooms``.
        super_pod_of: the SuperPod of a node; negative if it is in none.
        faulty: names of nodes to be used last, since pods of the job have failed there.
    """

    rooms: Mapping[int, int]
    names: Callable[[int], Sequence[str]]
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


class RepairPlan(msgspec.Struct, frozen=True):
    """Where the open slots of a job are placed.

    Attributes:
        placed: by rank.
        verdicts: what becomes of each block with an open slot.
    """

    placed: dict[int, Placed]
    verdicts: dict[int, Verdict]


class BlockLack(msgspec.Struct, frozen=True):
    """Why a job can't be placed.

    Attributes:
        needed: how many nodes are needed, or whole blocks if ``block`` is None and blocks may not be split.
        found: for how many of them there is room.
        block: the block that its SuperPod can't complete, and that can't move because pods of it run; None if there is
            no room for what is placed anew.
        super_pod: the SuperPod of that block, or the only one in which a new block may be; negative if it is unknown,
            or there is no such one.
    """

    needed: int
    found: int
    block: int | None = None
    super_pod: int = -1


def place_job(
    blocks: Mapping[int, Sequence[Slot]], nodes: Nodes, place: Place, *, may_split: bool = False
) -> RepairPlan | BlockLack:
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
        self.plan = RepairPlan({}, {})
        self._nodes = nodes
        self._blocks = blocks
        self._open = {
            number: slots
            for number, pods in sorted(blocks.items())
            if (slots := [slot for slot in pods if not slot.stays])
        }
        self._taken = {slot.node for slots in blocks.values() for slot in slots if slot.stays}
        self._used_in = {nodes.super_pod_of(node) for node in self._taken}
        self._free_in: dict[int, list[str]] = {}
        self._anew: list[int] = []

    def patch(self, *, may_split: bool) -> BlockLack | None:
        """Keep what can be kept, and complete damaged blocks; return why a block with pods can't be completed."""
        running = [number for number in self._open if any(slot.stays for slot in self._blocks[number])]
        ended = [number for number in self._open if number not in running and self._home(number) >= 0]
        self._anew = [number for number in self._open if number not in running and number not in ended]
        pins = self._pins((*running, *ended))
        # Those that can't move come first, and may use what others would only like to keep.
        for number in running:
            if not self._complete(number, pins) and not self._complete(
                number, {block: pins[block] for block in running}
            ):
                if not may_split:
                    return self._lack(number)
                self._anew.append(number)
        for number in ended:
            if not self._complete(number, pins):
                self._anew.append(number)
                del pins[number]
        return None

    def place_anew(self, place: Place) -> BlockLack | None:
        """Place the remaining blocks, each in one SuperPod; return why they can't be placed."""
        if not self._anew:
            return None
        shares = place(self._rooms(), len(self._anew))
        if len(shares) < len(self._anew):
            return BlockLack(len(self._anew), len(shares))
        for number, share in zip(sorted(self._anew), shares, strict=False):
            verdict = Verdict.MOVED if self._home(number) >= 0 else Verdict.NEW
            self._settle(number, self._take(share)[: len(self._open[number])], verdict)  # perhaps one pod of a block
        return None

    def split_anew(self, place: Place) -> BlockLack | None:
        """Place the other ranks, of whatever blocks; returns why they can't be."""
        slots = [slot for number in sorted(self._anew) for slot in self._open[number]]
        if not slots:
            return None
        shares = place(self._rooms(), len(slots))
        if (found := sum(share.nodes for share in shares)) < len(slots):
            return BlockLack(len(slots), found)
        numbers = self._unused_numbers()
        rest = iter(slots)
        for share in shares:
            number = next(numbers)
            for node in self._take(share):
                self._put(next(rest).rank, node, number)
            self.plan.verdicts[number] = (
                Verdict.MOVED if number in self._blocks and self._home(number) >= 0 else Verdict.NEW
            )
        return None

    def _unused_numbers(self) -> Iterator[int]:
        """The ids of the blocks that are placed anew and have no pod that stays, then new ones."""
        yield from (number for number in sorted(self._anew) if not any(slot.stays for slot in self._blocks[number]))
        yield from count(max(self._blocks) + 1)

    def _rooms(self) -> dict[int, int]:
        """How many nodes each SuperPod has left."""
        rooms = dict(self._nodes.rooms)
        for number in self._used_in & rooms.keys():
            rooms[number] = sum(map(self._is_usable, self._names(number)))
        return rooms

    def _names(self, number: int) -> list[str]:
        """The free nodes of a SuperPod, those on which pods have failed last."""
        if number not in self._free_in:
            self._free_in[number] = sorted(self._nodes.names(number), key=self._nodes.faulty.__contains__)
        return self._free_in[number]

    def _take(self, share: Share) -> list[str]:
        """Take the nodes of a share for what is placed anew."""
        taken = list(islice(filter(self._is_usable, self._names(share.super_pod)), share.nodes))
        self._taken.update(taken)
        return taken

    def _home(self, number: int) -> int:
        """The SuperPod of a block: of a pod that stays, else of its first node; negative for none."""
        slots = sorted(self._blocks[number], key=lambda slot: not slot.stays)
        found = (self._nodes.super_pod_of(slot.node) for slot in slots if slot.node)
        return next((number for number in found if number >= 0), -1)

    def _pins(self, numbers: Iterable[int]) -> dict[int, dict[int, str]]:
        """The nodes that blocks keep where they can, by rank; each node once, whatever is remembered."""
        pins: dict[int, dict[int, str]] = {}
        pinned: set[str] = set()
        for number in numbers:
            home, own = self._home(number), pins.setdefault(number, {})
            for slot in self._open[number]:
                is_kept = self._is_usable(slot.node) and slot.node not in self._nodes.faulty
                if is_kept and slot.node not in pinned and self._nodes.super_pod_of(slot.node) == home:
                    own[slot.rank] = slot.node
                    pinned.add(slot.node)
        return pins

    def _complete(self, number: int, pins: Mapping[int, Mapping[int, str]]) -> bool:
        """Complete a block in its SuperPod, if enough nodes are left beside other blocks' nodes."""
        kept = {node for nodes in pins.values() for node in nodes.values()}
        spare = [node for node in self._names(self._home(number)) if self._is_usable(node) and node not in kept]
        own = {rank: node for rank, node in pins[number].items() if self._is_usable(node)}
        slots = self._open[number]
        if len(own) + len(spare) < len(slots):
            return False
        is_whole = len(own) == len(slots) == len(self._blocks[number])
        others = iter(spare)
        chosen = [own[slot.rank] if slot.rank in own else next(others) for slot in slots]
        self._settle(number, chosen, Verdict.KEPT if is_whole else Verdict.PATCHED)
        return True

    def _is_usable(self, node: str) -> bool:
        return bool(node) and node not in self._taken and node in self._names(self._nodes.super_pod_of(node))

    def _settle(self, number: int, chosen: Sequence[str], verdict: Verdict) -> None:
        for slot, node in zip(self._open[number], chosen, strict=True):
            self._put(slot.rank, node, number)
        self.plan.verdicts[number] = verdict

    def _put(self, rank: int, node: str, number: int) -> None:
        self.plan.placed[rank] = Placed(node, number)
        self._taken.add(node)
        self._used_in.add(self._nodes.super_pod_of(node))

    def _lack(self, number: int) -> BlockLack:
        home = self._home(number)
        return BlockLack(len(self._open[number]), sum(map(self._is_usable, self._names(home))), number, home)
