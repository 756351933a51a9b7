"""The policy for gangs without a topology of their own: places each pod as if it were alone, but all at once.

Requests name the product, so all pods that don't name different ones are placed on servers of one product.

Large pods are placed first, so that small ones don't break what they need. Equal pods are interchangeable, so each kind
of request is one merge over the buckets of the index: a node is examined only when a pod is placed there. The result is
that of placing the pods one after the other (a test compares them), at a few microseconds per pod. Consecutive ranks
then get neighbouring seats: a node is filled before the next one is used, in the order of names.
"""

import math
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from allocator.gangs.board import Board
from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.rules.request import ChipRequest
from allocator.state.index import NodeIndex
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.reasons import Category, Reason
from ascend.turn import Steps


class Packing(Policy, frozen=True):
    """The policy as a value: it has no settings."""

    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find seats for all members, or say why they don't fit."""
        return pack(gang, index)


PACKING: Final = Packing()


def pack(gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
    """Find seats for all members, or say why they don't fit."""

    # Members with few candidates first: the others have a larger choice. If a small member then breaks what a large one
    # needs: large members first. If these take what many others need: members with the least spare room first.
    def choice(equals: list[Member]) -> float:
        allowed = gang.allowed(equals[0])
        return math.inf if allowed is None else len(allowed)

    untouched = Board(index, gang.limits, gang.peers)

    def spare(equals: list[Member]) -> float:
        return untouched.room(equals[0].request, gang.allowed(equals[0])) - len(equals)

    orders: tuple[Callable[[list[Member]], tuple[float, float]], ...] = (
        lambda equals: (choice(equals), -equals[0].request.size),
        lambda equals: (-equals[0].request.size, choice(equals)),
        lambda equals: (spare(equals), -equals[0].request.size),
    )
    found = yield from _packed(gang, Board(index, gang.limits, gang.peers), orders[0])
    several_models = len({member.request.model for member in gang.members}) > 1
    if isinstance(found, _Misfit) and (several_models or any(member.candidates is not None for member in gang.members)):
        for order in orders[1:]:
            other = yield from _packed(gang, Board(index, gang.limits, gang.peers), order)
            if not isinstance(other, _Misfit):
                return other
    return _refuse(gang, found) if isinstance(found, _Misfit) else found


def _packed(
    gang: GangRequest, board: "Board", key: Callable[[list[Member]], tuple[float, float]]
) -> "Steps[list[Seat] | _Misfit]":
    seats: dict[str, Seat] = {}
    kinds: dict[tuple[int, ChipRequest], list[Member]] = {}
    for member in gang.members:
        kinds.setdefault((id(member.candidates), member.request), []).append(member)
    for equals in sorted(kinds.values(), key=key):
        request, allowed = equals[0].request, gang.allowed(equals[0])
        if not seats and (room := board.room(request, allowed)) < len(equals):
            return _Misfit(board, request, allowed, room, equals=len(equals))
        found = yield from board.take(request, len(equals), allowed)
        if len(found) < len(equals):
            return _Misfit(board, request, allowed, len(seats) + len(found))
        for member, (node, take) in zip(equals, sorted(found), strict=True):
            seats[member.uid] = Seat(member.uid, member.pod, node, take)
    return [seats[member.uid] for member in gang.members]


class _Misfit(msgspec.Struct, frozen=True):
    """Not all members fit.

    Attributes:
        board: the board with those that do.
        request: what the next one requests.
        allowed: names of the only nodes for the next one; None for every node.
        fitting: the number of members that fit.
        equals: how many members are like the next one, if no member was placed on the board; ``fitting`` of these would
            fit, and the others were not examined. 0 if members were placed.
    """

    board: Board
    request: ChipRequest
    allowed: Collection[str] | None
    fitting: int
    equals: int = 0


def _refuse(gang: GangRequest, misfit: _Misfit) -> Refusal:
    request, is_single = misfit.request, len(gang.members) == 1
    # Without the pod's name: the refusal is cached for peers with an equal request.
    if is_single:
        what = f"one of its pods ({request.what}) must join its peers and does not fit;"
    else:
        fitting = f"only {count(misfit.fitting, 'fits', 'fit')} at once" if misfit.fitting else "none fits"
        beside = f"beside {'it' if misfit.fitting == 1 else 'these'}, " if misfit.fitting else ""
        next_one = f"{beside}for {'another' if misfit.fitting else 'the first'} one ({request.what})"
        if misfit.equals == 1:
            fitting = "one of them fits on no node"
            next_one = f"for this one ({request.what})"
        elif 0 < misfit.equals < len(gang.members):
            fitting = f"of {misfit.equals} equal ones {fitting}"
        what = f"{len(gang.members)} pods must be placed together and {fitting}; {next_one}"
    reasons = misfit.board.reasons(request, misfit.allowed, is_full=misfit.equals > 0)
    # In a defined order, so that the same state gives the same sentence.
    ordered = sorted(reasons.items(), key=lambda counted: (-counted[1], counted[0]))
    if ordered:
        rule = (
            misfit.board.broken_rule(request, misfit.allowed)
            if any(reason.category is Category.REQUEST for reason in reasons)
            else ""
        )
        refusing = f"the nodes refuse: {', '.join(f'{number} {reason}' for reason, number in ordered)}{rule}"
    else:
        refusing = "there is no node" if misfit.allowed is None else "no node matches its node selector and affinity"
    for keeper, nodes in sorted(misfit.board.keepers(misfit.allowed).items()):
        refusing += f"; chips on {count(nodes, 'node')} are kept for {keeper}"
    return Refusal(Reason.GANG_DOES_NOT_FIT, f"job {gang.job}: {what} {refusing}")
