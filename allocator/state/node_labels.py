"""Finds the nodes that match a node selector or a required node affinity, and the products of these nodes.

Many pods have the same selectors, and at any time a node may come or get other labels. So nodes are grouped by a label,
and products counted by selector, when these are needed first; after that a change of a node takes constant time.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from allocator.rules.node_affinity import admits
from allocator.rules.taints import untolerated
from allocator.state.node import NodeRecord
from ascend.kube.objects import PodSpec, Taint
from ascend.products import Product
from ascend.rules.identity import ACCELERATOR_TYPE

_ANY: Final = PodSpec()
_LIMIT: Final = 64
"""The most labels, and selectors, that are followed: any author of pods can add new ones."""


class Marks(NamedTuple):
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
    def of(cls, record: NodeRecord) -> "Marks":
        """Those of a node."""
        if record.node is None:
            return cls(None, record.product)
        return cls(record.node.metadata.labels, record.product, record.node.spec.taints)


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
        self._products: dict[frozenset[tuple[str, str]], Counter[str]] = {frozenset(): Counter()}
        self._selected: dict[tuple[str, str], frozenset[str]] = {}
        self._eligible: dict[object, tuple[int, frozenset[str]]] = {}

    def changed(self, name: str, old: Marks, new: Marks) -> None:
        """Take over that the labels, the taints or the product of a node have changed."""
        self.version += 1
        for each, step in ((old, -1), (new, 1)):
            if each.labels is not None and each.product is not None:
                for selector, products in self._products.items():
                    if selector <= each.labels.items():
                        products[each.product.name] += step
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

    def selected(self, selector: Mapping[str, str]) -> Collection[str]:
        """The names of the nodes that match a node selector."""
        if not selector:
            return frozenset(name for name, record in self._records.items() if record.node is not None)
        return frozenset.intersection(*(self._with(*label) for label in selector.items()))

    def admitting(self, spec: PodSpec) -> Collection[str]:
        """The names of the nodes that match the node selector and the required node affinity of a pod."""
        names = self.selected(spec.node_selector)
        if spec.affinity is None:
            return names
        return [name for name in names if admits(spec.affinity, name, self._labels(name))]

    def products(self, spec: PodSpec = _ANY) -> frozenset[str]:
        """The names of the products of the nodes that selector, affinity and tolerations of a pod allow."""
        found = self._products_of(spec.node_selector)
        if len(found) <= 1:  # nearly always
            return found
        key = spec.node_requirements, spec.tolerations
        known = self._eligible.get(key)
        if known is None or known[0] != self.version:
            if len(self._eligible) >= _LIMIT:
                self._eligible.clear()
            records = (self._records[name] for name in self.admitting(spec))
            products = frozenset(
                record.product.name
                for record in records
                if record.product is not None
                and record.node is not None
                and untolerated(record.node.spec.taints, spec.tolerations) is None
            )
            known = self._eligible[key] = self.version, products
        return known[1]

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

    def _products_of(self, selector: Mapping[str, str]) -> frozenset[str]:
        """The names of the products of the nodes that match a node selector, usable or not."""
        key = frozenset(selector.items())
        found = self._products.get(key)
        if found is None:
            if len(self._products) >= _LIMIT:
                self._products = {frozenset(): self._products[frozenset()]}
            products = (self._records[name].product for name in self.selected(selector))
            found = self._products[key] = Counter(each.name for each in products if each is not None)
        return frozenset(name for name, number in found.items() if number)

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
