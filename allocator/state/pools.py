"""Which nodes carry the labels that a pod's node selector asks for.

Labels rarely change and many pods have the same selectors: nodes are sorted by a label once, when first asked for it.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final

from allocator.state.node import NodeRecord

_KEYS: Final = 64
"""Labels remembered at most; anybody who may create pods chooses what is asked for."""


class NodePools:
    """Finds nodes by label.

    Args:
        records: the nodes, by name.
    """

    def __init__(self, records: Mapping[str, NodeRecord]) -> None:
        self._records = records
        self._names: dict[str, Mapping[str, frozenset[str]]] = {}

    def forget(self) -> None:
        """The labels of a node have changed."""
        self._names.clear()

    def selected(self, selector: Mapping[str, str]) -> Collection[str]:
        """The names of the nodes with all these labels."""
        if not selector:
            return frozenset(name for name, record in self._records.items() if record.node is not None)
        return frozenset.intersection(*(self._by(key).get(value, frozenset()) for key, value in selector.items()))

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
