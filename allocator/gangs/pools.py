"""Which nodes the pods of a gang may be on, as far as that is known when one of them is asked about."""

from collections.abc import Collection, Mapping

from allocator.state.pools import NodePools


class MemberPools:
    """The nodes each pod may be on.

    Args:
        nodes: finds nodes by label.
        selector: the node selector of the pod that is asked about.
        candidates: the only nodes for pods with that selector; None where it alone decides.
    """

    def __init__(self, nodes: NodePools, selector: Mapping[str, str], candidates: Collection[str] | None) -> None:
        self._nodes = nodes
        self._selector = selector
        self._others: dict[frozenset[tuple[str, str]], Collection[str]] = {}
        self.common = nodes.selected(selector) if candidates is None and selector else candidates
        """The only nodes for pods with that selector; None for all."""

    def of(self, selector: Mapping[str, str]) -> Collection[str] | None:
        """The only nodes for a pod with this selector, where these are not the common ones."""
        if selector == self._selector:
            return None
        key = frozenset(selector.items())
        if key not in self._others:
            self._others[key] = self._nodes.selected(selector)
        return self._others[key]
