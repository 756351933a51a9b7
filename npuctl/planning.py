"""A planning run: what the allocator would do with the pods of a snapshot, by the code it does it with.

Every pod without a node is decided as if a scheduler asked for it alone and bound it at once to where it was told:
no reservation expires, and the decision times are those of a clock that stands still, so that the same objects give
the same answer byte for byte. Of what else a scheduler looks at only the node selector counts (taints, affinity,
processors and memory play no part).
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
from msgspec import structs

from allocator.binding.annotations import binding_annotations
from allocator.binding.predicate_time import PredicateTimes
from allocator.decision.engine import DecisionEngine
from allocator.rules.job import JobKey, own_rank
from allocator.settings import Settings
from allocator.state.jobs import Jobs
from ascend.chips import chip_name
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from npuctl.selection import fits, place, refusals
from npuctl.snapshot import Allocation, Snapshot

_NUMBERS = re.compile(r"(\d+)")


class Candidate(msgspec.Struct, frozen=True):
    """A node a pod fits on: rank (1 is the best, equals share one), the reference scheduler's score, the chips."""

    node: str
    rank: int
    score: int
    chips: tuple[str, ...]


class Planned(msgspec.Struct, frozen=True):
    """A pod that gets chips, and what its Binding would write on it."""

    namespace: str
    name: str
    job: str
    node: str
    chips: tuple[str, ...]
    annotations: dict[str, str]
    candidates: tuple[Candidate, ...] | msgspec.UnsetType = msgspec.UNSET


class Why(msgspec.Struct, frozen=True):
    """Why not."""

    reason: str
    message: str


class Pending(msgspec.Struct, frozen=True):
    """A pod that gets none, altogether and node by node."""

    namespace: str
    name: str
    job: str
    reason: str
    message: str
    nodes: dict[str, Why]


class Block(msgspec.Struct, frozen=True):
    """A block of a job in a SuperPod after faults: ``kept``, ``patched`` or ``moved``, and its nodes."""

    verdict: str
    nodes: tuple[str, ...]


class Rescheduled(msgspec.Struct, frozen=True):
    """A job whose pods have to move."""

    job: str
    delete: tuple[str, ...]
    blocks: dict[str, Block]


class Plan(msgspec.Struct, frozen=True):
    """The answer; pods in the order they were decided."""

    pods: tuple[Planned, ...]
    pending: tuple[Pending, ...]
    rescheduled: tuple[Rescheduled, ...] = ()


def plan(snapshot: Snapshot, settings: Settings, now_ns: int, *, candidates: bool = False) -> Plan:
    """Decide on every pod that waits for a node, job after job.

    Args:
        snapshot: the objects.
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
        candidates: tell of every node that fits, too.
    """
    allocation = Allocation.of(snapshot, settings, lambda: now_ns / 1e9)
    stamps = PredicateTimes(lambda: now_ns, allocation.cluster.predicate_times)
    planned: list[Planned] = []
    pending: list[Pending] = []
    for pod in in_order(snapshot.pods, allocation):
        job = job_name(allocation.cluster.jobs, pod)
        offered = candidates_of(allocation, pod) if candidates else msgspec.UNSET
        try:
            reservation = place(allocation, pod)
        except Refusal as refusal:
            nodes = refusals(allocation, pod)
            namespace, name = pod.metadata.namespace, pod.name
            why = {node: Why(each.reason, each.message) for node, each in sorted(nodes.items())}
            pending.append(Pending(namespace, name, job, refusal.reason, refusal.message, why))
            continue
        grant = replace(reservation.grant, predicate_time=stamps.next())
        record = allocation.cluster.nodes.get(reservation.node)
        annotations = binding_annotations(
            pod, grant, allocation.cluster.jobs, record.node if record is not None else None
        )
        allocation.cluster.pod_applied(_bound(pod, reservation.node, annotations))
        chips = tuple(map(chip_name, grant.chips))
        planned.append(Planned(pod.metadata.namespace, pod.name, job, reservation.node, chips, annotations, offered))
    return Plan(tuple(planned), tuple(pending))


def waits(pod: Pod, engine: DecisionEngine) -> bool:
    """Whether a pod waits for a node and a word of ours: schedulers leave alone what is being deleted."""
    return pod.is_live and not pod.is_terminating and not pod.spec.node_name and engine.handles(pod)


def in_order(pods: Iterable[Pod], allocation: Allocation) -> list[Pod]:
    """The pods that wait: jobs by creation and name, pods of one job by rank and by the numbers in their names.

    What was not created yet comes after what was.
    """
    waiting: dict[JobKey, list[Pod]] = {}
    for pod in pods:
        if waits(pod, allocation.engine):
            waiting.setdefault(allocation.cluster.jobs.job_of(pod).key, []).append(pod)
    ordered = sorted(waiting.items(), key=lambda job: (min(_created(pod) for pod in job[1]), job[0]))
    return [pod for _, members in ordered for pod in sorted(members, key=_number)]


def job_name(jobs: Jobs, pod: Pod) -> str:
    """``namespace/name`` of the job a pod belongs to."""
    return str(jobs.job_of(pod).key)


def _bound(pod: Pod, node: str, annotations: dict[str, str]) -> Pod:
    """The pod as the watch shows it after its Binding: from then on it holds its chips itself."""
    metadata = structs.replace(pod.metadata, annotations=pod.metadata.annotations | annotations)
    return structs.replace(pod, metadata=metadata, spec=structs.replace(pod.spec, node_name=node))


def candidates_of(allocation: Allocation, pod: Pod) -> tuple[Candidate, ...]:
    """Every node a pod fits on, best first."""
    try:
        found = fits(allocation, pod)
    except Refusal:
        return ()
    ranks: dict[object, int] = {}
    return tuple(
        Candidate(
            node, ranks.setdefault((fit.key, fit.score), len(ranks) + 1), fit.score, tuple(map(chip_name, fit.chips))
        )
        for node, fit in found
    )


def _created(pod: Pod) -> datetime:
    stamp = pod.metadata.creation_timestamp
    return datetime.fromisoformat(stamp) if stamp is not None else datetime.max.replace(tzinfo=UTC)


def _number(pod: Pod) -> tuple[bool, int, tuple[object, ...], str]:
    rank = own_rank(pod)
    # train-10 comes after train-9; every second part is a number.
    parts = _NUMBERS.split(pod.name)
    return rank is None, rank or 0, tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), pod.name
