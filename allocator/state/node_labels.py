"""Finds the nodes that match a node selector or a required node affinity, and the products of these nodes.

Many pods have the same selectors, and at any time a node may come or get other labels. So nodes are grouped by product,
and by a label when that is needed first; after that a change of a node takes constant time.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import and_
from typing import Final, NamedTuple, TypeAlias

from allocator.rules.node_constraints import Requirement, Term, admits, required_terms, untolerated
from allocator.state.node import NodeRecord
from ascend.kube.objects import NodeRequirements, PodSpec, Taint
from ascend.products import Product
from ascend.rules.identity import ACCELERATOR_TYPE, chip_model

_ANY: Final = PodSpec()
_OF_STATE: Final = "node.kubernetes.io/"
"""How the keys of taints begin by which Kubernetes itself tells of the state of a node."""
_LIMIT: Final = 64
"""The most labels, selectors and affinities that are followed: any author of pods can add new ones."""
_MOST_LARGE: Final = 16
"""The most affinities that are followed if each admits every node: the names of 65,000 nodes take megabytes."""


_Kind: TypeAlias = tuple[str, str]
"""The name of a product, and the model of the chips; empty if that is unknown."""


class NodeMarks(NamedTuple):
    """By what a node is found.

    Attributes:
        labels: its labels; None if there is no node.
        product: its product; None if it is unknown.
        taints: its taints.
    """

    labels: Mapping[str, str] | None
    product: Product | None
    taints: tuple[Taint, ...] = ()

    @classmethod
    def of(cls, record: NodeRecord) -> "NodeMarks":
        """Those of a node."""
        if record.node is None:
            return cls(None, record.product)
        return cls(record.node.metadata.labels, record.product, record.node.spec.taints)

    @property
    def kind(self) -> _Kind | None:
        """The product of a node that exists, and the model of its chips."""
        if self.labels is None or self.product is None:
            return None
        return self.product.name, chip_model(self.labels)


class NodeLabels:
    """Finds nodes by label.

    Args:
        records: the nodes, by name.

    Attributes:
        version: incremented when the labels, the taints or the product of a node have changed.
    """

    def __init__(self, records: Mapping[str, NodeRecord]) -> None:
        self.version = 0
        self._records = records
        # The first are needed in any cluster, and reading all nodes of a large one takes milliseconds.
        self._names: dict[str, dict[str, set[str]]] = {ACCELERATOR_TYPE: {}}
        # A dict of texts is not walked by the garbage collector, unlike a set.
        self._of_kind: dict[_Kind, dict[str, None]] = {}
        self._selected: dict[tuple[str, str], frozenset[str]] = {}
        self._every: frozenset[str] | None = None
        self._admitted: dict[tuple[Term, ...], frozenset[str]] = {}
        self._kinds: dict[object, tuple[int, frozenset[_Kind]]] = {}

    def on_change(self, name: str, old: NodeMarks, new: NodeMarks) -> None:
        """Take over that the labels, the taints or the product of a node have changed."""
        self.version += 1
        if old.kind != new.kind:
            if old.kind is not None:
                del self._of_kind[old.kind][name]
            if new.kind is not None:
                self._of_kind.setdefault(new.kind, {})[name] = None
        if old.labels is not new.labels:
            self._relabel(name, old.labels, new.labels)

    def _relabel(self, name: str, old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> None:
        if old is None or new is None:
            self._every = None
        before, after = old or {}, new or {}
        for terms, admitted in tuple(self._admitted.items()):
            is_admitted = new is not None and any(term.admits(name, new) for term in terms)
            if is_admitted is not (name in admitted):
                del self._admitted[terms]
        for key, names in self._names.items():
            if before.get(key) != after.get(key):
                if (value := before.get(key)) is not None:
                    self._selected.pop((key, value), None)
                    names[value].discard(name)
                if (value := after.get(key)) is not None:
                    self._selected.pop((key, value), None)
                    names.setdefault(value, set()).add(name)

    def admits(self, name: str, spec: PodSpec) -> bool:
        """Whether a node exists that matches the node selector and the required node affinity of a pod."""
        record = self._records.get(name)
        if record is None or record.node is None:
            return False
        labels = record.node.metadata.labels
        return all(labels.get(key) == value for key, value in spec.node_selector.items()) and (
            spec.affinity is None or admits(spec.affinity, name, labels)
        )

    def admitting(self, spec: PodSpec) -> frozenset[str]:
        """The names of the nodes that match the node selector and the required node affinity of a pod."""
        names = self.only(spec.node_requirements)
        return names if names is not None else self.all()

    def only(self, requirements: NodeRequirements) -> frozenset[str] | None:
        """The same; None for every node."""
        selector, affinity = requirements
        # Of one label without a copy.
        selected = reduce(and_, (self._with(*label) for label in selector)) if selector else None
        terms = required_terms(affinity)
        if terms is None:
            return selected
        admitted = self._admitted.get(terms)
        if admitted is None:
            kept = sum(map(len, self._admitted.values()))
            if len(self._admitted) >= _LIMIT or kept >= _MOST_LARGE * len(self.all()):
                self._admitted.clear()
            admitted = self._admitted[terms] = frozenset[str]().union(*map(self.matching, terms))
        return admitted if selected is None else admitted & selected

    def products(self, spec: PodSpec = _ANY) -> frozenset[str]:
        """The names of the products of the nodes that selector, affinity and tolerations of a pod allow."""
        return frozenset(product for product, _ in self._kinds_for(spec))

    def models(self, spec: PodSpec, products: Collection[str] | None) -> frozenset[str]:
        """The known models of the chips of these nodes; only those of some products, None for any."""
        kinds = self._kinds_for(spec)
        return frozenset(model for product, model in kinds if model and (products is None or product in products))

    def _kinds_for(self, spec: PodSpec) -> frozenset[_Kind]:
        key = spec.node_requirements, spec.tolerations
        known = self._kinds.get(key)
        if known is None or known[0] != self.version:
            if len(self._kinds) >= _LIMIT:
                self._kinds.clear()
            known = self._kinds[key] = self.version, self._read_kinds(spec)
        return known[1]

    def _read_kinds(self, spec: PodSpec) -> frozenset[_Kind]:
        only, kinds = self.only(spec.node_requirements), {kind: names for kind, names in self._of_kind.items() if names}
        if only is not None:
            kinds = {kind: names for kind, names in kinds.items() if not names.keys().isdisjoint(only)}
        if len(kinds) <= 1:  # nearly always
            return frozenset(kinds)
        # Of most kinds the first node is allowed, so few are looked at.
        return frozenset(
            kind
            for kind, names in kinds.items()
            if any((only is None or name in only) and self._is_tolerated(name, spec) for name in names)
        )

    def matching(self, term: Term) -> frozenset[str]:
        """The names of the nodes that a term admits."""
        if not term.match_expressions and not term.match_fields:
            return frozenset()
        names = reduce(and_, map(self._meeting, term.match_expressions)) if term.match_expressions else self.all()
        for field in term.match_fields:
            names = names.intersection(field.values) if field.operator == "In" else names
        return frozenset(name for name in names if term.admits_name(name)) if term.match_fields else names

    def _meeting(self, asked: Requirement) -> frozenset[str]:
        """The names of the nodes with a label as required: found by values, as these are fewer than nodes."""
        by_value = self._by(asked.key)
        if asked.admits(None):
            return self.all().difference(*(names for value, names in by_value.items() if not asked.admits(value)))
        values = asked.values if asked.operator == "In" else by_value
        return frozenset[str]().union(*(by_value.get(value, ()) for value in values if asked.admits(value)))

    def _is_tolerated(self, name: str, spec: PodSpec) -> bool:
        """Whether the taints of a node allow a pod: those that last."""
        node = self._records[name].node
        # What passes, as a cordon or a node that is not ready for a moment, must not decide on the product of a job.
        lasting = (taint for taint in node.spec.taints if not taint.key.startswith(_OF_STATE)) if node else ()
        return untolerated(lasting, spec.tolerations) is None

    def kind_of(self, name: str) -> tuple[str, str] | None:
        """The product of a node, and the model of its chips, empty if that is unknown; None without a product."""
        record = self._records.get(name)
        return NodeMarks.of(record).kind if record is not None else None

    def only_product(self, names: Iterable[str]) -> str | None:
        """The name of the product of these nodes; None if they are of several products, or of unknown ones only."""
        found = None
        for name in names:
            record = self._records.get(name)
            if record is None or record.product is None:
                continue
            if found not in {None, record.product.name}:
                return None
            found = record.product.name
        return found

    def all(self) -> frozenset[str]:
        """The names of all nodes that exist."""
        if self._every is None:
            self._every = frozenset(name for name, record in self._records.items() if record.node is not None)
        return self._every

    def _with(self, key: str, value: str) -> frozenset[str]:
        """The names of the nodes with a label."""
        found = self._selected.get((key, value))
        if found is None:
            if len(self._selected) >= _LIMIT:
                self._selected.clear()
            found = self._selected[key, value] = frozenset(self._by(key).get(value, ()))
        return found

    def _by(self, key: str) -> Mapping[str, Collection[str]]:
        """The names of the nodes, by their value of a label."""
        names = self._names.get(key)
        if names is None:
            if len(self._names) >= _LIMIT:
                self._names = {ACCELERATOR_TYPE: self._names[ACCELERATOR_TYPE]}
            names = self._names[key] = {}
            for name, record in self._records.items():
                if record.node is not None and (value := record.node.metadata.labels.get(key)) is not None:
                    names.setdefault(value, set()).add(name)
        return names
