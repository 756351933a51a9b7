"""Finds the nodes that match a node selector, and their products.

Labels rarely change and many pods have the same selectors, so nodes are grouped by a label when it is first needed.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from allocator.state.node import NodeRecord

_LIMIT: Final = 64
"""The most labels, and selectors, cached: any author of pods can add new ones."""


class NodeLabels:
    """Finds nodes by label.

    Args:
        records: the nodes, by name.

    Attributes:
        version: incremented when the labels or the product of a node have changed.
    """

    def __init__(self, records: Mapping[str, NodeRecord]) -> None:
        self.version = 0
        self._records = records
        self._names: dict[str, Mapping[str, frozenset[str]]] = {}
        self._products: dict[frozenset[tuple[str, str]], frozenset[str]] = {}

    def forget(self) -> None:
        """Drop the caches, after the labels or the product of a node have changed."""
        self.version += 1
        self._names.clear()
        self._products.clear()

    def selected(self, selector: Mapping[str, str]) -> Collection[str]:
        """The names of the nodes that match a node selector."""
        if not selector:
            return frozenset(name for name, record in self._records.items() if record.node is not None)
        return frozenset.intersection(*(self._by(key).get(value, frozenset()) for key, value in selector.items()))

    def products(self, selector: Mapping[str, str]) -> frozenset[str]:
        """The names of the products of the nodes that match a node selector, usable or not."""
        key = frozenset(selector.items())
        found = self._products.get(key)
        if found is None:
            if len(self._products) >= _LIMIT:
                self._products.clear()
            products = (self._records[name].product for name in self.selected(selector))
            found = self._products[key] = frozenset({each.name for each in products if each is not None})
        return found

    def _by(self, key: str) -> Mapping[str, frozenset[str]]:
        """The names of the nodes, by their value of a label."""
        known = self._names.get(key)
        if known is not None:
            return known
        names: defaultdict[str, list[str]] = defaultdict(list)
        for name, record in self._records.items():
            if record.node is not None and (value := record.node.metadata.labels.get(key)) is not None:
                names[value].append(name)
        if len(self._names) >= _LIMIT:
            self._names.clear()
        found = self._names[key] = {value: frozenset(each) for value, each in names.items()}
        return found
