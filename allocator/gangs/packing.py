"""The policy for gangs without a topology of their own: every pod where it would be placed alone, all at once.

All of them are on servers of one product: that of the peers which are placed already, else the first that takes all.
Only those that name different ones themselves go to these, and the others are on servers of one product then.

Large pods come first, so that small ones don't break what they need; equal pods are interchangeable, so each kind of
asking is one merge over the buckets of the index: a node is looked at when a pod goes there, and only then. The result
is that of placing the pods one after the other (a test says so), at a few microseconds a pod. Consecutive ranks then
get neighbouring seats: a node is filled before the next one is begun, in the order of names.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator

import msgspec
from msgspec.structs import replace

from allocator.gangs.policy import GangRequest, Member
from allocator.rules.placement import OrderKey
from allocator.rules.request import Ask
from allocator.rules.vacancy import Fit, Vacancy, Verdict, capacity, judge
from allocator.state.index import NodeIndex
from allocator.state.ranking import Bucket
from allocator.state.reservation import Seat
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.products import PRODUCTS

_FEW = 16
"""So few candidates are looked at one by one; with more, all nodes are, bucket by bucket."""


def pack(request: GangRequest, index: NodeIndex) -> list[Seat] | Refusal:
    """Seats for all members, or why not; see the policy's type."""
    misfits: list[_Misfit] = []
    for products, choice in _choices(request, index):
        found = _pack_on(products, choice, index)
        if not isinstance(found, _Misfit):
            return found
        misfits.append(found)
    return _refuse(request, misfits)


def _choices(request: GangRequest, index: NodeIndex) -> list[tuple[frozenset[str], GangRequest]]:
    """The products to try, one after the other: where none is given, each that is there, in the order of preference.

    Members that name different ones go to those, and what is tried is where the others stay together.
    """
    if request.products is not None:
        return [(request.products, request)]
    there = frozenset(bucket.vacancy.product.name for bucket in index.buckets)
    choices = [frozenset({name}) for name in PRODUCTS if name in there] or [frozenset()]
    if not request.is_apart:
        return [(products, request) for products in choices]
    if all(member.named is not None for member in request.members):
        return [(there, request)]
    return [
        (there, replace(request, members=tuple(member.joining(products) for member in request.members)))
        for products in choices
    ]


def _pack_on(products: frozenset[str], request: GangRequest, index: NodeIndex) -> "list[Seat] | _Misfit":
    # Those with few nodes choose first: the others have more to choose from. Where a small one then breaks what a large
    # one needs, the large ones do; and where they take what many others can't do without, those with least to spare.
    def choice(equals: list[Member]) -> float:
        allowed = request.allowed(equals[0])
        return math.inf if allowed is None else len(allowed)

    untouched = _Board(index, products)

    def spare(equals: list[Member]) -> float:
        return untouched.room(equals[0].ask, request.allowed(equals[0])) - len(equals)

    orders: tuple[Callable[[list[Member]], tuple[float, float]], ...] = (
        lambda equals: (choice(equals), -equals[0].ask.chips),
        lambda equals: (-equals[0].ask.chips, choice(equals)),
        lambda equals: (spare(equals), -equals[0].ask.chips),
    )
    found = _packed(request, _Board(index, products), orders[0])
    if isinstance(found, _Misfit) and any(each.candidates is not None for each in request.members):
        for order in orders[1:]:
            other = _packed(request, _Board(index, products), order)
            if not isinstance(other, _Misfit):
                return other
    return found


def _packed(
    request: GangRequest, board: "_Board", key: Callable[[list[Member]], tuple[float, float]]
) -> "list[Seat] | _Misfit":
    seats: dict[str, Seat] = {}
    kinds: dict[tuple[int, Ask], list[Member]] = {}
    for member in request.members:
        kinds.setdefault((id(member.candidates), member.ask), []).append(member)
    for equals in sorted(kinds.values(), key=key):
        ask, allowed = equals[0].ask, request.allowed(equals[0])
        if not seats and (room := board.room(ask, allowed)) < len(equals):
            return _Misfit(board, ask, allowed, room, full=True)
        found = board.take(ask, len(equals), allowed)
        if len(found) < len(equals):
            return _Misfit(board, ask, allowed, len(seats) + len(found))
        for member, (node, chips) in zip(equals, sorted(found), strict=True):
            seats[member.uid] = Seat(member.uid, member.pod, node, chips)
    return [seats[member.uid] for member in request.members]


class _Board:
    """The servers of some products as they would be with what was taken so far."""

    def __init__(self, index: NodeIndex, products: frozenset[str]) -> None:
        self.products = products
        self._index = index
        self._buckets = [bucket for bucket in index.buckets if bucket.vacancy.product.name in products]
        self._changed: dict[str, Vacancy] = {}

    def take(self, ask: Ask, count: int, candidates: Collection[str] | None) -> list[tuple[str, tuple[int, ...]]]:
        """Nodes and chips for so many pods, or for as many as fit."""
        if count == 1 and not self._changed:
            return self._take_one(ask, candidates)
        heap = list(self._entries(ask, candidates))
        heapq.heapify(heap)
        memo: dict[int, tuple[Vacancy, dict[ChipSet, tuple[Vacancy, Verdict]]]] = {}
        taken: list[tuple[str, tuple[int, ...]]] = []
        while heap and len(taken) < count:
            entry = heap[0]
            taken.append((entry.name, entry.fit.chips))
            # Nodes that were equal stay equal: what becomes of one is worked out once. Looked up by identity, which is
            # much faster than by value; that the vacancy is remembered keeps its identity from being used again.
            _, steps = memo.setdefault(id(entry.vacancy), (entry.vacancy, {}))
            step = steps.get(entry.fit.taken)
            if step is None:
                left = entry.vacancy.without(entry.fit.taken)
                step = steps[entry.fit.taken] = (left, judge(left, ask))
            left, verdict = step
            self._changed[entry.name] = left
            following = entry.following()
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, following)
            if isinstance(verdict, Fit):
                heapq.heappush(heap, _Entry(verdict.key, entry.name, left, verdict, iter(())))
        return taken

    def room(self, ask: Ask, candidates: Collection[str] | None) -> int:
        """How many such pods fit where nothing was taken yet: counted, and nobody is placed."""
        return sum(
            nodes * capacity(bucket.vacancy, ask)[0]
            for bucket, nodes in self._index.buckets_of(candidates)
            if bucket.vacancy.product.name in self.products
        )

    def _take_one(self, ask: Ask, candidates: Collection[str] | None) -> list[tuple[str, tuple[int, ...]]]:
        # The index knows the best place for one pod without looking at the others.
        products = self.products if ask.peers is None else self.products & ask.peers
        ask = replace(ask, peers=products)
        best = self._index.best(ask, candidates)
        vacancy = self._index.vacancy_for(ask, best[0]) if best is not None else None
        if best is None or vacancy is None:
            return []
        name, fit = best
        self._changed[name] = vacancy.without(fit.taken)
        return [(name, fit.chips)]

    def reasons(self, ask: Ask, candidates: Collection[str] | None, *, full: bool) -> Counter[str]:
        """How many nodes would refuse for which reason; full where nobody was placed though as many as fit could be."""
        if full:
            return self._index.reasons_when_full(ask, candidates)
        reasons = self._index.reasons(ask, candidates)
        standing, ranking = self._index.standing, self._index.ranking(ask)
        for name, vacancy in self._changed.items():
            place = standing[name]
            if isinstance(place, Bucket) and (candidates is None or name in candidates):
                for verdict, more in ((ranking.verdict(place), -1), (judge(vacancy, ask), 1)):
                    if isinstance(verdict, Refusal):
                        reasons[verdict.reason] += more
        return +reasons

    def _entries(self, ask: Ask, candidates: Collection[str] | None) -> Iterator["_Entry"]:
        ranking = self._index.ranking(ask)
        if candidates is not None and len(candidates) <= _FEW:
            yield from self._entries_of(ask, candidates)
            return
        for bucket in self._buckets:
            fit = ranking.verdict(bucket)
            if isinstance(fit, Fit):
                names = (name for name in bucket if name not in self._changed)
                allowed = names if candidates is None else (name for name in names if name in candidates)
                ordered = iter(sorted(allowed))
                if (first := next(ordered, None)) is not None:
                    yield _Entry(fit.key, first, bucket.vacancy, fit, ordered)
        for name, vacancy in self._changed.items():
            verdict = judge(vacancy, ask)
            if isinstance(verdict, Fit) and (candidates is None or name in candidates):
                yield _Entry(verdict.key, name, vacancy, verdict, iter(()))

    def _entries_of(self, ask: Ask, candidates: Collection[str]) -> Iterator["_Entry"]:
        for name in candidates:
            place, vacancy = self._index.standing.get(name), self._changed.get(name)
            if vacancy is None and isinstance(place, Bucket):
                vacancy = place.vacancy
            if vacancy is None or vacancy.product.name not in self.products:
                continue
            verdict = judge(vacancy, ask)
            if isinstance(verdict, Fit):
                yield _Entry(verdict.key, name, vacancy, verdict, iter(()))


class _Entry:
    """The next node of a bucket, or a node that was taken from."""

    __slots__ = ("fit", "name", "others", "sort", "vacancy")

    def __init__(self, key: OrderKey, name: str, vacancy: Vacancy, fit: Fit, others: Iterator[str]) -> None:
        self.sort = (key, name)
        self.name = name
        self.vacancy = vacancy
        self.fit = fit
        self.others = others

    def __lt__(self, other: "_Entry") -> bool:
        return self.sort < other.sort

    def following(self) -> "_Entry | None":
        """The bucket's next node."""
        name = next(self.others, None)
        return None if name is None else _Entry(self.sort[0], name, self.vacancy, self.fit, self.others)


class _Misfit(msgspec.Struct, frozen=True):
    """Not all members fit on servers of some products.

    Attributes:
        board: with those that do.
        ask: what the next one asks for.
        allowed: the only nodes for that one; None for all.
        fitting: how many do.
        full: nobody was placed on the board, but as many fit as would ask for the same.
    """

    board: _Board
    ask: Ask
    allowed: Collection[str] | None
    fitting: int
    full: bool = False


def _refuse(request: GangRequest, misfits: list[_Misfit]) -> Refusal:
    best = max(misfits, key=lambda each: each.fitting)
    ask, products = best.ask, " or ".join(sorted(best.board.products))
    alone = len(request.members) == 1
    # Not by name: what is said of one pod is remembered for others that ask for the same.
    who = "a pod of it" if alone else f"{len(request.members)} pods"
    together, fitting, where = "has to join its peers" if alone else "must be placed together", str(best.fitting), ""
    if request.products is not None:
        together += f" on {products} servers" + (", where the other pods of the job are," if not alone else "")
    elif len(misfits) > 1 and not request.is_apart:
        together += " on servers of one product"
        each_fits = [f"{each.fitting} on {name}" for each in misfits if each.fitting for name in each.board.products]
        fitting, where = ", ".join(each_fits) or fitting, f" on {products}"
    if request.products is not None or (len(misfits) > 1 and not request.is_apart):
        # So that servers of other products are counted as such, whatever is free on them.
        ask = replace(ask, peers=best.board.products)
    reasons = best.board.reasons(ask, best.allowed, full=best.full)
    # In an order of its own, so that the same state gives the same sentence.
    ordered = sorted(reasons.items(), key=lambda each: (-each[1], each[0]))
    chips = "chip" if ask.chips == 1 else "chips"
    if ordered:
        refusing = f"the nodes refuse: {', '.join(f'{count} {reason}' for reason, count in ordered)}"
    else:
        refusing = "there is no node" if best.allowed is None else "no node has what its node selector asks for"
    return Refusal(
        "GangDoesNotFit",
        f"job {request.job}: {who} {together} and {'does not fit' if alone else f'only {fitting} fit at once'}; "
        f"for {'one' if alone else 'another one'} of {ask.chips} {chips}{where} {refusing}",
    )
