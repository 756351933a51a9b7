"""Finds the nodes that match a node selector or a required node affinity, and the products of these nodes.

Many pods have the same selectors, and at any time a node may come or get other labels. So nodes are grouped by product,
and by a label when that is needed first; after that a change of a node takes constant time.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from operator import and_
from typing import Final, NamedTuple

from allocator.rules.node_constraints import admits, untolerated
from allocator.state.node import NodeRecord
from ascend.kube.objects import PodSpec, Taint
from ascend.products import Product
from ascend.rules.identity import ACCELERATOR_TYPE

_ANY: Final = PodSpec()
_OF_STATE: Final = "node.kubernetes.io/"
"""How the keys of taints begin by which Kubernetes itself tells of the state of a node."""
_LIMIT: Final = 64
"""The most labels, and selectors, that are followed: any author of pods can add new ones."""


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
    def of_node(self) -> Product | None:
        """The product of a node that exists."""
        return self.product if self.labels is not None else None


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
        self._of_product: dict[str, dict[str, None]] = {}
        self._selected: dict[tuple[str, str], frozenset[str]] = {}
        self._products: dict[object, tuple[int, frozenset[str]]] = {}

    def on_change(self, name: str, old: NodeMarks, new: NodeMarks) -> None:
        """Take over that the labels, the taints or the product of a node have changed."""
        self.version += 1
        if old.of_node is not new.of_node:
            if old.of_node is not None:
                del self._of_product[old.of_node.name][name]
            if new.of_node is not None:
                self._of_product.setdefault(new.of_node.name, {})[name] = None
        if old.labels is not new.labels:
            before, after = old.labels or {}, new.labels or {}
            for key, names in self._names.items():
                if before.get(key) != after.get(key):
                    if (value := before.get(key)) is not None:
                        self._selected.pop((key, value), None)
                        names[value].discard(name)
                    if (value := after.get(key)) is not None:
                        self._selected.pop((key, value), None)
                        names.setdefault(value, set()).add(name)

    def select(self, selector: Mapping[str, str]) -> Collection[str]:
        """The names of the nodes that match a node selector."""
        if not selector:
            return frozenset(name for name, record in self._records.items() if record.node is not None)
        return reduce(and_, (self._with(*label) for label in selector.items()))  # of one label without a copy

    def admitting(self, spec: PodSpec) -> Collection[str]:
        """The names of the nodes that match the node selector and the required node affinity of a pod."""
        names = self.select(spec.node_selector)
        if spec.affinity is None:
            return names
        return [name for name in names if admits(spec.affinity, name, self._labels(name))]

    def products(self, spec: PodSpec = _ANY) -> frozenset[str]:
        """The names of the products of the nodes that selector, affinity and tolerations of a pod allow."""
        key = spec.node_requirements, spec.tolerations
        known = self._products.get(key)
        if known is None or known[0] != self.version:
            if len(self._products) >= _LIMIT:
                self._products.clear()
            known = self._products[key] = self.version, self._read_products(spec)
        return known[1]

    def _read_products(self, spec: PodSpec) -> frozenset[str]:
        by_product = {product: names for product, names in self._of_product.items() if names}
        selected: Collection[str] | None = None
        if spec.node_selector:
            selected = self.select(spec.node_selector)
            by_product = {
                product: names for product, names in by_product.items() if not names.keys().isdisjoint(selected)
            }
        if len(by_product) <= 1:  # nearly always
            return frozenset(by_product)
        # Of most products the first node is allowed, so few are looked at.
        return frozenset(
            product
            for product, names in by_product.items()
            if any((selected is None or name in selected) and self._allows(name, spec) for name in names)
        )

    def _allows(self, name: str, spec: PodSpec) -> bool:
        """Whether affinity and tolerations of a pod allow a node that its selector matches."""
        node = self._records[name].node
        if node is None:
            return False
        # What passes, as a cordon or a node that is not ready for a moment, must not decide on the product of a job.
        lasting = (taint for taint in node.spec.taints if not taint.key.startswith(_OF_STATE))
        return (spec.affinity is None or admits(spec.affinity, name, node.metadata.labels)) and untolerated(
            lasting, spec.tolerations
        ) is None

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

    def _labels(self, name: str) -> Mapping[str, str]:
        node = self._records[name].node
        return node.metadata.labels if node is not None else {}

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
