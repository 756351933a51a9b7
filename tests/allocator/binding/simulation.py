"""Gangs on a cluster with CPU and taints unknown to the allocator, with a scheduler like kube-scheduler."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from msgspec.structs import replace

from allocator.binding.binding import Assignment, PodRef
from ascend.errors import AscendError, Refusal
from ascend.kube.objects import Condition, Pod
from tests.allocator.binding.rig import HOLD_S, BinderWorld, Server
from tests.allocator.builders import TYPE, node, pod
from tests.allocator.expiry import expire

CHIPS = 8
LABELS = {TYPE: "module-910b-8"}
STEP_S = 0.25
LONGEST_BACKOFF_S = 10.0
NOMINATED_S = 0.75
"""How long after the scheduler has cleared a nomination it sees the next one."""
BOUND_S = 0.5
"""How long after its filters a pod without chips is seen bound."""


@dataclass
class Demand:
    """What a pod requests, the nodes whose taints it tolerates, whether its scheduler exists, and what else it asks."""

    pod: Pod
    chips: int
    cpu: int
    tolerated: frozenset[str]
    is_tried: bool = True
    other: str = ""

    def created(self) -> Pod:
        """The pod, with the number of what it asks of nodes."""
        number = hash((self.chips, self.cpu, self.tolerated, self.other))
        self.pod = replace(self.pod, spec=replace(self.pod.spec, requirements=number))
        return self.pod


@dataclass
class Entry:
    """A pod in the scheduler's queue."""

    demand: Demand
    due_s: float = 0.0
    backoff_s: float = 1.0
    needs_event: bool = False
    has_failed: bool = False
    """Its Binding has failed: it is not tried before its backoff is over."""
    tried_s: float = -1.0


@dataclass
class Case:
    """A cluster and the gangs on it: CPU by node, and the demands of each gang."""

    cpu: dict[str, int]
    gangs: list[list[Demand]]

    def fits(self, gang: list[Demand], used: dict[str, Demand]) -> bool:
        """Whether a whole gang fits beside the pods that are bound (name of the node by uid of the pod)."""
        chips, cpu = Counter[str](), Counter[str]()
        for where, each in used.items():
            chips[where.partition(" ")[0]] += each.chips
            cpu[where.partition(" ")[0]] += each.cpu
        for nodes in itertools.product(*(sorted(each.tolerated) for each in gang)):
            more_chips, more_cpu = Counter(chips), Counter(cpu)
            for name, each in zip(nodes, gang, strict=True):
                more_chips[name] += each.chips
                more_cpu[name] += each.cpu
            if all(more_chips[name] <= CHIPS and more_cpu[name] <= self.cpu[name] for name in self.cpu):
                return True
        return False


@dataclass
class Simulation:
    """kube-scheduler's scheduling and binding cycles, on a virtual clock.

    Attributes:
        case: the cluster and the gangs.
        cycles: the scheduling cycles in a step.
        is_eager: pods are tried before their backoff is over when no other has to be, if there are several cycles in a
            step (k/k:pkg/scheduler/backend/queue, SchedulerPopFromBackoffQ, since Kubernetes 1.33).
        counts_bindings: a Binding that has failed makes the next backoff longer, as any attempt.
        earmark_share: the share of the chips that may be kept for a waiting gang.
        hold_s: how long a Binding is held.
        clears: kube-scheduler 1.34, which clears the nomination of a pod whose Binding has failed.
        thieves: pods without chips and gang, and when they are created, in seconds.
        nominated: the nodes that count as nominated for the scheduler, by uid of the pod.
    """

    case: Case
    cycles: int = 1
    is_eager: bool = True
    counts_bindings: bool = False
    earmark_share: float = 0.0
    hold_s: float = HOLD_S
    clears: bool = True
    thieves: list[tuple[float, Demand]] = field(default_factory=list)
    nominated: dict[str, str] = field(default_factory=dict)
    rig: BinderWorld = field(init=False)
    queue: dict[str, Entry] = field(default_factory=dict)
    assumed: dict[str, str] = field(default_factory=dict)
    bindings: dict[str, asyncio.Task[Assignment]] = field(default_factory=dict)
    demands: dict[str, Demand] = field(default_factory=dict)
    _bound_thieves: list[tuple[float, str]] = field(default_factory=list)
    _arrived: set[str] = field(default_factory=set)
    _renominated_s: dict[str, float] = field(default_factory=dict)
    _backoff_s: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.demands = {each.pod.uid: each for gang in self.case.gangs for each in gang}
        pods = [each.created() for each in self.demands.values()]
        self.rig = BinderWorld(server=Server(*pods), earmark_share=self.earmark_share, hold_s=self.hold_s)
        for name in ("n1", "n2"):
            self.rig.world.cluster.node_deleted(node(name))
        self.rig.world.add(*(node(name, labels=LABELS) for name in self.case.cpu), *pods)
        self._enqueue(self.demands.values())
        self._started_s = self.rig.world.now_s

    async def run(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.rig.world.now_s += STEP_S
            await self._end_bindings()
            self._nominate()
            self._admit_thieves()
            for _ in range(self.cycles):
                if not self._schedule_next():
                    break
                for _ in range(2):  # the Binding is asked for before the next pod is refused
                    await asyncio.sleep(0)
            if self.now_s % 1 == 0:
                expire(self.rig.world.ledger)
                await self.rig.barrier.check()
                self._requeue()
            for _ in range(4):
                await asyncio.sleep(0)

    @property
    def now_s(self) -> float:
        """The time since the start."""
        return self.rig.world.now_s - self._started_s

    @property
    def bound(self) -> dict[str, Demand]:
        return {f"{self.assumed[uid]} {uid}": each for uid, each in self.demands.items() if self._is_bound(uid)}

    def add(self, gang: list[Demand]) -> None:
        """Pods are created."""
        pods = [each.created() for each in gang]
        self.demands |= {each.pod.uid: each for each in gang}
        self.rig.server.pods |= {each.name: each for each in pods}
        self.rig.world.add(*pods)
        self._enqueue(gang)

    def _enqueue(self, demands: Iterable[Demand]) -> None:
        self.queue |= {each.pod.uid: Entry(each) for each in demands if each.is_tried and not each.pod.is_gated}

    def settle(self, demand: Demand, name: str) -> None:
        """A pod runs already, and goes on for ever."""
        held = range(demand.chips) if demand.chips else ()
        spec = replace(demand.pod.spec, node_name=name)
        annotations = {**demand.pod.metadata.annotations, **pod("", demand.chips, chips=held).metadata.annotations}
        metadata = replace(demand.pod.metadata, annotations=annotations)
        self.rig.world.add(replace(demand.pod, spec=spec, metadata=metadata))
        self.demands[demand.pod.uid] = demand
        self.assumed[demand.pod.uid] = name
        self._arrived.add(demand.pod.uid)

    def end(self, gang: list[Demand]) -> None:
        """The pods of a gang are deleted."""
        for each in gang:
            self.rig.world.cluster.pod_deleted(self.rig.world.cluster.pods[each.pod.uid])
            del self.assumed[each.pod.uid], self.demands[each.pod.uid]
        self.wake()

    def end_plain(self, thief: Demand) -> None:
        """A pod without chips ends."""
        self.thieves = [entry for entry in self.thieves if entry[1] is not thief]
        arrived = replace(thief.pod, spec=replace(thief.pod.spec, node_name=self.assumed.pop(thief.pod.uid)))
        self.rig.world.cluster.pod_deleted(arrived)
        del self.demands[thief.pod.uid]
        self.wake()

    async def close(self) -> None:
        """Give up the Bindings that are held."""
        for task in self.bindings.values():
            task.cancel()
        await asyncio.gather(*self.bindings.values(), return_exceptions=True)

    def started(self, gang: list[Demand]) -> int:
        return sum(self._is_bound(each.pod.uid) for each in gang)

    def _is_bound(self, uid: str) -> bool:
        known = self.rig.world.cluster.pods.get(uid)  # pods without chips are not among them
        return uid in self._arrived or (known is not None and bool(known.spec.node_name))

    def _is_posted(self, uid: str) -> bool:
        """Whether a Binding was posted for which the scheduler has not asked."""
        posted = self.rig.server.pods.get(self.demands[uid].pod.name)
        return posted is not None and bool(posted.spec.node_name)

    def _schedule_next(self) -> bool:
        """Run a scheduling cycle, if a pod is to be tried now."""
        now_s = self.rig.world.now_s
        active = [each for each in self.queue.values() if not each.needs_event]
        ready = [each for each in active if each.due_s <= now_s]
        if not ready and self.cycles > 1 and self.is_eager:
            ready = [each for each in active if not each.has_failed and each.tried_s < now_s]
        if not ready:
            return False
        self._schedule(min(ready, key=lambda entry: entry.due_s))
        return True

    def _schedule(self, entry: Entry) -> None:
        now_s = self.rig.world.now_s
        entry.tried_s = now_s
        each = self.rig.world.cluster.pods.get(entry.demand.pod.uid, entry.demand.pod)
        first = self.nominated.get(each.uid, "")
        feasible = [first] if first and self._fits(entry.demand, first) else []
        feasible = feasible or [name for name in self.case.cpu if self._fits(entry.demand, name)]
        if not feasible:
            self._fail(entry, self._message(entry.demand), needs_event=True)
            return
        if entry.demand.chips == 0:
            del self.queue[each.uid]
            self.assumed[each.uid] = feasible[0]
            self._bound_thieves.append((now_s + BOUND_S, each.uid))
            return
        self.rig.barrier.on_filter(each.uid, feasible)
        self.rig.world.engine.gangs.obstacles.on_request(each)
        try:
            chosen = self.rig.world.engine.place(each, feasible).node
        except Refusal as refusal:
            self._fail(entry, f"{refusal.reason}: {refusal}", needs_event=True)
            return
        del self.queue[each.uid]
        self.assumed[each.uid] = chosen
        self.bindings[each.uid] = asyncio.create_task(self.rig.binder.bind(PodRef.of(each), chosen, is_repeated=True))

    def _fits(self, demand: Demand, name: str) -> bool:
        there = [self.demands[uid] for uid, where in self.assumed.items() if where == name]
        for uid, where in self.nominated.items():
            other = self.demands[uid]
            if where == name and other is not demand and uid not in self.assumed:
                there += [other] * (other.pod.priority >= demand.pod.priority)
        return (
            name in demand.tolerated
            and demand.cpu + sum(each.cpu for each in there) <= self.case.cpu[name]
            and demand.chips + sum(each.chips for each in there) <= CHIPS
        )

    def _message(self, demand: Demand) -> str:
        """Why no node passes the scheduler's own filters, and on how many of them preemption can't help."""
        reasons, helpless = Counter[str](), 0
        for name, cpu in self.case.cpu.items():
            there = [self.demands[uid] for uid, where in self.assumed.items() if where == name]
            if name not in demand.tolerated:
                reasons["node(s) had untolerated taint {a: b}"] += 1
            else:
                reasons["Insufficient cpu"] += demand.cpu + sum(each.cpu for each in there) > cpu
                reasons["Insufficient huawei.com/Ascend910"] += demand.chips + sum(each.chips for each in there) > CHIPS
            helpless += name not in demand.tolerated or demand.cpu > cpu
        nodes = f"0/{len(self.case.cpu)} nodes are available: "
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()) if count)
        return f"{nodes}{listed}. preemption: {nodes}{helpless} Preemption is not helpful for scheduling."

    def _fail(self, entry: Entry, message: str, *, needs_event: bool) -> None:
        entry.due_s = self.rig.world.now_s + entry.backoff_s
        entry.backoff_s = min(2 * entry.backoff_s, LONGEST_BACKOFF_S)
        self._backoff_s[entry.demand.pod.uid] = entry.backoff_s
        entry.needs_event, entry.has_failed = needs_event, not needs_event
        known = self.rig.world.cluster.pods.get(entry.demand.pod.uid)
        if known is None:  # no gang, so nobody reads it
            return
        condition = Condition("PodScheduled", "False", "Unschedulable" if needs_event else "SchedulerError", message)
        node = known.status.nominated_node_name
        if self.clears:
            self.nominated.pop(known.uid, None)
            self._renominated_s[known.uid] = self.rig.world.now_s + NOMINATED_S
            node = ""
        status = replace(known.status, conditions=[condition], nominated_node_name=node)
        if status != known.status:
            self.rig.world.add(replace(known, status=status))

    def _nominate(self) -> None:
        """What the nominator does, and its scheduler sees."""
        for uid in self.rig.barrier.lapsed:
            if self.rig.world.now_s < self._renominated_s.get(uid, 0.0):
                continue
            known, node = self.rig.world.cluster.pods[uid], self.rig.barrier.lapsed.node_of(uid) or ""
            if known.status.nominated_node_name != node:
                self.rig.world.add(replace(known, status=replace(known.status, nominated_node_name=node)))
            self.nominated[uid] = node
        for uid in tuple(self.nominated):
            if uid not in self.rig.barrier.lapsed and uid not in self.assumed:
                known = self.rig.world.cluster.pods[uid]
                self.rig.world.add(replace(known, status=replace(known.status, nominated_node_name="")))
                del self.nominated[uid]

    def _admit_thieves(self) -> None:
        for since_s, each in self.thieves:
            if since_s <= self.now_s and each.pod.uid not in self.demands:
                self.demands[each.pod.uid] = each
                self.queue[each.pod.uid] = Entry(each)
        for due_s, uid in tuple(self._bound_thieves):
            if due_s <= self.rig.world.now_s:
                self._bound_thieves.remove((due_s, uid))
                arrived = self.demands[uid].pod
                self.rig.world.add(replace(arrived, spec=replace(arrived.spec, node_name=self.assumed[uid])))
                self._arrived.add(uid)
                self.wake()

    def oversubscribed(self) -> list[str]:
        """The nodes whose CPU does not suffice for the pods that are bound to them."""
        used = Counter[str]()
        for uid, name in self.assumed.items():
            if uid not in self.queue and self._is_bound(uid):
                used[name] += self.demands[uid].cpu
        return [name for name, cpu in used.items() if cpu > self.case.cpu[name]]

    async def _end_bindings(self) -> None:
        for uid in [uid for uid in self.queue if self._is_posted(uid)]:
            del self.queue[uid]
            posted = self.rig.server.pods[self.demands[uid].pod.name]
            self.assumed[uid] = posted.spec.node_name
            known = self.rig.world.cluster.pods[uid]
            annotations = {**known.metadata.annotations, **posted.metadata.annotations}
            metadata = replace(known.metadata, annotations=annotations)
            self.rig.world.add(
                replace(known, metadata=metadata, spec=replace(known.spec, node_name=posted.spec.node_name))
            )
            self.wake()
        for uid, task in tuple(self.bindings.items()):
            if not task.done():
                continue
            del self.bindings[uid]
            try:
                bound = task.result()
            except AscendError as error:
                backoff_s = self._backoff_s.get(uid, 1.0) if self.counts_bindings else 1.0
                entry = self.queue[uid] = Entry(self.demands[uid], backoff_s=backoff_s)
                self._fail(entry, f"{error.reason}: {error}", needs_event=False)
                del self.assumed[uid]
            else:
                known = self.rig.world.cluster.pods[uid]
                annotations = {**known.metadata.annotations, **bound.grant.annotations()}
                metadata = replace(known.metadata, annotations=annotations)
                self.rig.world.add(replace(known, metadata=metadata, spec=replace(known.spec, node_name=bound.node)))
            self.wake()

    def wake(self) -> None:
        """Pods or nodes have changed: the scheduler tries all pods again."""
        for each in self.queue.values():
            each.needs_event = False

    def _requeue(self) -> None:
        """What the requeuer does: a changed annotation on a pod that would fit now."""
        for each in self.queue.values():
            if (
                each.needs_event
                and each.demand.chips
                and self.rig.world.engine.may_fit(self.rig.world.cluster.pods[each.demand.pod.uid])
            ):
                each.needs_event = False
