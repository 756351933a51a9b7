"""What is wrong with a cluster: nodes that can't be used, reports nobody renews, pods with other chips than written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allocator.rules.request import counted_chips
from allocator.settings import Settings
from allocator.state.node import NodeRecord, Server
from ascend.annotations import REAL, read_grant
from ascend.chips import chip_ids, chip_name, chip_set, join_names, parse_names
from ascend.deviceinfo import NAMESPACE, config_map_name, node_name
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from npuctl.doctor.finding import Finding, Severity
from npuctl.output import group, some
from npuctl.planning import plan
from npuctl.snapshot import Allocation, Snapshot

OLD_S = 330
"""Device plugins renew their reports every five minutes at least."""

_NO_NPUS = frozenset({"NotAnNpuNode", "UnknownNode"})

_OPERATORS = frozenset({"NodeNotReady", "NodeCordoned", "NodeSeparating"})
"""Reasons that an operator may well have wanted: something to know, not to mend."""

_ADVICE = {
    "InvalidReport": "somebody has edited it; delete the ConfigMap, the device plugin writes it anew",
    "NoBaseDeviceInfos": "restart the device plugin of that node: it writes the annotation",
    "StaleReport": "look at the device plugin of that node: npuctl doctor there says what is wrong",
    "ResourceNotOffered": "look at the device plugin of that node: npuctl doctor there says what is wrong",
    "UnreadablePod": "delete the pod that is named; it was not bound by the allocator",
    "NodeNotReady": "look at the kubelet of that node",
    "NodeCordoned": "kubectl uncordon, if its maintenance is over",
}


@dataclass(frozen=True, slots=True)
class _Patient:
    """What is looked at: the objects, and what the allocator makes of them."""

    snapshot: Snapshot
    settings: Settings
    now_ns: int
    allocation: Allocation

    def npu_nodes(self) -> Iterator[NodeRecord]:
        """By name."""
        for _, record in sorted(self.allocation.cluster.nodes.items()):
            if not (isinstance(record.offer, Refusal) and record.offer.reason in _NO_NPUS):
                yield record

    def chip_pods(self) -> Iterator[Pod]:
        """Live pods on nodes that count chips, by name."""
        for pod in self.snapshot.pods:
            if pod.spec.node_name and pod.is_live and counted_chips(pod):
                yield pod


def check_up(snapshot: Snapshot, settings: Settings, now_ns: int) -> list[Finding]:
    """Look at a cluster from afar.

    Args:
        snapshot: its objects.
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
    """
    patient = _Patient(snapshot, settings, now_ns, Allocation.of(snapshot, settings, lambda: now_ns / 1e9))
    return [finding for check in _CHECKS for finding in check(patient)]


def _nodes(patient: _Patient) -> Iterator[Finding]:
    records = list(patient.npu_nodes())
    refusals = {record.name: record.offer for record in records if isinstance(record.offer, Refusal)}
    if not records:
        advice = "run the device plugin on the nodes with NPUs"
        yield Finding("nodes", "problem", "no node reports chips", advice)
        return
    yield Finding("nodes", "ok", f"{len(records) - len(refusals)} of {len(records)} NPU nodes can be used")
    for each in group(refusals):
        severity: Severity = "warning" if each.reason in _OPERATORS else "problem"
        told = f"{each} ({len(each.nodes)}: {each.names()})" if len(each.nodes) > 1 else str(each)
        yield Finding("nodes", severity, told, _ADVICE.get(each.reason, f"see {each.reason} in docs/reasons.md"))


def _reports(patient: _Patient) -> Iterator[Finding]:
    nodes = {node.name for node in patient.snapshot.nodes}
    reported = {
        name
        for each in patient.snapshot.config_maps
        if each.metadata.namespace == NAMESPACE and (name := node_name(each.name)) is not None
    }
    missing = [record.name for record in patient.npu_nodes() if record.name not in reported]
    now_s = patient.now_ns // 10**9
    old = [
        record.name
        for record in patient.npu_nodes()
        if record.updated_s and record.stale is None and now_s - record.updated_s > OLD_S
    ]
    ahead = [record.name for record in patient.npu_nodes() if (record.updated_s or 0) - now_s > OLD_S]
    left = [f"{NAMESPACE}/{config_map_name(name)}" for name in sorted(reported - nodes)]
    if missing:
        advice = "all their chips count as healthy; their device plugins are to write reports"
        yield Finding("reports", "warning", f"no ConfigMap {config_map_name('<node>')}: {some(missing)}", advice)
    if old:
        told = f"older than {OLD_S} s, and to be renewed every 300 s: {some(old)}"
        yield Finding("reports", "warning", told, "npuctl doctor on these nodes says what is wrong")
    if ahead:
        told = f"of a time yet to come: {some(ahead)}"
        advice = "set the clocks of these nodes; were their device plugins to end, that would be noticed late"
        yield Finding("reports", "warning", told, advice)
    if left:
        yield Finding("reports", "warning", f"of nodes that are not there: {some(left)}", "delete these ConfigMaps")
    if not (missing or old or ahead or left):
        yield Finding("reports", "ok", f"all {len(reported)} are of nodes that are there, and not old")


def _kubelets(patient: _Patient) -> Iterator[Finding]:
    odd = 0
    for record in patient.npu_nodes():
        if not isinstance(record.server, Server) or not isinstance(record.unhealthy, int):
            continue
        healthy = (record.server.reported & ~record.unhealthy).bit_count()
        if record.server.allocatable != healthy:
            odd += 1
            told = f"the kubelet of node {record.name} offers {record.server.allocatable} chips, {healthy} are healthy"
            advice = "look again in a few seconds; if it stays, restart the device plugin of that node"
            yield Finding("kubelets", "warning", told, advice)
    if not odd:
        yield Finding("kubelets", "ok", "all offer as many chips as are healthy")


def _holders(patient: _Patient) -> Iterator[Finding]:
    twice = 0
    for record in patient.npu_nodes():
        holdings = sorted(record.holdings.values(), key=lambda each: each.pod)
        for number, first in enumerate(holdings):
            for second in holdings[number + 1 :]:
                if both := first.chips & second.chips:
                    twice += 1
                    told = f"{join_names(chip_ids(both))} of node {record.name}: held by {first.pod} and {second.pod}"
                    yield Finding("chips", "problem", told, "delete one of these pods")
    if not twice:
        yield Finding("chips", "ok", "none is held by two pods")


def _pods(patient: _Patient) -> Iterator[Finding]:
    fine = 0
    for pod in patient.chip_pods():
        found = _pod(pod)
        if found is None:
            fine += 1
        else:
            yield found
    yield Finding("pods", "ok", f"{fine} hold their chips as written, or are about to")


def _pod(pod: Pod) -> Finding | None:
    where = f"pod {pod.key} on node {pod.spec.node_name}"
    try:
        grant = read_grant(pod.metadata.annotations)
        real = chip_set(parse_names(pod.metadata.annotations.get(REAL, ""), REAL))
    except InvalidValue as error:
        return Finding("pods", "problem", f"{where}: {error}", _ADVICE["UnreadablePod"])
    if grant is None and not real:
        advice = "its scheduler did not ask the allocator; give it one that does"
        return Finding("pods", "problem", f"{where} was bound without chips", advice)
    if pod.status.phase != "Running":
        return None
    if not real:
        advice = "the device plugin of that node did not claim it; its log says why"
        return Finding("pods", "problem", f"{where} runs, but has no {REAL}", advice)
    if grant is not None and real != grant.chip_set:
        told = f"{where} was given {_names(real)} instead of {_names(grant.chip_set)}"
        return Finding("pods", "warning", told, "the log of the device plugin there says why; what it has counts")
    return None


def _waiting(patient: _Patient) -> Iterator[Finding]:
    pending = plan(patient.snapshot, patient.settings, patient.now_ns).pending
    if not pending:
        yield Finding("waiting", "ok", "every pod that asks for chips has a place, or one is free")
        return
    reasons: dict[str, list[str]] = {}
    for pod in pending:
        reasons.setdefault(pod.reason, []).append(f"{pod.namespace}/{pod.name}")
    for reason, pods in sorted(reasons.items(), key=lambda each: (-len(each[1]), each[0])):
        more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        told = f"{reason}: {pods[0]}{more} wait{'' if more else 's'} for chips"
        yield Finding("waiting", "warning", told, f"npuctl explain {pods[0]}")


def _names(chips: int) -> str:
    return ",".join(map(chip_name, chip_ids(chips)))


_CHECKS: tuple[Callable[[_Patient], Iterator[Finding]], ...] = (_nodes, _reports, _kubelets, _holders, _pods, _waiting)
