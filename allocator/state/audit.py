"""Whether the state kept event by event is what the objects of the API server give: rebuilt from them and compared.

The ledger is no part of the rebuilding, since reservations are nowhere else; of it is asked what must hold anyway: that
no chip is kept twice, and nothing for a pod that has its place already.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Final, TypeAlias, TypeVar

from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, assess
from allocator.state.ranking import Bucket
from allocator.state.reservation import Reservation
from ascend.chips import ChipSet, chip_ids, join_names
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap, Node, Pod

_PART: Final = 64

_T = TypeVar("_T")
_Sizes: TypeAlias = dict[JobKey, tuple[int, int]]

_DERIVED = frozenset({"name", "node", "offer", "holdings"})


@dataclass(frozen=True, slots=True, order=True)
class Difference:
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
    cluster: Cluster, ledger: Ledger, *, nodes: Iterable[Node], reports: Iterable[ConfigMap], pods: Iterable[Pod]
) -> list[Difference]:
    """Compare a cluster with one made from nothing; no differences is what must come out.

    Args:
        cluster: as kept.
        ledger: its reservations.
        nodes: all nodes the API server has.
        reports: the ConfigMaps that tell of them, the device plugins' and the node agents'.
        pods: all pods.
    """
    return compare(cluster, ledger, rebuild(cluster.twin(), nodes=nodes, reports=reports, pods=pods))


def rebuild(twin: Cluster, *, nodes: Iterable[Node], reports: Iterable[ConfigMap], pods: Iterable[Pod]) -> Cluster:
    """Fill an empty cluster; touches nothing else, so that it may run in a thread."""
    for node in nodes:
        twin.node_applied(node)
    for report in reports:
        twin.report_applied(report)
        twin.health_applied(report)
    for pod in pods:
        twin.pod_applied(pod)
    return twin


def compare(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> list[Difference]:
    """What differs between a cluster and one that was rebuilt, in the order of names."""
    return sorted(chain.from_iterable(compare_by_parts(cluster, ledger, rebuilt)))


def compare_by_parts(cluster: Cluster, ledger: Ledger, rebuilt: Cluster) -> Iterator[list[Difference]]:
    """The same, in parts that take some milliseconds each; the cluster may change between two of them."""
    for names in _parts(cluster.nodes.keys() | rebuilt.nodes.keys()):
        yield [each for name in names for each in _node(name, cluster, rebuilt)]
        yield [each for name in names for each in _book(name, cluster, ledger)]
    for uids in _parts(cluster.pods.keys() | rebuilt.pods.keys()):
        yield [each for uid in uids for each in _pod(uid, cluster, rebuilt)]
    sizes: tuple[_Sizes, _Sizes] = ({}, {})
    for jobs, known in zip((cluster.jobs, rebuilt.jobs), sizes, strict=True):
        for some in _parts(jobs):
            known |= {job.key: (job.size, job.present) for job in some if job.present}
            yield []
    for keys in _parts(sizes[0].keys() | sizes[1].keys()):
        yield [each for key in keys for each in _job(key, *sizes)]
    for reservations in _parts(ledger):
        yield [each for reservation in reservations for each in _reservation(reservation, cluster, ledger)]


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
    elif (pod := mine or other) is not None:
        yield Difference(f"pod {pod.key}", "record", _there(mine), _there(other))


def _job(key: JobKey, mine: _Sizes, other: _Sizes) -> Iterator[Difference]:
    yield from _differs(f"{key.kind} {key}", "pods (with chips, present)", mine.get(key), other.get(key))


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
