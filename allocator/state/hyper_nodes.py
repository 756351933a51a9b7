"""The HyperNodes of Volcano: groups of nodes that are near to each other in the network, each with a tier.

The lower the tier, the nearer its nodes. A HyperNode names its nodes, or HyperNodes of lower tiers, of which it has the
nodes, so there are no cycles: one whose tier is not lower is left out. What can't be read costs only itself.

Only jobs that ask for it need the nodes of HyperNodes, so these are found when such a job is placed.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from string import ascii_lowercase, digits
from typing import Final

import msgspec

from allocator.rules.node_constraints import Requirement, Term
from allocator.state.node_labels import NodeLabels
from ascend.grammar import several
from ascend.kube.kept import LONGEST, short
from ascend.kube.objects import KubeObject, Resource
from ascend.turn import Steps, at_once

HYPER_NODE: Final = "HyperNode"
_MOST: Final = 20_000
"""The most HyperNodes that are read."""
_MOST_NAMES: Final = 200_000
"""The most names of nodes that are compared with expressions at one time: at about 8 µs each."""
_LAST: Final = "\U0010ffff"
_LONGEST_EXPRESSION: Final = 256
_LARGEST: Final = 1_000
"""The most instructions of an expression: the time for a name is proportional to them at worst."""
_LITERAL: Final = frozenset(f"{ascii_lowercase}{digits}-")
_STEP: Final = 64
"""After so many names, or HyperNodes, there may be a pause."""


class _Name(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _Regex(msgspec.Struct, frozen=True, gc=False):
    pattern: str = ""


class _Labels(msgspec.Struct, rename="camel", frozen=True):
    match_labels: dict[str, str] = {}
    match_expressions: tuple[Requirement, ...] = ()

    @property
    def term(self) -> Term:
        equal = (Requirement(key, "In", (value,)) for key, value in self.match_labels.items())
        return Term((*equal, *self.match_expressions))


class _Selector(msgspec.Struct, rename="camel", frozen=True):
    exact_match: _Name | None = None
    regex_match: _Regex | None = None
    label_match: _Labels | None = None


class _Member(msgspec.Struct, frozen=True):
    type: str = ""
    selector: _Selector = _Selector()


class HyperNodeSpec(msgspec.Struct, rename="camel", frozen=True):
    """The tier of a HyperNode with its name, and the members."""

    tier: int
    tier_name: str = ""
    members: tuple[_Member, ...] = ()


class HyperNode(KubeObject, frozen=True, kw_only=True):
    """A group of nodes that are near to each other."""

    spec: HyperNodeSpec


HYPER_NODES: Final = Resource(
    HyperNode, HYPER_NODE, "apis/topology.volcano.sh/v1alpha1", "hypernodes", namespaced=False
)


class HyperTree(msgspec.Struct, frozen=True):
    """The HyperNodes with their nodes.

    Attributes:
        tiers: the names of the nodes of each HyperNode, by tier and name; the lowest tier first.
        named: the tiers by their names.
        problems: what can't be read, or is doubtful, a sentence each.
    """

    tiers: Mapping[int, Mapping[str, frozenset[str]]] = {}
    named: Mapping[str, int] = {}
    problems: tuple[str, ...] = ()

    def lowest(self, nodes: Collection[str]) -> tuple[int, str] | None:
        """Tier and name of a HyperNode of the lowest tier that has all of some nodes; None if none has."""
        asked, tiers = frozenset(nodes), self.tiers.items()
        return min(((tier, name) for tier, of in tiers for name, here in of.items() if asked <= here), default=None)


class HyperNodes:
    """The HyperNodes of the cluster.

    Args:
        labels: finds nodes.
        changed: called after one has changed.

    Attributes:
        unreadable: called with a sentence on what can't be read.
    """

    def __init__(self, labels: NodeLabels, *, changed: Callable[[], None]) -> None:
        self.unreadable: Callable[[str], None] = lambda _sentence: None
        self._labels = labels
        self._changed = changed
        self._specs: dict[str, HyperNodeSpec] = {}
        self._wrong: dict[str, str] = {}
        self._tree: tuple[int, HyperTree] | None = None
        self._changes = 0
        # What expressions match of all names of nodes, as long as these are the same.
        self._names: list[str] = []
        self._of: frozenset[str] | None = None
        self._matched: dict[str, frozenset[str] | str] = {}

    def apply(self, hyper_node: HyperNode) -> None:
        """Add or update a HyperNode."""
        self._wrong.pop(hyper_node.name, None)
        if self._specs.get(hyper_node.name) != hyper_node.spec:
            self._specs[hyper_node.name] = hyper_node.spec
            self._renew()

    def delete(self, hyper_node: HyperNode) -> None:
        """Remove a HyperNode."""
        if self._specs.pop(hyper_node.name, None) is not None:
            self._renew()

    def on_unreadable(self, hyper_node: KubeObject, why: str) -> None:
        """Record why a HyperNode can't be read; empty once it is gone. It has no nodes then."""
        self._specs.pop(hyper_node.name, None)
        self._wrong.pop(hyper_node.name, None)
        if why:
            self._wrong[hyper_node.name] = short(why, LONGEST)
        self._renew()

    def clear(self) -> None:
        """Forget all: they are no longer served."""
        self._specs, self._wrong = {}, {}
        self._renew()

    def tree(self) -> HyperTree:
        """The HyperNodes with their nodes now; of a large cluster call ``read`` first."""
        at_once(self.read())
        assert self._tree is not None  # noqa: S101 - it was read
        return self._tree[1]

    def read(self) -> Steps[None]:
        """Read the nodes of all HyperNodes, if any may have changed."""
        known, changes = self._tree, self._changes
        if known is None or known[0] != self._labels.version:
            version, tree = self._labels.version, (yield from self._read())
            if self._changes == changes:
                self._tree = version, tree
                said = known[1].problems if known is not None else ()
                for problem in tree.problems:
                    if problem not in said:
                        self.unreadable(problem)

    def _renew(self) -> None:
        self._tree = None
        self._changes += 1
        self._changed()

    def _read(self) -> Steps[HyperTree]:
        problems = [f"HyperNode {name}: {why}" for name, why in sorted(self._wrong.items())]
        if len(self._specs) > _MOST:
            problems.append(f"of {len(self._specs)} HyperNodes only {_MOST} are read, those of the lowest tiers")
        every = self._labels.all()
        if every is not self._of:
            self._of, self._names, self._matched = every, sorted(every), {}
        nodes: dict[str, frozenset[str]] = {}
        tiers: dict[int, dict[str, frozenset[str]]] = {}
        named: dict[str, int] = {}
        specs = dict(self._specs)  # some may be deleted during a pause
        ordered = sorted(specs.items(), key=lambda item: (item[1].tier, item[0]))[:_MOST]
        budget = [_MOST_NAMES]
        for number, (name, spec) in enumerate(ordered, start=1):
            if not number % _STEP:
                yield
            found = set[str]()
            for member in spec.members:
                part = yield from self._nodes_of(member, spec.tier, nodes, specs, budget)
                if isinstance(part, str):
                    problems.append(f"HyperNode {name}: {part}")
                else:
                    found |= part
            nodes[name] = tiers.setdefault(spec.tier, {})[name] = every & found
            if spec.tier_name and named.setdefault(spec.tier_name, spec.tier) != spec.tier:
                problems.append(f"HyperNode {name}: its tier is {spec.tier}, but that of others with the same tierName "
                    f"is {named[spec.tier_name]}")  # fmt: skip
        for tier, members in tiers.items():
            yield
            problems += _shared(tier, members)
        return HyperTree(tiers, named, tuple(problems))

    def _nodes_of(
        self,
        member: _Member,
        tier: int,
        lower: Mapping[str, frozenset[str]],
        specs: Mapping[str, HyperNodeSpec],
        budget: list[int],
    ) -> Steps[frozenset[str] | str]:
        """The names of the nodes of a member; a part of a sentence if that can't be read."""
        selector = member.selector
        if member.type == "Node":
            return (yield from self._by(selector, budget))
        exact = selector.exact_match.name if selector.exact_match is not None else ""
        if member.type != "HyperNode" or not exact:
            return f"a member of type {member.type[:40]!r} has no selector that is known for it"
        if exact in lower and specs[exact].tier < tier:
            return lower[exact]
        is_known = exact in specs
        return f"its member {exact} {'is left out, whose tier is not lower' if is_known else 'does not exist'}"

    def _by(self, selector: _Selector, budget: list[int]) -> Steps[frozenset[str] | str]:
        if selector.exact_match is not None:
            return frozenset((selector.exact_match.name,))
        if selector.regex_match is not None:
            return (yield from self._matching(selector.regex_match.pattern, budget))
        return self._labels.matching(selector.label_match.term) if selector.label_match is not None else frozenset()

    def _matching(self, text: str, budget: list[int]) -> Steps[frozenset[str] | str]:
        """The names of the nodes that an expression matches."""
        known = self._matched.get(text)
        if known is None:
            matched = self._matched
            known = matched[text] = yield from self._match(text, budget)
        return known

    def _match(self, text: str, budget: list[int]) -> Steps[frozenset[str] | str]:
        import re2  # no other kind of job needs it

        options, names = re2.Options(), self._names
        options.log_errors = False
        why = "it is too long" if len(text) > _LONGEST_EXPRESSION else ""
        try:
            pattern = re2.compile(text[:_LONGEST_EXPRESSION], options)
        except re2.error as error:
            return f"regexMatch {text[:60]!r} can't be read: {short(error.args[0].decode(errors='replace'), LONGEST)}"
        prefix = _prefix(text)
        first, last = bisect_left(names, prefix), bisect_left(names, prefix + _LAST)
        if pattern.programsize > _LARGEST:
            why = "it is too complex"
        elif last - first > budget[0]:
            why = "the expressions of all HyperNodes take too long; begin them with ^ and a name"
        if why:
            return f"regexMatch {text[:60]!r} can't be read: {why}"
        budget[0] -= last - first
        found = []
        for number, name in enumerate(names[first:last], start=1):
            if pattern.search(name):
                found.append(name)
            if not number % _STEP:
                yield
        return frozenset(found)


def _prefix(text: str) -> str:
    """How every name begins that an expression matches; empty if that is not obvious."""
    begun, found = text.startswith("^") and "|" not in text, ""
    for at, char in enumerate(text[1:], start=1) if begun else ():
        if char not in _LITERAL or text[at + 1 : at + 2] in {"*", "?", "{"}:
            break
        found += char
    return found


def _shared(tier: int, members: Mapping[str, frozenset[str]]) -> Iterator[str]:
    """Name the nodes that are in several HyperNodes of one tier: each has them."""
    if sum(map(len, members.values())) > len(frozenset[str]().union(*members.values())):
        numbers = Counter(name for nodes in members.values() for name in nodes)
        names = sorted(name for name, number in numbers.items() if number > 1)
        yield f"in several HyperNodes of tier {tier}: {several('node', names)}"
