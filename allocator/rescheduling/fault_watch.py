"""Which nodes have faults, and for how long; which pods have failed. Kept current from the state of the cluster."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec

from allocator.rescheduling.faults import FAULT_TYPE, NO_FAULTS, NodeFaults, read_node
from allocator.state.cluster import Cluster
from allocator.state.node import NodeRecord
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.turn import Turn

CONFIRM_S: Final = 2.0
"""A fault of a node counts once it has lasted so long: faults that many nodes report at once are then all known."""
FEW: Final = 3
"""So many nodes may fail at one time, whatever the share; never more than half of them."""
_DARK_ABOVE: Final = 2
_DARK_SHARE: Final = 0.55
"""So many lost nodes of a zone, and more, are the zone."""
_ROUNDING: Final = 1e-9
"""0.29 of 100 nodes are 29, but 28.999999999999996 as a float."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
REGION_LABEL: Final = "topology.kubernetes.io/region"
Zone: TypeAlias = tuple[str, str]
"""Region and name of a zone."""

_WHOLE: Final = "whole"
_SUB_HEALTHY: Final = "sub-healthy"


class _Seen(msgspec.Struct):
    """The faults of a node: all of them, the start of each, and the faults that have lasted."""

    faults: NodeFaults
    since_s: dict[str | int, float]
    lasting: NodeFaults = NO_FAULTS


class Extent(msgspec.Struct, frozen=True):
    """How far faults reach: what keeps pods where they are, in sentences.

    Attributes:
        stopped: why nothing is deleted at all; None if that is not so.
        sub_health_stopped: why pods stay on sub-healthy nodes; None if that is not so.
        dark_zones: the zones that count as cut off, with the reason: pods on their lost nodes stay.
    """

    stopped: str | None = None
    sub_health_stopped: str | None = None
    dark_zones: Mapping[Zone, str] = {}


class FaultWatch:
    """Follows the nodes and the pods.

    Args:
        cluster: nodes, reports and pods.
        not_ready_s: how long a node may be missing or not Ready before its pods are faulty.
        monotonic: the clock, in seconds.
    """

    def __init__(self, cluster: Cluster, not_ready_s: float, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._not_ready_s = not_ready_s
        self._monotonic = monotonic
        self._revision: int | None = None
        self._seen: dict[str, _Seen] = {}
        self._lost_s: dict[str, float] = {}
        self._failed: dict[str, Pod] = {}
        """The bound pods that have failed, or are marked as faulty by another program, by uid."""
        for pod in cluster.pods.values():
            self._on_pod(pod)
        cluster.followers.add(self._on_pod, self._on_deletion)

    async def extent(self, share: float) -> Extent:
        """Return how far the faults reach: so many at one time are a wrong report, or the network.

        Args:
            share: the largest share of the nodes with chips that may have faults at one time.
        """
        # Also nodes that are not Ready yet for long: when many are lost, they don't all fall silent in the same second.
        faulty = {name for name, seen in self._seen.items() if seen.faults.whole or seen.faults.chips} | set(
            self._lost_s
        )
        sub_healthy = {name for name, seen in self._seen.items() if seen.faults.sub_healthy}
        if not faulty and not sub_healthy:
            return Extent()
        nodes_of = {zone: set[str]() for name in self._lost_s if (zone := self._zone(name)) is not None}
        turn, counted, used = Turn(), set[str](), set[str]()
        for name, record in list(self._cluster.nodes.items()):
            await turn.share()
            has_pods = any(uid in self._cluster.pods for uid in record.holdings)
            # Cordoned nodes are known to be out of use; but their pods run on, and must not end with a network either.
            if has_pods or (record.product is not None and not _is_cordoned(record)):
                used.add(name)
                if not _is_cordoned(record):
                    counted.add(name)
            if nodes_of and (zone := self._zone(name)) in nodes_of:
                nodes_of[zone].add(name)
            enough = 2 * max(len(faulty), len(sub_healthy))
            if not nodes_of and enough <= 2 * FEW and len(counted) >= enough:
                return Extent()
        dark: dict[Zone, str] = {}
        for zone, names in nodes_of.items():
            # A server alone in its zone is no zone: then the other nodes there tell whether that is dark.
            group = names & used if len(names & used) > 1 else names
            if (why := why_dark(zone[1], len(group & self._lost_s.keys()), len(group))) is not None:
                dark[zone] = why
        return Extent(
            too_many_faults(len(counted & faulty), len(counted), share)
            or too_many_faults(len(used & faulty), len(used), 1.0),
            too_many_faults(len(counted & sub_healthy), len(counted), share, "are sub-healthy"),
            dark,
        )

    def why_dark(self, node: str, extent: Extent) -> str | None:
        """Return why a node that is not Ready counts as cut off with its network; else None."""
        zone = self._zone(node) if node in self._lost_s else None
        return extent.dark_zones.get(zone) if zone is not None else None

    def _zone(self, name: str) -> Zone | None:
        record = self._cluster.nodes.get(name)
        labels = record.node.metadata.labels if record is not None and record.node is not None else {}
        return (labels.get(REGION_LABEL, ""), labels[ZONE_LABEL]) if labels.get(ZONE_LABEL) else None

    def of(self, node: str) -> NodeFaults:
        """What has failed on a node, if that has lasted."""
        seen = self._seen.get(node)
        return seen.lasting if seen is not None else NO_FAULTS

    def has_no_object(self, node: str) -> bool:
        """Whether a node does not exist, or no more."""
        record = self._cluster.nodes.get(node)
        return record is None or record.node is None

    def is_lost(self, node: str) -> bool:
        """Whether the kubelet of a node can't confirm that a pod has ended."""
        return why_lost(self._cluster.nodes.get(node), node) is not None

    @property
    def lost(self) -> Collection[str]:
        """The nodes that are missing or not Ready."""
        return self._lost_s.keys()

    @property
    def is_quiet(self) -> bool:
        """Whether no node has a fault, and no pod has failed."""
        return not (self._seen or self._lost_s or self._failed)

    async def begin_anew(self) -> None:
        """Count from now for how long each fault lasts: what was in between is not known."""
        self._seen.clear()
        self._lost_s.clear()
        self._revision = None
        await self.look()

    def pods(self) -> Iterator[Pod]:
        """Yield the pods on nodes with faults, and those that have failed."""
        yield from list(self._failed.values())
        for node in list(self._seen):
            record = self._cluster.nodes.get(node)
            if record is not None and self.of(node) is not NO_FAULTS:
                for uid in list(record.holdings):
                    if (pod := self._cluster.pods.get(uid)) is not None and uid not in self._failed:
                        yield pod

    async def look(self) -> None:
        """Take over what has changed since the last look."""
        changes = self._cluster.changes
        changed = changes.since(self._revision) if self._revision is not None else None
        self._revision = changes.revision
        names = set(self._cluster.nodes) if changed is None else set(changed)
        turn = Turn()
        for name in names | set(self._lost_s) | set(self._seen):
            self._look_at(name)
            await turn.share()

    def _look_at(self, name: str) -> None:
        record = self._cluster.nodes.get(name)
        if record is None:
            self._lost_s.pop(name, None)
            self._seen.pop(name, None)
            return
        now_s, lost = self._monotonic(), why_lost(record, name)
        if lost is None:
            self._lost_s.pop(name, None)
        is_over = lost is not None and self._lost_s.setdefault(name, now_s) + self._not_ready_s <= now_s
        faults = NO_FAULTS
        if lost is None or is_over:
            faults = read_node(record, name, lost or "")
        if faults is NO_FAULTS:
            self._seen.pop(name, None)
            return
        seen = self._seen.get(name)
        before = seen.since_s if seen is not None else {}
        # The time for which a node may be not Ready has confirmed that already.
        first_s = now_s - (CONFIRM_S if is_over else 0.0)
        since_s = {key: before.get(key, first_s) for key in _keys(faults)}
        self._seen[name] = _Seen(faults, since_s, _lasting(faults, since_s, now_s))

    def _on_pod(self, pod: Pod) -> None:
        failed = pod.status.phase == "Failed" or pod.metadata.labels.get(FAULT_TYPE) == "Separate"
        if failed and pod.spec.node_name and pod.requests_chips and not pod.is_terminating:
            self._failed[pod.uid] = pod
        else:
            self._failed.pop(pod.uid, None)

    def _on_deletion(self, pod: Pod) -> None:
        self._failed.pop(pod.uid, None)


def _is_cordoned(record: NodeRecord) -> bool:
    """Whether an operator has said that a node is out of use."""
    return record.node is not None and record.node.spec.unschedulable


def _keys(faults: NodeFaults) -> Iterator[str | int]:
    """The single faults of a node: a new one beside an old one has to last as well."""
    if faults.whole:
        yield _WHOLE
    if faults.sub_healthy:
        yield _SUB_HEALTHY
    yield from faults.chips


def _lasting(faults: NodeFaults, since_s: Mapping[str | int, float], now_s: float) -> NodeFaults:
    lasting = {key for key, first_s in since_s.items() if first_s + CONFIRM_S <= now_s}
    if len(lasting) == len(since_s):
        return faults
    chips = {chip: codes for chip, codes in faults.chips.items() if chip in lasting}
    whole, sub_healthy = faults.whole if _WHOLE in lasting else "", _SUB_HEALTHY in lasting
    return NodeFaults(whole, chips, sub_healthy) if lasting else NO_FAULTS


def why_lost(record: NodeRecord | None, name: str) -> str | None:
    """Return why the kubelet of a node can't confirm that a pod has ended, a sentence; None if it can.

    Args:
        record: what is known of the node; None if nothing is.
        name: its name.
    """
    if record is None or record.node is None:
        return f"node {name} does not exist"
    return None if record.node.is_ready else f"node {name} is not Ready"


def too_many_faults(faulty: int, nodes: int, share: float, what: str = "have faults") -> str | None:
    """Return why nothing is deleted at all, a sentence; None if that is not so.

    It does not name the number of faulty nodes: it would be another Event with each of them.

    Args:
        faulty: the number of nodes with faults.
        nodes: the number of nodes with chips.
        share: the largest share of nodes that may be faulty at one time; never more than half of them, however few.
        what: what they are, for the sentence.
    """
    limit = max(FEW, math.floor(share * nodes + _ROUNDING))
    if faulty > limit:
        return f"more than {limit} of {nodes} nodes {what} at one time, which is taken for a wrong report"
    if 2 * faulty <= nodes:
        return None
    return (
        f"more than half of {count(nodes, 'node')} {what} at one time, which is taken for a wrong report or a"
        " network that is cut off"
    )


def why_dark(zone: str, lost: int, nodes: int) -> str | None:
    """Return why a zone counts as cut off, a sentence; None if it does not.

    As in Kubernetes' node lifecycle controller (``--unhealthy-zone-threshold``): all of its nodes are lost, or more
    than two and 55 % of them. One node alone may have failed by itself.

    Args:
        zone: its name.
        lost: the number of its nodes that are not Ready.
        nodes: the number of its nodes.
    """
    if not (lost == nodes > 1 or (lost > _DARK_ABOVE and lost >= _DARK_SHARE * nodes)):
        return None
    return f"most nodes of zone {zone} are not Ready, which is taken for a network that is cut off"
