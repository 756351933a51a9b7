"""The oracle of the state: whether what the allocator keeps event by event equals what a list of all objects gives.

The ledger can't be rebuilt, since reservations exist nowhere else; checked is what must hold for it anyway: no chip is
reserved twice, and nothing is reserved for a bound or finished pod. Of jobs the assigned ranks are not compared: they
depend on the past.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Final

import msgspec

from allocator.rules.job import JobKey, find_job
from allocator.rules.verdicts import Fit
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.kinds import KINDS, fill
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server
from allocator.state.offers import assess
from allocator.state.ranking import Bucket
from allocator.state.reservation import Reservation
from ascend.chips import ChipSet, chip_ids, chip_name
from ascend.errors import Refusal
from ascend.kube.objects import KubeObject, Pod
from ascend.takes import NOTHING, Take
from ascend.templates import Media, VnpuTemplate
from ascend.vnpus import Vnpu

_PART: Final = 64
"""The number of objects compared in one part."""

_DERIVED = frozenset({"name", "node", "offer", "holdings"})
_HISTORY = frozenset({"arrivals"})
"""What happened, and does not show in objects."""


class Difference(msgspec.Struct, frozen=True, order=True):
    """A difference between the state and the objects, or a violated invariant.

    Attributes:
        object: the object, as in ``node n1`` or ``pod default/a``.
        field: the field of it.
        kept: the value in the allocator's state.
        rebuilt: the value rebuilt from the objects, or required by an invariant.
    """

    object: str
    field: str
    kept: str
    rebuilt: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field} is {self.kept}, should be {self.rebuilt}"


def by_kind(*objects: KubeObject) -> dict[str, list[KubeObject]]:
    """Objects by the name of their watched kind; ConfigMaps are listed under both kinds of report."""
    return {
        kind.name: [each for each in objects if isinstance(each, kind.resource.type)]
        for kind in KINDS
        if not kind.is_optional
    }


_ANYTHING = Fit((), 0, NOTHING)
"""Fits every bucket."""


def audit(cluster: Cluster, ledger: Ledger, objects: Mapping[str, Iterable[KubeObject]]) -> list[Difference]:
    """The differences between a cluster and one filled with objects (by the name of their kind), sorted.

    Args:
        cluster: the state as kept.
        ledger: its reservations.
        objects: all objects of the API server.
    """
    empty = Ledger(ttl_s=math.inf, monotonic=lambda: 0.0)
    rebuilt = Cluster(
        empty,
        clock=cluster._clock,
        max_report_age_s=cluster.reports._ages.max_age_s,
        reported_s=lambda name, _updated_s: (cluster.nodes[name].seen or (0, 0.0))[1],
    )
    return sorted(_differences(cluster, ledger, fill(rebuilt, objects)))


def _differences(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> Iterator[Difference]:
    for name in cluster.nodes.keys() | rebuilt.nodes.keys():
        yield from _node(name, cluster, rebuilt)
        yield from _entry(name, cluster, ledger)
    for uid in cluster.pods.keys() | rebuilt.pods.keys():
        yield from _pod(uid, cluster, rebuilt)
        yield from _placed(uid, cluster, ledger)
    for uid in {*cluster.plain, *rebuilt.plain}:
        yield from _differs(f"pod {uid}", "kept as a plain pod", cluster.plain.get(uid), rebuilt.plain.get(uid))
    for key in cluster.jobs.owners.by_key.keys() | rebuilt.jobs.owners.by_key.keys():
        yield from _owner(key, cluster, rebuilt)
    for key in cluster.jobs._sources.keys() | rebuilt.jobs._sources.keys():
        yield from _source(key, cluster, rebuilt)
    for key in cluster.jobs._groups.keys() | rebuilt.jobs._groups.keys():
        yield from _group(key, cluster, rebuilt)
    for key in cluster.jobs.by_key.keys() | rebuilt.jobs.by_key.keys():
        yield from _job(key, cluster, rebuilt)
    for reservation in ledger:
        yield from _reservation(reservation, cluster, ledger)


def _node(name: str, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.nodes.get(name), rebuilt.nodes.get(name)
    if mine is None or other is None:
        if mine is not other:
            yield Difference(f"node {name}", "record", _presence(mine), _presence(other))
        return
    for field in fields(NodeRecord):
        if field.name not in _DERIVED | _HISTORY:
            yield from _differs(f"node {name}", field.name, getattr(mine, field.name), getattr(other, field.name))
    for uid in mine.holdings.keys() | other.holdings.keys():
        one, two = mine.holdings.get(uid), other.holdings.get(uid)
        yield from _differs(f"node {name}", f"chips held by pod {uid}", one, two)
    here, there = cluster.index.topology.location(name), rebuilt.index.topology.location(name)
    yield from _differs(f"node {name}", "location", here, there)
    for level, number in here.places:
        entry, place = cluster.index.entries.get(name), cluster.index.topology.places(level).get(number)
        is_there = place is not None and any(name in names for _, names in place.fitting(lambda _bucket: _ANYTHING))
        yield from _differs(f"node {name}", f"is in {level} {number}", is_there, isinstance(entry, Bucket))
    yield from _differs(f"node {name}", "offer without reservations", assess(replace(mine), {}), other.offer)


def _pod(uid: str, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.pods.get(uid), rebuilt.pods.get(uid)
    if mine is not None and other is not None:
        yield from _differs(f"pod {mine.key}", "node", mine.spec.node_name, other.spec.node_name)
        jobs = [job.key.plan if job is not None else None for job in (_job_of(mine, cluster), _job_of(other, rebuilt))]
        yield from _differs(f"pod {mine.key}", "job", *jobs)
    elif (pod := mine or other) is not None:
        yield Difference(f"pod {pod.key}", "record", _presence(mine), _presence(other))


def _placed(uid: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """Whether a pod is counted as placed in its job: live, requests chips, and bound or with a reservation."""
    pod = cluster.pods.get(uid)
    job = _job_of(pod, cluster) if pod is not None else None
    if pod is not None and job is not None:
        is_placed = bool(pod.spec.node_name) or ledger.get(uid) is not None
        counted = job.placed_beside("") - job.placed_beside(uid)
        yield from _differs(
            f"pod {pod.key}", "is counted as placed", bool(counted), is_placed and pod.is_live and pod.requests_chips
        )


def _owner(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.jobs.owners.by_key.get(key), rebuilt.jobs.owners.by_key.get(key)
    yield from _differs(f"{key.kind} {key}", "desired pods", mine, other)


def _source(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    if _both_watch_groups(key, cluster, rebuilt):
        mine, other = cluster.jobs._sources.get(key), rebuilt.jobs._sources.get(key)
        yield from _differs(f"{key.kind} {key}", "facts", mine, other)


def _group(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    if _both_watch_groups(key, cluster, rebuilt):
        yield from _differs(f"{key.kind} {key}", "facts", cluster.jobs._groups.get(key), rebuilt.jobs._groups.get(key))


def _job(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    name, mine, other = f"{key.kind} {key}", _present(key, cluster), _present(key, rebuilt)
    if mine is None or other is None:
        yield from _differs(name, "pods (requesting chips, present)", mine and _sizes(mine), other and _sizes(other))
        return
    yield from _differs(name, "pods (requesting chips, present)", _sizes(mine), _sizes(other))
    yield from _differs(name, "minimum stated by its pods", mine.stated_minimum, other.stated_minimum)
    yield from _differs(name, "vNPUs", sum(mine._vnpus.values()), sum(other._vnpus.values()))
    if _both_watch_groups(key, cluster, rebuilt):
        yield from _differs(name, "minimum of its group", mine.group_minimum, other.group_minimum)


def _job_of(pod: Pod, cluster: Cluster) -> Job | None:
    """The job in which a pod is present."""
    job = cluster.jobs.by_key.get(find_job(pod))
    return job if job is not None and pod.uid in job.pods else None


def _present(key: JobKey, cluster: Cluster) -> Job | None:
    job = cluster.jobs.by_key.get(key)
    return job if job is not None and job.present else None


def _sizes(job: Job) -> tuple[int, int]:
    return job.size, job.present


def _both_watch_groups(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> bool:
    # Whether an optional kind is served is checked periodically only (``allocator.watch.informers``).
    return (key.kind in cluster.jobs.discovery.watched) == (key.kind in rebuilt.jobs.discovery.watched)


def _entry(name: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """A node's entry in the index, and its chips that are assigned twice."""
    record = cluster.nodes.get(name)
    if record is None:
        return
    entry = cluster.index.entries.get(name)
    kept = entry.vacancy if isinstance(entry, Bucket) else entry
    yield from _differs(f"node {name}", "entry in the index", kept, assess(replace(record), ledger.on(name)))
    yield from _twice(record, ledger.on(name))


def _reservation(reservation: Reservation, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    if ledger.get(reservation.uid) is not reservation:
        return  # it was released meanwhile
    pod = cluster.pods.get(reservation.uid)
    if pod is not None and (pod.spec.node_name or not pod.is_live):
        yield Difference(
            f"pod {pod.key}", "reservation", f"on {reservation.node}", "none: the pod is bound or finished"
        )


def _twice(record: NodeRecord, reserved: Mapping[str, Take]) -> Iterator[Difference]:
    taken: ChipSet = 0
    parts: dict[int, Vnpu] = {}  # by vdev id, which is the device
    yield from _overfull(record, reserved)
    # A pod that is seen to hold chips counts once, with these.
    devices_of = {
        uid: (take.chip_set, {take.vnpu} if take.vnpu is not None else set()) for uid, take in reserved.items()
    }
    devices_of |= {uid: (holding.chips, set(holding.vnpus)) for uid, holding in record.holdings.items()}
    for uid, (chips, vnpus) in sorted(devices_of.items()):
        both = sorted(each for each in vnpus if each.vdev_id in parts)
        if (taken & chips) or both:
            names = ",".join((*map(chip_name, chip_ids(taken & chips)), *(each.name for each in both)))
            yield Difference(f"node {record.name}", f"chips of pod {uid}", f"{names}, assigned twice", "assigned once")
        taken |= chips
        parts |= {each.vdev_id: each for each in vnpus}


def _overfull(record: NodeRecord, reserved: Mapping[str, Take]) -> Iterator[Difference]:
    """The chips of which vNPUs that are cut for pods take more than there is, or that others have as a whole."""
    if not isinstance(record.server, Server) or record.server.kind is None:
        return
    kind, parts, whole = record.server.kind, dict[int, list[VnpuTemplate]](), record.held
    beside = [take for uid, take in reserved.items() if uid not in record.holdings]
    for take in beside:
        whole |= take.chip_set
    reserved_cuts = [take.cut for take in beside if take.cut is not None]
    for cut in (*(cut for each in record.holdings.values() for cut in each.cuts), *reserved_cuts):
        parts.setdefault(cut.chip, []).append(cut.size)
    for chip, sizes in parts.items():
        has_all, shared = (sum(each.media is media for each in sizes) for media in (Media.ALL, Media.SHARED))
        cores, cpus = sum(each.cores for each in sizes), sum(each.cpus for each in sizes)
        is_over = cores > kind.cores or cpus > kind.cpus or has_all > 1 or (has_all and shared)
        if is_over or whole >> chip & 1:
            names = ",".join(each.name for each in sizes)
            yield Difference(f"node {record.name}", f"parts of chip {chip}", names, "within what it has")


def _differs(name: str, field: str, mine: object, other: object) -> Iterator[Difference]:
    kept, rebuilt = _value(mine), _value(other)
    if kept != rebuilt:
        yield Difference(name, field, str(kept), str(rebuilt))


def _value(each: object) -> object:
    # Refusals are exceptions, which are compared by identity.
    return f"{each.reason}: {each.message}" if isinstance(each, Refusal) else each


def _presence(each: object) -> str:
    return "missing" if each is None else "present"
