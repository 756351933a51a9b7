"""Which nodes carry the labels that a pod's node selector asks for, and of which products these are.

Labels rarely change and many pods have the same selectors: nodes are sorted by a label once, when first asked for it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from allocator.rules.request import Ask
from allocator.state.node import NodeRecord

_KEYS: Final = 64
"""Labels, and selectors, remembered at most; anybody who may create pods chooses what is asked for."""


class NodePools:
    """Finds nodes by label.

    Args:
        records: the nodes, by name.
    """

    def __init__(self, records: Mapping[str, NodeRecord]) -> None:
        self._records = records
        self._names: dict[str, Mapping[str, frozenset[str]]] = {}
        self._products: dict[frozenset[tuple[str, str]], frozenset[str]] = {}

    def forget(self) -> None:
        """The labels of a node have changed, or its product."""
        self._names.clear()
        self._products.clear()

    def selected(self, selector: Mapping[str, str]) -> Collection[str]:
        """The names of the nodes with all these labels."""
        if not selector:
            return frozenset(name for name, record in self._records.items() if record.node is not None)
        return frozenset.intersection(*(self._by(key).get(value, frozenset()) for key, value in selector.items()))

    def named_products(self, selector: Mapping[str, str], ask: Ask) -> frozenset[str] | None:
        """The products that a pod names by what it asks and by the nodes it selects; None: any.

        Whether these nodes have room does not matter, nor which of them a scheduler speaks of.
        """
        there = self._products_of(selector) if selector else frozenset()
        if ask.products is None:
            return there or None
        # Where the two contradict each other no node is left to the pod, whatever it is taken to name.
        return ask.products & there or ask.products

    def _products_of(self, selector: Mapping[str, str]) -> frozenset[str]:
        """The products of the nodes with all these labels, as far as these tell theirs."""
        key = frozenset(selector.items())
        found = self._products.get(key)
        if found is None:
            if len(self._products) >= _KEYS:
                self._products.clear()
            products = (self._records[name].product for name in self.selected(selector))
            found = self._products[key] = frozenset({each.name for each in products if each is not None})
        return found

    def _by(self, key: str) -> Mapping[str, frozenset[str]]:
        """The names of the nodes by their values of a label."""
        known = self._names.get(key)
        if known is not None:
            return known
        names: defaultdict[str, list[str]] = defaultdict(list)
        for name, record in self._records.items():
            if record.node is not None and (value := record.node.metadata.labels.get(key)) is not None:
                names[value].append(name)
        if len(self._names) >= _KEYS:
            self._names.clear()
        found = self._names[key] = {value: frozenset(each) for value, each in names.items()}
        return found
