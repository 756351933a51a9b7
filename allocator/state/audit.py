"""Whether the state kept event by event equals one rebuilt from the objects of the API server.

The ledger is not rebuilt, since reservations exist nowhere else; checked is what must hold for it anyway: no chip is
reserved twice, and nothing is reserved for a bound or finished pod. Of jobs the assigned ranks are not compared: they
depend on the past.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Final, TypeVar

import msgspec

from allocator.rules.job import JobKey, find_job
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, assess
from allocator.state.ranking import Bucket
from allocator.state.reservation import Reservation
from ascend.chips import ChipSet, chip_ids, join_names
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_PART: Final = 64

_T = TypeVar("_T")

_DERIVED = frozenset({"name", "node", "offer", "holdings"})


class Difference(msgspec.Struct, frozen=True, order=True):
    """Something that is not as it should be.

    Attributes:
        object: what it is about, as in ``node n1`` or ``pod default/a``.
        field: what of it.
        kept: what the allocator has.
        rebuilt: what the objects give, or what must hold.
    """

    object: str
    field: str
    kept: str
    rebuilt: str

    def __str__(self) -> str:
        return f"{self.object}: {self.field} is {self.kept}, should be {self.rebuilt}"


def compare_by_parts(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> Iterator[list[Difference]]:
    """The differences between a cluster and a rebuilt one, in parts that take some milliseconds each.

    The cluster may change between two parts.

    Args:
        cluster: as kept.
        ledger: its reservations.
        rebuilt: ``cluster.twin()``, filled with all objects of the API server.
    """
    for names in _keys(cluster.nodes, rebuilt.nodes):
        yield [each for name in names for each in _node(name, cluster, rebuilt)]
        yield [each for name in names for each in _book(name, cluster, ledger)]
    for uids in _keys(cluster.pods, rebuilt.pods):
        yield [each for uid in uids for each in _pod(uid, cluster, rebuilt)]
        yield [each for uid in uids for each in _placed(uid, cluster, ledger)]
    for keys in _keys(cluster.jobs.owners, rebuilt.jobs.owners):
        yield [each for key in keys for each in _owner(key, cluster, rebuilt)]
    for keys in _keys(cluster.jobs.groups, rebuilt.jobs.groups):
        yield [each for key in keys for each in _group(key, cluster, rebuilt)]
    for keys in _keys(cluster.jobs.by_key, rebuilt.jobs.by_key):
        yield [each for key in keys for each in _job(key, cluster, rebuilt)]
    for reservations in _parts(ledger):
        yield [each for reservation in reservations for each in _reservation(reservation, cluster, ledger)]


def _keys(one: Mapping[_T, object], other: Mapping[_T, object]) -> Iterator[Sequence[_T]]:
    """The keys of both, in parts. They may change between two parts; a union of all would take long itself."""
    yield from _parts(list(one))
    for part in _parts(list(other)):
        yield [key for key in part if key not in one]


def _parts(every: Iterable[_T]) -> Iterator[Sequence[_T]]:
    rest = iter(every)
    while part := list(islice(rest, _PART)):
        yield part


def _node(name: str, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.nodes.get(name), rebuilt.nodes.get(name)
    if mine is None or other is None:
        if mine is not other:
            yield Difference(f"node {name}", "record", _there(mine), _there(other))
        return
    for field in fields(NodeRecord):
        if field.name not in _DERIVED:
            yield from _differs(f"node {name}", field.name, getattr(mine, field.name), getattr(other, field.name))
    for uid in mine.holdings.keys() | other.holdings.keys():
        one, two = mine.holdings.get(uid), other.holdings.get(uid)
        yield from _differs(f"node {name}", f"what pod {uid} holds", one, two)
    yield from _differs(f"node {name}", "offer without reservations", assess(mine, {}), other.offer)


def _pod(uid: str, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.pods.get(uid), rebuilt.pods.get(uid)
    if mine is not None and other is not None:
        yield from _differs(f"pod {mine.key}", "node", mine.spec.node_name, other.spec.node_name)
        jobs = [
            job.key.plan if job is not None else None for job in (_job_with(mine, cluster), _job_with(other, rebuilt))
        ]
        yield from _differs(f"pod {mine.key}", "job it is present in", *jobs)
    elif (pod := mine or other) is not None:
        yield Difference(f"pod {pod.key}", "record", _there(mine), _there(other))


def _placed(uid: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """Whether a pod counts as placed in its job: it is live, requests chips, and is bound or has a reservation."""
    pod = cluster.pods.get(uid)
    job = _job_with(pod, cluster) if pod is not None else None
    if pod is not None and job is not None:
        is_placed = bool(pod.spec.node_name) or ledger.get(uid) is not None
        counted = job.placed_beside("") - job.placed_beside(uid)
        yield from _differs(
            f"pod {pod.key}", "counts as placed", bool(counted), is_placed and pod.is_live and pod.requests_chips
        )


def _owner(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    mine, other = cluster.jobs.owners.get(key), rebuilt.jobs.owners.get(key)
    yield from _differs(f"{key.kind} {key}", "pods it is to have", mine, other)


def _group(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    if _has_groups_alike(key, cluster, rebuilt):
        yield from _differs(f"{key.kind} {key}", "minimum", cluster.jobs.groups.get(key), rebuilt.jobs.groups.get(key))


def _job(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> Iterator[Difference]:
    name, mine, other = f"{key.kind} {key}", _present(key, cluster), _present(key, rebuilt)
    if mine is None or other is None:
        yield from _differs(name, "pods (with chips, present)", mine and _sizes(mine), other and _sizes(other))
        return
    yield from _differs(name, "pods (with chips, present)", _sizes(mine), _sizes(other))
    yield from _differs(name, "minimum that its pods state", mine.stated_minimum, other.stated_minimum)
    yield from _differs(name, "parts of chips (vNPUs)", mine.parts, other.parts)
    if _has_groups_alike(key, cluster, rebuilt):
        yield from _differs(name, "minimum of its group", mine.group_minimum, other.group_minimum)


def _job_with(pod: Pod, cluster: Cluster) -> Job | None:
    """The job that a pod is present in."""
    job = cluster.jobs.by_key.get(find_job(pod))
    return job if job is not None and pod.uid in job.pods else None


def _present(key: JobKey, cluster: Cluster) -> Job | None:
    job = cluster.jobs.by_key.get(key)
    return job if job is not None and job.present else None


def _sizes(job: Job) -> tuple[int, int]:
    return job.size, job.present


def _has_groups_alike(key: JobKey, cluster: Cluster, rebuilt: Cluster) -> bool:
    # A kind that has just come or gone is looked for now and then only (`allocator.watch.pod_groups`).
    return (key.kind in cluster.jobs.watched_kinds) == (key.kind in rebuilt.jobs.watched_kinds)


def _book(name: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """The index, and the chips that two have."""
    record = cluster.nodes.get(name)
    if record is None:
        return
    place = cluster.index.entries.get(name)
    kept = place.vacancy if isinstance(place, Bucket) else place
    yield from _differs(f"node {name}", "entry in the index", kept, assess(record, ledger.on(name)))
    yield from _twice(record, ledger.on(name))


def _reservation(reservation: Reservation, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    if ledger.get(reservation.uid) is not reservation:
        return  # it has ended meanwhile
    pod = cluster.pods.get(reservation.uid)
    if pod is not None and (pod.spec.node_name or not pod.is_live):
        yield Difference(f"pod {pod.key}", "reservation", f"on {reservation.node}", "none: it has its place")


def _twice(record: NodeRecord, reserved: Mapping[str, ChipSet]) -> Iterator[Difference]:
    taken: ChipSet = 0
    # What is reserved for a pod that is seen to hold chips is its own.
    has = dict(reserved) | {uid: holding.chips for uid, holding in record.holdings.items()}
    for uid, chips in sorted(has.items()):
        if taken & chips:
            names = join_names(chip_ids(taken & chips))
            yield Difference(f"node {record.name}", f"chips of pod {uid}", f"{names} twice", "given once")
        taken |= chips


def _differs(name: str, field: str, mine: object, other: object) -> Iterator[Difference]:
    kept, rebuilt = _value(mine), _value(other)
    if kept != rebuilt:
        yield Difference(name, field, str(kept), str(rebuilt))


def _value(each: object) -> object:
    # Refusals are exceptions, which are equal only to themselves.
    return f"{each.reason}: {each.message}" if isinstance(each, Refusal) else each


def _there(each: object) -> str:
    return "missing" if each is None else "there"
