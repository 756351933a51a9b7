"""The nodes of each SuperPod, each rack and each leaf switch, by what they have left.

A policy with blocks asks how many nodes of each SuperPod a request fits on. Nodes with equal vacancies are in one
bucket of the index (``index.py``), so that is one verdict for each bucket that a SuperPod has nodes in, not for each
node. A location is not part of a vacancy: then every bucket would be one node.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from allocator.rules.verdicts import Fit, Verdict
from allocator.state.location import NOWHERE, Level, Location
from allocator.state.ranking import Bucket


class TopologyDomain:
    """The usable nodes of a SuperPod, of a rack or of a leaf switch."""

    __slots__ = ("_nodes",)

    def __init__(self) -> None:
        self._nodes: dict[Bucket, set[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._nodes)

    def copy(self) -> "TopologyDomain":
        """The same nodes."""
        copied = TopologyDomain()
        copied._nodes = {bucket: set(names) for bucket, names in self._nodes.items()}
        return copied

    def add(self, name: str, bucket: Bucket) -> None:
        """Add a node that is in a bucket of the index."""
        self._nodes.setdefault(bucket, set()).add(name)

    def discard(self, name: str, bucket: Bucket) -> None:
        """Remove a node."""
        names = self._nodes[bucket]
        names.discard(name)
        if not names:
            del self._nodes[bucket]

    def buckets(self) -> Iterable[tuple[Bucket, AbstractSet[str]]]:
        """The buckets, each with the names of its nodes here."""
        return self._nodes.items()

    def fitting(self, verdict: Callable[[Bucket], Verdict]) -> Iterator[tuple[Bucket, AbstractSet[str]]]:
        """The buckets on which a request fits, each with the names of its nodes here."""
        return ((bucket, names) for bucket, names in self._nodes.items() if isinstance(verdict(bucket), Fit))


class Topology:
    """Where nodes are, and the usable ones of each place.

    Args:
        locations: where nodes are.

    Attributes:
        locations: the same, without nodes that are nowhere: most clusters have no SuperPods or known switches.
    """

    def __init__(self, locations: Mapping[str, Location] | None = None) -> None:
        self.locations: dict[str, Location] = dict(locations) if locations is not None else {}
        self._places: dict[Level, dict[int, TopologyDomain]] = {level: {} for level in Level}

    def copy(self) -> "Topology":
        """The same locations, without any usable node."""
        return Topology(self.locations)

    def fork(self, names: Iterable[str]) -> "Topology":
        """The same nodes; a change of these, which are usable, does not show here."""
        other = Topology()
        other.locations = self.locations
        other._places = {level: dict(places) for level, places in self._places.items()}
        for name in names:
            for level, number in self.location(name).places:
                other._places[level][number] = self._places[level][number].copy()
        return other

    def locate(self, name: str, location: Location, bucket: Bucket | None) -> bool:
        """Set where a node is; returns whether it was elsewhere.

        Args:
            name: the node.
            location: where it is.
            bucket: its bucket; None if it is not usable.
        """
        if location == self.location(name):
            return False
        if bucket is not None:
            self.drop(name, bucket)
        if location is NOWHERE:
            self.locations.pop(name, None)
        else:
            self.locations[name] = location
        if bucket is not None:
            self.put(name, bucket)
        return True

    def has_left(self, name: str, level: Level, place: int) -> bool:
        """Whether a node is no longer in a place; never for a negative id."""
        return place >= 0 and self.location(name).place(level) != place

    def location(self, name: str) -> Location:
        """Where a node is."""
        return self.locations.get(name, NOWHERE)

    def put(self, name: str, bucket: Bucket) -> None:
        """Add a usable node, which is in a bucket of the index."""
        location = self.locations.get(name)
        if location is not None:
            for level, number in location.places:
                places = self._places[level]
                if (place := places.get(number)) is None:
                    place = places[number] = TopologyDomain()
                place.add(name, bucket)

    def drop(self, name: str, bucket: Bucket) -> None:
        """Remove a node that was put."""
        location = self.locations.get(name)
        if location is not None:
            for level, number in location.places:
                place = self._places[level][number]
                place.discard(name, bucket)
                if not place:
                    del self._places[level][number]

    def places(self, level: Level) -> Mapping[int, TopologyDomain]:
        """The places with usable nodes, by id."""
        return self._places[level]
