"""Whether the state kept event by event is what the objects of the API server give: rebuilt from them and compared.

The ledger is no part of the rebuilding, since reservations are nowhere else; of it is asked what must hold anyway: that
no chip is kept twice, and nothing for a pod that has its place already. What is counted with its help, the peers that a
pod joins, must be what the pods and reservations that are kept give.

Of jobs the past is left out: the ranks that pods were given.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, TypeAlias, TypeVar

import msgspec

from allocator.rules.job import JobKey, find_job
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, assess
from allocator.state.peers import Place
from allocator.state.ranking import Bucket
from allocator.state.reservation import Reservation
from ascend.chips import ChipSet, chip_ids, join_names
from ascend.errors import Refusal
from ascend.kube.objects import BatchJob, ConfigMap, Node, Pod, PodGroup, StatefulSet

_PART: Final = 64

_T = TypeVar("_T")
_Owner: TypeAlias = StatefulSet | BatchJob
_Groups: TypeAlias = Mapping[str, Iterable[PodGroup]]

_DERIVED = frozenset({"name", "node", "offer", "holdings"})
_NO_GROUPS: Final[_Groups] = MappingProxyType({})


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


def audit(
    cluster: Cluster,
    ledger: Ledger,
    *,
    nodes: Iterable[Node],
    reports: Iterable[ConfigMap],
    pods: Iterable[Pod],
    owners: Iterable[_Owner] = (),
    groups: _Groups = _NO_GROUPS,
) -> list[Difference]:
    """Compare a cluster with one made from nothing; no differences is what must come out.

    Args:
        cluster: as kept.
        ledger: its reservations.
        nodes: all nodes the API server has.
        reports: the ConfigMaps that tell of them, the device plugins' and the node agents'.
        pods: all pods.
        owners: all StatefulSets and Jobs.
        groups: all pod groups of each kind the API server has.
    """
    twin = rebuild(cluster.twin(), nodes=nodes, reports=reports, pods=pods, owners=owners, groups=groups)
    return compare(cluster, ledger, twin)


def rebuild(
    twin: Cluster,
    *,
    nodes: Iterable[Node],
    reports: Iterable[ConfigMap],
    pods: Iterable[Pod],
    owners: Iterable[_Owner],
    groups: _Groups,
) -> Cluster:
    """Fill an empty cluster; touches nothing else, so that it may run in a thread."""
    for node in nodes:
        twin.node_applied(node)
    for report in reports:
        twin.report_applied(report)
        twin.health_applied(report)
    for owner in owners:
        twin.jobs.owner_applied(owner)
    for kind, some in groups.items():
        for group in some:
            twin.jobs.group_applied(kind, group)
        twin.jobs.watched(kind)
    for pod in pods:
        twin.pod_applied(pod)
    return twin


def compare(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> list[Difference]:
    """What differs between a cluster and one that was rebuilt, in the order of names."""
    return sorted(chain.from_iterable(compare_by_parts(cluster, ledger, rebuilt)))


def compare_by_parts(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> Iterator[list[Difference]]:
    """The same, in parts that take some milliseconds each; the cluster may change between two of them."""
    for names in _keys(cluster.nodes, rebuilt.nodes):
        yield [each for name in names for each in _node(name, cluster, rebuilt)]
        yield [each for name in names for each in _book(name, cluster, ledger)]
    for uids in _keys(cluster.pods, rebuilt.pods):
        yield [each for uid in uids for each in _pod(uid, cluster, rebuilt)]
        yield [each for uid in uids for each in _membership(uid, cluster, ledger)]
    for keys in _keys(cluster.jobs.owners, rebuilt.jobs.owners):
        yield [each for key in keys for each in _owner(key, cluster, rebuilt)]
    for keys in _keys(cluster.jobs.groups, rebuilt.jobs.groups):
        yield [each for key in keys for each in _group(key, cluster, rebuilt)]
    for keys in _keys(cluster.jobs.by_key, rebuilt.jobs.by_key):
        yield [each for key in keys for each in _job(key, cluster, rebuilt)]
    for keys in _keys(cluster.jobs.by_key, cluster.peers.counts):
        yield [each for key in keys for each in _peers(key, cluster)]
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


def _membership(uid: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """What a pod is for its job: nothing but its own objects are needed for that, and those kept are compared above."""
    pod = cluster.pods.get(uid)
    if pod is None:
        return
    yield from _differs(
        f"pod {pod.key}", "place among its peers", cluster.peers.place(uid), _place(pod, cluster, ledger)
    )


def _place(pod: Pod, cluster: Cluster, ledger: Ledger) -> Place | None:
    """Where a pod counts for its peers: one that is present, asks for chips and has not ended, once it has a place."""
    job, held = _job_with(pod, cluster), ledger.get(pod.uid)
    node = pod.spec.node_name or (held.node if held is not None else "")
    if job is None or not node or not pod.is_live or not pod.asks_for_chips:
        return None
    record = cluster.nodes.get(node)
    return Place(job.key, node, record.product.name if record is not None and record.product is not None else None)


def _peers(key: JobKey, cluster: Cluster) -> Iterator[Difference]:
    job = cluster.jobs.by_key.get(key)
    places = map(cluster.peers.place, job.pods if job is not None else ())
    counted = Counter(place.product for place in places if place is not None and place.product is not None)
    kept = cluster.peers.counts.get(key, {})
    yield from _differs(
        f"{key.kind} {key}", "pods by product", dict(sorted(kept.items())), dict(sorted(counted.items()))
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
    # A kind that has just come or gone is looked for now and then only (`allocator.groups`).
    return (key.kind in cluster.jobs.watched_kinds) == (key.kind in rebuilt.jobs.watched_kinds)


def _book(name: str, cluster: Cluster, ledger: Ledger) -> Iterator[Difference]:
    """The index, and the chips that two have."""
    record = cluster.nodes.get(name)
    if record is None:
        return
    place = cluster.index.standing.get(name)
    standing = place.vacancy if isinstance(place, Bucket) else place
    yield from _differs(f"node {name}", "standing in the index", standing, assess(record, ledger.on(name)))
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
