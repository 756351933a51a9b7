"""What a node has left, from all that is known about it and the ledger; or why it can't be used.

What is left beside its pods is remembered on the record: a reservation changes only the rest.

A pod of which it is unknown what it has makes the node unusable, since its chips could be any: unless this project's
device plugin serves the node. That gives a pod only what is written on it, so a pod without anything, as one that names
its node itself, has what the plugin has reported as in use, or nothing. It takes no more than its own number from
others, as the kubelet counts it until it has refused it; and the plugin gives nothing that it has given to another.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from allocator.rules.cores import CoresLeft, cores_left
from allocator.rules.vacancy import Vacancy
from allocator.rules.vnpus import VnpusLeft, vnpus_left
from allocator.state.node import NodeRecord, Offer, Server
from allocator.state.promises import Promise
from allocator.state.report import HEALTH_ANNOTATION, NodeHealth, NodeReport
from ascend.chips import ChipSet, chip_set
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.vnpus import Vnpu


def assess(record: NodeRecord, reserved: Mapping[str, Take], promises: Sequence[Promise] = ()) -> Offer:
    """What a node has left, or why it can't be used.

    Args:
        record: the node.
        reserved: what is reserved on it, by pod uid.
        promises: what is kept on it for others, held or not.
    """
    idle = record.idle if record.idle is not None else _assess_idle(record)
    if isinstance(idle, Refusal):
        return idle
    taken, whole, room, cores = 0, 0, record.room, idle.cores
    vnpus: list[Vnpu] = []
    for uid, take in reserved.items():
        if uid not in record.holdings:
            if cores is not None:
                free = idle.free & ~taken
                cores = cores.without_cores(take.cores) if take.cut is None else cores.without(take.cut, free)
            taken |= take.occupied  # a chip that was cut beforehand may no longer be
            whole |= take.chip_set
            room -= len(take.chips)
            if take.vnpu is not None:
                vnpus.append(take.vnpu)
    if taken:
        idle = Vacancy(
            idle.product,
            idle.healthy,
            idle.free & ~taken,
            room=min(max(room, 0), idle.product.chips),
            faulty=idle.faulty,
            cut_off=idle.cut_off & ~taken,
            sub_healthy=idle.sub_healthy,
            # A chip that was reserved as a whole may have been cut since.
            vnpus=idle.vnpus.without(vnpus, whole) if idle.vnpus is not None else None,
            cores=cores,
            doubtful=idle.doubtful & ~taken,
            model=idle.model,
        )
    if not promises:
        return idle
    chips, parts = 0, [promise.part for promise in promises if promise.part is not None]
    for promise in promises:
        chips |= promise.chips[record.name]
    return idle.keeping(chips, " and ".join(promise.what for promise in promises), parts)


def _assess_idle(record: NodeRecord) -> Offer:
    """What a node has left beside its pods, or why it can't be used; it is remembered until the record changes."""
    record.idle, record.room = _read_idle(record)
    return record.idle


def _read_idle(record: NodeRecord) -> tuple[Offer, int]:
    server, report = record.server, record.report
    if isinstance(server, Refusal):
        return server, 0
    if isinstance(report, Refusal):
        return report, 0
    if record.stale is not None:
        return record.stale, 0
    health = _health(record, server, report)
    if isinstance(health, Refusal):
        return health, 0
    unhealthy, closed = report.unhealthy, record.closed
    # Once its pod has ended, a PreSeparateNPU chip is unhealthy; but the report shows that later than the pod's end.
    taken = unhealthy | report.pre_separate | record.in_doubt
    room = server.allocatable if server.kind is None else server.product.chips
    for holding in record.holdings.values():
        unreadable = holding.unreadable or (holding.unknown_cores if server.kind is None else None)
        if unreadable is not None:
            if not report.is_ours:
                sentence = f"the free chips of node {record.name} are unknown: {unreadable}"
                return Refusal(Reason.UNREADABLE_POD, sentence), 0
            taken |= ~report.free & server.product.all_chips
        taken |= holding.occupied
        room -= holding.counted
    healthy = server.reported & ~unhealthy
    free = healthy & ~taken & ~closed
    vacancy = Vacancy(
        server.product,
        healthy.bit_count(),
        free,
        # More room than chips makes no difference; with a limit there are fewer different vacancies.
        room=min(max(room, 0), server.product.chips),
        faulty=(server.reported & unhealthy).bit_count(),
        cut_off=free & report.network_unhealthy,
        sub_healthy=health is NodeHealth.SUB_HEALTHY,
        vnpus=_vnpus_left(record, server, unhealthy | report.pre_separate) if server.vnpus else None,
        cores=_cores_left(record, server, unhealthy | report.pre_separate | closed),
        doubtful=free & record.unexplained,
        model=server.model,
    )
    return vacancy, room


def _cores_left(record: NodeRecord, server: Server, excluded: ChipSet) -> CoresLeft | None:
    if server.kind is None:
        return None
    holdings, cuts = record.holdings.values(), list[Cut]()
    for holding in holdings:
        excluded |= holding.chips | chip_set(vnpu.chip for vnpu in holding.vnpus)
        cuts += holding.cuts
    return cores_left(
        server.kind,
        cuts,
        excluded=excluded | ~server.reported,
        counted=sum(holding.counted_cores for holding in holdings),
        allocatable=server.allocatable_cores,
        unknown=min((holding.unknown_cores for holding in holdings if holding.unknown_cores is not None), default="")
        if not _is_ours(record)
        else "",
    )


def _is_ours(record: NodeRecord) -> bool:
    return isinstance(record.report, NodeReport) and record.report.is_ours


def _vnpus_left(record: NodeRecord, server: Server, excluded: ChipSet) -> VnpusLeft:
    held: set[Vnpu] = set()
    counted: Counter[str] = Counter()
    unknown: dict[str, str] = {}
    for holding in record.holdings.values():
        excluded |= holding.chips
        held.update(holding.vnpus)
        counted.update(holding.counted_vnpus)
        if holding.unknown_vnpus is not None and not _is_ours(record):
            known = Counter(vnpu.suffix for vnpu in holding.vnpus)
            # A pod of a size that the node does not have runs without any: the kubelet ignores unknown resources.
            for suffix, number in holding.counted_vnpus.items():
                if known[suffix] < number:
                    unknown[suffix] = min(holding.unknown_vnpus, unknown.get(suffix, holding.unknown_vnpus))
    return vnpus_left(
        server.vnpus,
        excluded=excluded,
        held=held,
        counted=counted,
        allocatable=server.allocatable_vnpus,
        unknown=unknown,
    )


def _health(record: NodeRecord, server: Server, report: NodeReport) -> NodeHealth | Refusal:
    """The health of the node as a whole: the worst that any source reports.

    See docs/spec/scheduling.md#node-filter, docs/spec/scheduling.md#node-state.
    """
    if isinstance(record.health, Refusal):
        return record.health
    if record.health is server.health is report.health is report.agent:
        worst = record.health
    else:
        worst = max(record.health, server.health, report.health, report.agent)
    if worst is NodeHealth.UNHEALTHY:
        return Refusal(Reason.NODE_UNHEALTHY, f"node {record.name} is unhealthy according to {_source(record, worst)}")
    if worst is NodeHealth.PRE_SEPARATE:
        return Refusal(
            Reason.NODE_SEPARATING,
            f"node {record.name} is PreSeparate (no new pods) according to {_source(record, worst)}",
        )
    return worst


def _source(record: NodeRecord, health: NodeHealth) -> str:
    if isinstance(record.server, Server) and record.server.health is health:
        return f"its annotation {HEALTH_ANNOTATION}"
    agents = record.health, record.report.agent if isinstance(record.report, NodeReport) else None
    return "its node agent" if health in agents else "the report of its switches"
