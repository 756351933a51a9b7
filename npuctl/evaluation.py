"""The decisions on all waiting pods, in the order in which kube-scheduler schedules them.

All verbs ask here, so what one says of a pod no other contradicts. A pod of higher priority comes first, of several the
pods of the oldest job; what a pod gets is not free for the next. A pod that fits nowhere preempts pods of lower
priority where kube-scheduler would, which counts chips by their number only (docs/kube-scheduler.md#preemption); these
are gone for the next pod. Their successors are not known. Volcano's own order and preemption are not known either.

No reservation expires, and the clock stands still, so the same objects give the same verdicts.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from typing import Final

import msgspec
from msgspec import structs

from allocator.binding.annotations import Stamper
from allocator.decision.backlog import WaitingFor, waiting_for
from allocator.rules.job import JobKey, own_rank
from allocator.rules.own_devices import named_devices
from allocator.rules.request import counted_chips, counted_cores, counted_vnpus
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import NEVER, Suggestion
from allocator.settings import Settings
from allocator.state.job import Job
from allocator.state.node import Server
from allocator.state.reservation import Reservation, Stage
from ascend.annotations import ALLOCATED
from ascend.errors import Refusal
from ascend.grammar import some
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Category
from ascend.turn import at_once
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects

VOLCANO: Final = "volcano"
"""The name of Volcano's scheduler."""
_DEFAULT_SCHEDULER: Final = "default-scheduler"
"""The name that the API server writes where a pod has none."""

_NUMBERS: Final = re.compile(r"(\d+)")
_NO_PRIORITY: Final = 1 << 31
"""Above every priority."""


class PodVerdict(msgspec.Struct, frozen=True):
    """What becomes of a pod.

    Attributes:
        pod: the pod, as it waits.
        job: its job.
        held: what it gets; None if it waits.
        refusal: why it waits; None if it gets something.
        waits_for: what it waits for then, as the allocator's gauges say.
        victims: the pods (``namespace/name``) that it preempts on its node.
    """

    pod: Pod
    job: JobKey
    held: Reservation | None = None
    refusal: Refusal | None = None
    waits_for: WaitingFor | None = None
    victims: tuple[str, ...] = ()


class Evaluation:
    """Decides on the pods of a cluster that wait.

    Args:
        objects: the objects; pods with the gates of others don't wait.
        settings: the allocator's settings.
        now_ns: the time, Unix nanoseconds.

    Attributes:
        allocator: the allocator; what is decided is bound there at once.
    """

    def __init__(self, objects: ClusterObjects, settings: Settings, now_ns: int) -> None:
        self.allocator = OfflineAllocator(objects, settings, now_ns)
        self._objects = objects
        self._settings = settings
        self._now_ns = now_ns
        self._pods = {pod.uid: pod for pod in objects.pods}
        self._stamper = Stamper(self.allocator.cluster, self.allocator.ledger, lambda: now_ns)
        at_once(self._stamper.resume())
        placed = (pod.spec.scheduler_name for pod in objects.pods if ALLOCATED in pod.metadata.annotations)
        # Volcano's plugin asks for pods of any scheduler, so pods that were placed show schedulers that ask.
        self._schedulers = frozenset({*settings.scheduler_names, *placed})
        self._ended: defaultdict[str, dict[str, list[str]]] = defaultdict(dict)
        self._in_vain: tuple[object, int] | None = None
        running = (pod for pod in self._pods.values() if pod.spec.node_name and pod.is_live and pod.requests_chips)
        self._lowest = min((pod.priority for pod in running), default=_NO_PRIORITY)

    @property
    def objects(self) -> ClusterObjects:
        """The objects as they are after what has been decided."""
        return self._objects.with_pods(sorted(self._pods.values(), key=lambda pod: pod.key))

    def without_running(self) -> OfflineAllocator:
        """Return the cluster as it was given, without the pods that were on nodes."""
        given = self._objects.without(lambda pod: bool(pod.spec.node_name))
        return OfflineAllocator(given, self._settings, self._now_ns)

    def waiting(self) -> list[Pod]:
        """Return the pods that wait for the allocator's decision, in the order of the decisions."""
        return [pod for members in self.queue() for pod in members]

    def queue(self) -> list[list[Pod]]:
        """The same pods in groups: gangs, and pods of the same job and priority.

        The groups by priority, creation time and name; their pods by rank and by the numbers in their names. Pods
        without a creation time come last.
        """
        units = defaultdict[tuple[JobKey, int | None], list[Pod]](list)
        for pod in self._pods.values():
            if self.allocator.waits(pod):
                job = self.allocator.job_of(pod)
                units[job.key, None if self.allocator.engine.is_of_gang(pod) else pod.priority].append(pod)
        ordered = sorted(units.items(), key=lambda unit: (*_precedence(unit[1]), unit[0][0]))
        return [sorted(members, key=position) for _, members in ordered]

    def warnings(self, pod: Pod) -> tuple[str, ...]:
        """Sentences beside refusals: chips taken by hand, a scheduler that nobody serves, a job that can't scale."""
        if not pod.waits_for_chips:
            return tuple(named_devices(pod))
        unserved = _unserved_scheduler(pod, self._schedulers)
        scaling = self.allocator.engine.against_scaling(pod)
        return (*named_devices(pod), *([unserved] if unserved is not None else []), *scaling)

    async def decide(self, pod: Pod) -> PodVerdict:
        """Decide on a pod, and bind it to the node it gets."""
        verdict = await self.judge(pod)
        if verdict.held is not None:
            self.bind(pod, verdict.held)
        return verdict

    async def judge(self, pod: Pod) -> PodVerdict:
        """Decide on a pod without a Binding: its devices are reserved, and its victims are deleted."""
        job = self.allocator.job_of(pod)
        try:
            return self._place(pod, job)
        except Refusal as refusal:
            refused = refusal.without_frames()
        if gone := await self._preempt(pod, job):
            with suppress(Refusal):
                return self._place(pod, job)
            for victim in gone:
                self.apply(victim)
            self.allocator.ledger.promises.drop(_owner(pod, job))
        self.allocator.engine.earmarks.choose()  # now, whether a verb asks for more of this pod or not
        return PodVerdict(pod, job.key, refusal=refused, waits_for=self._waits_for(pod, job, refused))

    def bind(self, pod: Pod, held: Reservation) -> dict[str, str]:
        """Bind a pod to the node it gets; returns the annotations of its Binding."""
        stamped = self._stamper.stamp(held, Stage.BINDING)
        annotations = self._stamper.annotations(pod, stamped)
        # As the watch shows it after its Binding: from then on the pod itself holds its chips.
        metadata = structs.replace(pod.metadata, annotations=pod.metadata.annotations | annotations)
        self.apply(structs.replace(pod, metadata=metadata, spec=structs.replace(pod.spec, node_name=stamped.node)))
        return annotations

    def apply(self, pod: Pod) -> None:
        """Add a pod, or show it as it is now."""
        self._pods[pod.uid] = pod
        self.allocator.cluster.pod_applied(pod)
        if pod.spec.node_name and pod.is_live and pod.requests_chips:
            self._lowest = min(self._lowest, pod.priority)

    def delete(self, pod: Pod) -> None:
        """Delete a pod, also one that was placed before."""
        del self._pods[pod.uid]
        self.allocator.cluster.pod_deleted(pod)

    def _place(self, pod: Pod, job: Job) -> PodVerdict:
        held = self.allocator.place(pod)
        victims = self._ended.get(_owner(pod, job), {}).pop(held.node, ())
        return PodVerdict(pod, job.key, held, victims=tuple(victims))

    def _waits_for(self, pod: Pod, job: Job, refusal: Refusal) -> WaitingFor:
        engine, index = self.allocator.engine, self.allocator.cluster.index
        if refusal.reason.category is Category.REQUEST:
            return WaitingFor.CHANGE
        if refusal.reason.category is Category.INCOMPLETE:
            return WaitingFor.PODS
        gang = engine.gang_of(pod)
        if gang is not None and engine.gangs.obstacles.refusal(job) is not None:
            return WaitingFor.SCHEDULER
        try:
            request = engine.request_of(pod)
        except Refusal:
            return WaitingFor.CHANGE
        nodes = self.allocator.selected_nodes(pod) if pod.spec.restricts_nodes else None
        return waiting_for(index.reasons(request, nodes) if gang is None else index.reasons_when_full(request, nodes))

    async def _preempt(self, pod: Pod, job: Job) -> list[Pod]:
        """Delete the pods that kube-scheduler would preempt for a pod or its gang; return the victims."""
        spec = pod.spec
        if self._lowest >= pod.priority or spec.preemption_policy == NEVER or spec.scheduler_name == VOLCANO:
            return []
        allocator, preemption = self.allocator, self.allocator.preemption
        kind: object = job.key.plan
        if not job.is_gang:
            kind = tuple(sorted(_resources(pod).items())), spec.node_requirements, pod.priority
        state = kind, allocator.cluster.changes.revision
        if state == self._in_vain:
            return []  # as for the last one like it
        preemptors = [pod]
        if allocator.engine.is_of_gang(pod):
            # The first ones are answered once their scheduler has tried the others.
            waiting = [peer for _, peer in job.by_rank() if peer.waits_for_chips and peer.uid != pod.uid]
            preemptors = [pod, *waiting] * 2
        ended = defaultdict[str, dict[str, None]](dict)
        for preemptor in preemptors:
            suggested, passed = self._by_number(preemptor)
            if passed:
                preemption.on_filter(preemptor, passed)
            with suppress(Refusal):
                if suggested and (chosen := await preemption.improve(preemptor, suggested)) is not None:
                    ended[chosen.node] |= dict.fromkeys(victim.uid for victim in chosen.victims)
        self._in_vain = None if ended else state
        gone = {node: [self._pods[uid] for uid in uids if uid in self._pods] for node, uids in ended.items()}
        for victim in chain.from_iterable(gone.values()):
            self.delete(victim)
        self._ended[_owner(pod, job)] = {node: [victim.key for victim in pods] for node, pods in gone.items()}
        return [victim for pods in gone.values() for victim in pods]

    def _by_number(self, pod: Pod) -> tuple[dict[str, Suggestion], list[str]]:
        """By number alone, as kube-scheduler counts: the nodes where others have to end, and those where none has."""
        wanted = _resources(pod)
        suggested, passed = dict[str, Suggestion](), list[str]()
        for name in sorted(self.allocator.selected_nodes(pod)):
            record = self.allocator.cluster.nodes[name]
            if not isinstance(record.offer, Vacancy) or not isinstance(record.server, Server):
                continue
            there = [self._pods[uid] for uid in record.holdings if uid in self._pods]
            lower = [other for other in there if other.priority < pod.priority]
            free = _allocatable(record.server)
            for other in there:
                free.subtract(_resources(other))
            if all(free[resource] >= number for resource, number in wanted.items()):
                passed.append(name)
                continue
            for other in lower:
                free.update(_resources(other))
            if lower and all(free[resource] >= number for resource, number in wanted.items()):
                suggested[name] = Suggestion(tuple(other.uid for other in lower))
        return suggested, passed


def _unserved_scheduler(pod: Pod, serving: frozenset[str]) -> str | None:
    """A sentence about a pod whose scheduler is not known to ask the allocator; None if it is."""
    name = pod.spec.scheduler_name or _DEFAULT_SCHEDULER
    if name in serving:
        return None
    return (
        f"no scheduler {printable(name)} is known to ask the allocator, which serves {some(sorted(serving))} (setting "
        "scheduler_names): name one of these in spec.schedulerName, or connect that scheduler (docs/kube-scheduler.md, "
        "docs/volcano.md)"
    )


def position(pod: Pod) -> tuple[bool, int, tuple[object, ...], str]:
    """Return the order of the pods of a job: by rank, and by the numbers in their names."""
    rank = own_rank(pod)
    # Every second part is a number: train-10 comes after train-9.
    parts = _NUMBERS.split(pod.name)
    return rank is None, rank or 0, tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), pod.name


def _precedence(pods: Iterable[Pod]) -> tuple[int, datetime]:
    """The order of pods of one job: the most important first, then the oldest."""
    return min(-pod.priority for pod in pods), min(_created(pod) for pod in pods)


def _created(pod: Pod) -> datetime:
    stamp = pod.metadata.creation_timestamp
    return msgspec.convert(stamp, datetime) if stamp is not None else datetime.max.replace(tzinfo=UTC)


def _owner(pod: Pod, job: Job) -> str:
    return job.key.plan if job.is_gang else pod.uid


def _resources(pod: Pod) -> Counter[str]:
    """What kube-scheduler counts for a pod."""
    found = Counter({"chips": counted_chips(pod), "cores": counted_cores(pod), **counted_vnpus(pod)})
    return +found


def _allocatable(server: Server) -> Counter[str]:
    return Counter({"chips": server.allocatable, "cores": server.allocatable_cores, **server.allocatable_vnpus})
