"""The checks of a cluster: unusable nodes, device reports that are not renewed, pods with other chips than recorded."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from allocator.decision.backlog import WaitingFor
from allocator.settings import Settings
from allocator.state.location import malformed_ids, read_location
from allocator.state.node import NodeRecord, Server
from allocator.superpods.demand import PRODUCTS
from ascend.annotations import SUPER_POD_ID
from ascend.chips import ChipSet, chip_ids, chip_name, chip_set
from ascend.deviceinfo import NAMESPACE, config_map_name, read_manually_separated
from ascend.errors import Refusal
from ascend.grammar import count, some
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Category, Reason
from ascend.rules.identity import ACCELERATOR_TYPE
from ascend.vnpus import device_type
from npuctl.doctor.details import Details
from npuctl.doctor.faults import UnhealthyDevices, check_faults, spread
from npuctl.doctor.finding import Finding, named, ok, problem, warning
from npuctl.doctor.pods import check_holders, check_pods, check_taken
from npuctl.doctor.programs import check_programs
from npuctl.doctor.rights import check_rights
from npuctl.doctor.schedulers import check_schedulers
from npuctl.doctor.told import OLD_S, check_certificates, check_plugins, check_told
from npuctl.evaluation import VOLCANO, Evaluation, PodVerdict
from npuctl.reading.objects import ClusterObjects
from npuctl.refusals import as_values, group

_DELIBERATE: Final = {Reason.NODE_NOT_READY, Reason.NODE_CORDONED, Reason.NODE_SEPARATING}
"""What an administrator may have wanted: worth knowing rather than mending."""

_UNSERVED: Final = {Reason.STALE_REPORT, Reason.RESOURCE_NOT_OFFERED}
"""Reasons of nodes on which no device plugin seems to run."""
_OF_REPORTS: Final = {Reason.STALE_REPORT, Reason.INVALID_REPORT, Reason.NO_BASE_DEVICE_INFOS}
_OF_KUBELETS: Final = {Reason.RESOURCE_NOT_OFFERED, Reason.INCONSISTENT_CAPACITY, Reason.NODE_NOT_READY}
"""Reasons of nodes by which their reports or kubelets are not as they should be, which is said of the nodes."""


async def check_cluster(objects: ClusterObjects, details: Details, settings: Settings, now_ns: int) -> list[Finding]:
    """Check a cluster by its objects, details of its programs, and the allocator's settings.

    The time ``now_ns`` is in Unix nanoseconds.
    """
    evaluation = Evaluation(objects, settings, now_ns)
    cluster = evaluation.allocator.cluster
    nodes = [
        record
        for _, record in sorted(cluster.nodes.items())
        if not (isinstance(record.offer, Refusal) and record.offer.reason.category is Category.NOT_NPU)
    ]
    served = details.served or settings.scheduler_names
    told = check_schedulers(
        objects.pods,
        served,
        details.kube_schedulers,
        now_ns / 1e9,
        others=(VOLCANO,) if details.volcano_users else (),  # how Volcano asks is told of the programs
    )
    schedulers = named("schedulers", told)
    refused = {node.name: node.offer.reason for node in nodes if isinstance(node.offer, Refusal)}
    unserved = {name for name, reason in refused.items() if reason in _UNSERVED}
    unoffered = {
        node.name
        for node in nodes
        if refused.get(node.name) == Reason.RESOURCE_NOT_OFFERED and not _has_unhealthy_chips_only(node)
    }
    programs = check_programs(
        objects, (node.name for node in nodes), details, unserved=unserved, is_asked=not schedulers
    )
    found = [
        *named("nodes", _check_nodes(nodes)),
        *named("programs", programs),
        *named("plugins", check_plugins(objects.nodes, details.heartbeats, unoffered, now_ns / 1e9)),
        *schedulers,
        *named("rights", check_rights(details.denied)),
        *named("certificates", check_certificates(details.expiring, now_ns / 1e9)),
        *named("SuperPods", _check_super_pods(nodes)),
        *named("reports", _check_reports(nodes, objects, now_ns // 10**9)),
        *named("kubelets", _check_kubelets(nodes)),
        *named("chips", check_holders(nodes)),
        *named("faults", check_faults(nodes, objects.valid_reports, objects.cordons, spread(objects.pods))),
        *named("faults", _check_orders(nodes, objects, details.refused_rules)),
        *named("pods", check_pods(objects.pods)),
        *named("pods", check_taken(details.taken)),
        *named("events", check_told(details.told, objects.pods)),
    ]
    # From here on the pods that have a place count as bound.
    verdicts = [await evaluation.decide(pod) for pod in evaluation.waiting()]
    found += named("waiting", _check_waiting(verdicts))
    # Nothing green beside what is wrong with the same.
    wrong = {finding.check for finding in found if finding.severity != "ok"} - {"programs"}
    return [finding for finding in found if finding.severity != "ok" or finding.check not in wrong]


def _has_unhealthy_chips_only(record: NodeRecord) -> bool:
    """Whether a kubelet offers no chip because its device plugin has none that is healthy."""
    capacity = (record.node.capacity_chips if record.node is not None else None) or 0
    reported = 0 if isinstance(record.own_report, Refusal) else record.own_report.unhealthy.bit_count()
    return 0 < capacity <= reported


def _check_nodes(npu_nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    refusals = {node.name: node.offer for node in npu_nodes if isinstance(node.offer, Refusal)}
    if not npu_nodes:
        yield problem("no node reports chips", "run the device plugin on the nodes with NPUs")
        return
    usable = len(npu_nodes) - len(refusals)
    yield ok(f"{usable} of {count(len(npu_nodes), 'NPU node')} can be used")
    for refusing in group(as_values(refusals)):
        found = warning if refusing.reason in _DELIBERATE else problem
        sentence = (
            f"{refusing} ({len(refusing.nodes)}: {refusing.names()})" if len(refusing.nodes) > 1 else str(refusing)
        )
        yield found(sentence, refusing.reason.cure.replace("`", ""), reason=refusing.reason, nodes=refusing.nodes)
    for record in npu_nodes:
        if record.ignored:
            names = some(record.ignored)
            sentence = f"node {record.name} names devices that are neither chips nor vNPUs, and are ignored: {names}"
            yield warning(sentence, "nothing to do if they are devices of another kind", nodes=(record.name,))


def _check_orders(
    npu_nodes: Iterable[NodeRecord], objects: ClusterObjects, refused_rules: Sequence[str]
) -> Iterator[Finding]:
    """Check for annotations and labels of operators about chips and faults that have no effect."""
    if refused_rules:
        yield warning(
            f"the site's fault rules are invalid: {'; '.join(refused_rules)}", "correct them: they are left out"
        )
    reports = objects.reports
    for record in npu_nodes:
        if record.name not in reports or not isinstance(record.server, Server):
            continue
        separated, names = read_manually_separated(reports[record.name].data)
        there = record.server.reported | chip_set(vnpu.chip for vnpu in record.server.vnpus)
        if unknown := [*map(chip_name, chip_ids(separated & ~there)), *map(printable, names)]:
            sentence = f"ManuallySeparateNPU of node {record.name} names what is no chip of it: {some(unknown)}"
            yield warning(sentence, "correct the entry: it has no effect", nodes=(record.name,))


def _check_super_pods(npu_nodes: Sequence[NodeRecord]) -> Iterator[Finding]:
    known, missing, malformed = 0, list[str](), dict[str, list[str]]()
    for record in npu_nodes:
        for name in malformed_ids(record.node) if record.node is not None else ():
            malformed.setdefault(name, []).append(record.name)
        if read_location(record.node, record.report).super_pod >= 0:
            known += 1
        elif record.product in PRODUCTS and _names_super_pod(record):
            missing.append(record.name)
    for name, names in malformed.items():
        advice = "it is ignored; write a number of 0 or more, or remove it: the device plugin writes it again"
        nodes = f"node {names[0]}" if len(names) == 1 else f"nodes {some(names)}"
        yield problem(f"{name} of {nodes} is no number", advice, nodes=tuple(names))
    if missing:
        sentence = f"in no SuperPod, though their label {ACCELERATOR_TYPE} says that they are: {some(missing)}"
        advice = f"jobs with blocks don't get them: neither the report nor the Node has a valid {SUPER_POD_ID}"
        yield warning(sentence, advice, nodes=tuple(missing))
    if known:
        yield ok(f"{count(known, 'node is', 'nodes are')} in a SuperPod")


def _names_super_pod(record: NodeRecord) -> bool:
    node_type = record.node.metadata.labels.get(ACCELERATOR_TYPE, "") if record.node is not None else ""
    return "superpod" in node_type.lower().replace("-", "")


def _check_reports(npu_nodes: Sequence[NodeRecord], objects: ClusterObjects, now_s: int) -> Iterator[Finding]:
    nodes, reports = {node.name for node in objects.nodes}, objects.reports
    missing = [view.name for view in npu_nodes if view.name not in reports]
    old = [view.name for view in npu_nodes if view.updated_s and view.stale is None and now_s - view.updated_s > OLD_S]
    ahead = [view.name for view in npu_nodes if (view.updated_s or 0) - now_s > OLD_S]
    left = [f"{NAMESPACE}/{config_map_name(name)}" for name in sorted(reports.keys() - nodes)]
    if missing:
        advice = "all their chips count as healthy; check the device plugins of these nodes, which write the reports"
        yield warning(f"no ConfigMap {config_map_name('<node>')}: {some(missing)}", advice, nodes=tuple(missing))
    if old:
        advice = "npuctl doctor on these nodes says what is wrong"
        yield warning(f"older than {OLD_S} s, but renewed every 300 s: {some(old)}", advice, nodes=tuple(old))
    if ahead:
        advice = "set the clocks of these nodes: what they write has wrong times"
        yield warning(f"timestamp in the future: {some(ahead)}", advice, nodes=tuple(ahead))
    if left:
        yield warning(f"the node does not exist: {some(left)}", "delete these ConfigMaps")
    distrusted = {view.offer.reason for view in npu_nodes if isinstance(view.offer, Refusal)} & _OF_REPORTS
    if not (missing or old or ahead or left or distrusted):
        yield ok(f"{count(len(reports), 'report')}, none old, each of an existing node")


def _check_kubelets(npu_nodes: Sequence[NodeRecord]) -> list[Finding]:
    different = []
    for record in npu_nodes:
        if not isinstance(record.server, Server) or not isinstance(record.unhealthy, int):
            continue
        kept = UnhealthyDevices.of(record.holdings.values(), record.unhealthy, record.server.kind)
        for one, several, allocatable, healthy, in_use in _offered(record.server, record.unhealthy, kept):
            if not healthy <= allocatable <= healthy + in_use:
                offered, are = count(allocatable, one, several), count(healthy, "is healthy", "are healthy")
                more = f", and {in_use} of unhealthy chips in use" if in_use else ""
                sentence = f"the kubelet of node {record.name} offers {offered}, but {are}{more}"
                advice = "check again in a few seconds; if it stays, restart the device plugin of that node"
                different.append(warning(sentence, advice, nodes=(record.name,)))
    if different or any(isinstance(node.offer, Refusal) and node.offer.reason in _OF_KUBELETS for node in npu_nodes):
        return different
    return [ok("each offers as many chips as are healthy")]


def _offered(server: Server, unhealthy: ChipSet, kept: UnhealthyDevices) -> Iterator[tuple[str, str, int, int, int]]:
    """What the kubelet of a node offers, how many of each are on healthy chips, and how many more pods have."""
    chips = (server.reported & ~unhealthy).bit_count()
    if server.kind is not None:
        yield "AI core", "AI cores", server.allocatable_cores, chips * server.kind.cores, kept.cores
        return
    yield "chip", "chips", server.allocatable, chips, kept.chips
    healthy = Counter(vnpu.suffix for vnpu in server.vnpus if not unhealthy >> vnpu.chip & 1)
    for suffix in sorted({vnpu.suffix for vnpu in server.vnpus}):
        name, offered = device_type(suffix), server.allocatable_vnpus.get(suffix, 0)
        yield f"vNPU {name}", f"vNPUs {name}", offered, healthy[suffix], kept.vnpus.get(suffix, 0)


_WAITS_FOR: Final = {
    WaitingFor.BINDING: ("for room beside others that wait",) * 2,
    WaitingFor.CHIPS: ("for chips",) * 2,
    WaitingFor.NODES: ("for a node that can be used",) * 2,
    WaitingFor.SCHEDULER: ("for what its scheduler lacks", "for what their schedulers lack"),
    WaitingFor.PODS: ("for the other pods of its job", "for the other pods of their jobs"),
    WaitingFor.CHANGE: ("for its author, who has to change it", "for their authors, who have to change them"),
}
"""For what a pod waits, and for what several do."""


def _check_waiting(verdicts: Sequence[PodVerdict]) -> Iterator[Finding]:
    refused = [
        (verdict.pod, says) for verdict in verdicts if verdict.held is not None and (says := _refusal_of(verdict.pod))
    ]
    preempting = [verdict for verdict in verdicts if verdict.victims]
    alike: dict[tuple[Reason, WaitingFor], list[str]] = {}
    for verdict in verdicts:
        if verdict.refusal is not None and verdict.waits_for is not None:
            alike.setdefault((verdict.refusal.reason, verdict.waits_for), []).append(verdict.pod.key)
    if not alike and not refused:
        yield ok("every pod that requests chips has a place, or one is free")
    if refused:
        pod, says = refused[0]
        more = f" and {len(refused) - 1} more wait" if len(refused) > 1 else " waits"
        advice = f"kubectl -n {pod.metadata.namespace} describe pod {pod.name}"
        yield warning(
            f"{pod.key}{more}, though there are chips: {says}",
            advice,
            pods=tuple(waiting.key for waiting, _ in refused),
        )
    if preempting:
        above, victims = (
            [verdict.pod.key for verdict in preempting],
            [key for verdict in preempting for key in verdict.victims],
        )
        yield ok(f"for {some(above)} of higher priority, {some(victims)} would end", pods=tuple(above))
    for (reason, waits_for), keys in sorted(alike.items(), key=lambda entry: (-len(entry[1]), entry[0])):
        more = f" and {len(keys) - 1} more wait" if len(keys) > 1 else " waits"
        sentence = f"{reason}: {keys[0]}{more} {_WAITS_FOR[waits_for][len(keys) > 1]}"
        yield warning(sentence, f"npuctl explain {keys[0]}", reason=reason, pods=tuple(keys))


def _refusal_of(pod: Pod) -> str:
    """Why the scheduler could not place a pod at the last try; empty without a try."""
    conditions = (
        condition
        for condition in pod.status.conditions
        if condition.type == "PodScheduled" and condition.status == "False"
    )
    return next((condition.message for condition in conditions if condition.reason == "Unschedulable"), "")
