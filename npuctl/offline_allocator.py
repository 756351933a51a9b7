"""The allocator's state and decision engine on a set of objects, without its servers, watches and clock.

The engine answers as it answers kube-scheduler: a pod with a node selector or a required node affinity is only offered
the nodes that match it. (The engine itself applies those of a gang.) Nothing else by which kube-scheduler
filters is considered: no taints, affinity between pods, CPU or memory.
"""

from collections import Counter
from collections.abc import Callable

from allocator.decision.engine import DecisionEngine
from allocator.decision.preemption import Preemption
from allocator.decision.unplaced import filter_all
from allocator.gangs.network_topology import asks_for_topology
from allocator.gangs.super_pods import SuperPods
from allocator.rules.job_settings import with_settings
from allocator.rules.scheduled import holdups
from allocator.rules.summary import sum_up
from allocator.rules.unsupported import requests_other_devices
from allocator.rules.verdicts import Fit
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.kinds import fill
from allocator.state.ledger import Ledger
from allocator.state.previous_nodes import PreviousNodes
from allocator.state.promises import Promise
from allocator.state.reservation import Reservation
from allocator.state.switches import asks_for_switches
from allocator.state.view import Without
from allocator.superpods.demand import Demand
from allocator.switches.publication import describe_switches
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Reason
from ascend.turn import at_once
from npuctl.reading.objects import HEALTH_NAMESPACE, ClusterObjects


class OfflineAllocator:
    """An allocator with the given settings and objects, at a fixed time or on a virtual clock.

    Args:
        objects: the objects.
        settings: the allocator's settings.
        now_ns: the time, Unix nanoseconds.
        elapsed_s: the seconds since then.
        loans: how many times a waiting job lends its chips, for each of its pods; of a real cluster it is not known how
            many loans its allocator has made, so none is expected.

    Attributes:
        cluster: the allocator's view of the objects.
        ledger: its reservations. At a fixed time they don't expire.
        engine: its decisions.
        preemption: its choice of victims.
    """

    def __init__(
        self,
        objects: ClusterObjects,
        settings: Settings,
        now_ns: int,
        *,
        elapsed_s: Callable[[], float] = lambda: 0.0,
        loans: int = 0,
    ) -> None:
        self.ledger = Ledger(ttl_s=settings.reservation_ttl_s, monotonic=elapsed_s)
        self.cluster = Cluster(
            self.ledger,
            clock=lambda: now_ns / 1e9 + elapsed_s(),
            max_report_age_s=settings.max_report_age_s,
            # Nothing has been seen before, so the nodes' clocks have to be believed.
            reported_s=lambda _node, updated_s: float(updated_s),
            previous=PreviousNodes() if settings.prefer_previous_node else None,
        )
        self.cluster.jobs.reschedules = settings.reschedules
        self.engine = DecisionEngine(
            self.cluster,
            self.ledger,
            gang_ttl_s=settings.gang_ttl_s,
            defaults=settings.job_defaults,
            earmark_share=settings.earmark_share,
            loans=loans,
            now_s=lambda: now_ns / 1e9 + elapsed_s(),
        )
        fill(self.cluster, objects.watched_objects(settings.node_health_namespace or HEALTH_NAMESPACE))
        # What the nominated pods were promised, as another leader reads it.
        self.preemption = Preemption(self.cluster, self.ledger, self.engine, keep_s=settings.preemption_keep_s)
        self.preemption.resume()

    def waits(self, pod: Pod) -> bool:
        """Whether a pod waits for the allocator's decision; schedulers ignore pods with gates or that are deleted."""
        return self._is_unbound(pod) and not pod.is_gated and self.engine.handles(pod)

    def is_for_others(self, pod: Pod) -> bool:
        """Whether a pod waits for devices that the allocator does not place."""
        return self._is_unbound(pod) and not self.engine.handles(pod) and requests_other_devices(pod)

    @staticmethod
    def _is_unbound(pod: Pod) -> bool:
        return pod.is_live and not pod.is_terminating and not pod.spec.node_name

    def job_of(self, pod: Pod) -> Job:
        """The job that a pod belongs to."""
        return self.cluster.jobs.job_of(pod)

    def switches_of(self, job: Job) -> tuple[str, ...]:
        """A sentence for each leaf switch, or the HyperNode, with pods of a job that asks for that; else none."""
        table, location = self.cluster.switches.table, self.cluster.index.topology.location
        first = next(iter(job.pods.values()), None)
        if first is None:
            return ()
        if job.placed and asks_for_topology(with_settings(first, job.settings)):
            found = self.cluster.hyper_nodes.tree().lowest(job.placed.values())
            where = f"in HyperNode {found[1]} of tier {found[0]}" if found is not None else "in no common HyperNode"
            return (f"{count(len(job.placed), 'pod')} {where}",)
        if isinstance(table, str) or not asks_for_switches(with_settings(first, job.settings)):
            return ()
        spots = {}
        for uid in job.placed:
            held, pod = self.ledger.get(uid), job.pods[uid]
            if (spot := location(held.node if held is not None else pod.spec.node_name).spot) is not None:
                spots[job.rank_of(pod)] = spot
        return describe_switches(spots, self.cluster.switches.states_of(job), table)

    def free_for_blocks(self, pod: Pod) -> tuple[Demand, dict[int, int]] | None:
        """What the job of a pod asks of the SuperPods, and how many servers each has free for it.

        None for a job without blocks, and for an invalid one.
        """
        job = self.engine.gang_of(pod)
        if job is None or self.engine.gangs.incomplete(job, pod) is not None:
            return None
        try:
            gang, _ = at_once(self.engine.gangs.gang_request(pod, self.engine.request_of(pod), job, None))
        except Refusal:
            return None
        if not isinstance(gang.policy, SuperPods):
            return None
        return gang.policy.demand, at_once(gang.policy.free(gang, self.cluster.index)).rooms

    def holdups(self, pod: Pod) -> tuple[str, ...]:
        """Which pods keep the gang of a pod from starting, as far as their schedulers say; a sentence for each."""
        gang = self.engine.gang_of(pod)
        if gang is None:
            return ()
        waiting = [member for member in gang.pods.values() if member.waits_for_chips]
        started = gang.placed_beside("") + gang.ended + gang.present - gang.size
        return tuple(holdups(sorted(waiting, key=lambda member: member.key), gang.min_available - started))

    def place(self, pod: Pod) -> Reservation:
        """Choose node and chips for a pod, and reserve them.

        Raises:
            Refusal: it fits on no node, or the API server would refuse it.
        """
        _require_equal_limits(pod)
        self.engine.earmarks.choose()
        if not pod.spec.restricts_nodes or self.engine.is_of_gang(pod):
            return self.engine.place(pod)
        request = self.engine.request_of(pod)
        try:
            return self.engine.place(pod, self.selected_nodes(pod))
        except Refusal:
            reasons = Counter(refusal.reason for refusal in self.refusals(pod).values())
            raise sum_up(pod.key, request.what, reasons) from None

    def refusals(self, pod: Pod) -> dict[str, Refusal]:
        """Why each node that refuses a pod does so; every node refuses an invalid request."""
        self.engine.earmarks.choose()
        try:
            return at_once(filter_all(self.cluster, self.engine, pod)).refused
        except Refusal as refusal:
            return dict.fromkeys(self.cluster.nodes, refusal)

    def fits(self, pod: Pod) -> list[tuple[str, Fit]]:
        """Every node that a pod fits on, best first.

        Raises:
            Refusal: the pod's request is invalid.
        """
        selected = self.selected_nodes(pod)
        return [fit for fit in self.engine.fits(pod) if fit[0] in selected]

    def kept_for(self, pod: Pod) -> list[Promise]:
        """The promises to further jobs that keep a pod from fitting: each that alone does, or else all together."""
        job, promises = self.job_of(pod), self.ledger.promises
        others = [
            promise
            for promise in promises
            if promise.owner not in {pod.uid, job.key.plan} and promise.priority >= pod.priority
        ]
        found = [promise for promise in others if self.has_room(pod, Without(owners=(promise.owner,)))]
        if not found and self.has_room(pod, Without(owners=[promise.owner for promise in others])):
            return others
        return found

    def has_room(self, pod: Pod, without: Without) -> bool:
        """Whether a pod would fit, with the others of its gang; reserves nothing."""
        gang = self.engine.gang_of(pod)
        try:
            request = self.engine.request_of(pod)
            if gang is None:
                return self.cluster.view(without).best(request, self.selected_nodes(pod)) is not None
            self.engine.gangs.preview(pod, request, gang, None, without)
        except Refusal:
            return False
        return True

    def selected_nodes(self, pod: Pod) -> frozenset[str]:
        """The names of the nodes that match the node selector and the required node affinity of a pod."""
        return self.cluster.labels.admitting(pod.spec)


def _require_equal_limits(pod: Pod) -> None:
    """Accept a pod that the API server accepts: of devices, requests and limits are equal, and limits are given.

    Raises:
        Refusal: it would refuse the pod.
    """
    for container in (*pod.spec.init_containers, *pod.spec.containers):
        limits, requests = container.resources.limits, container.resources.requests
        for device, number in requests.items():
            if limits.get(device, "") != number:
                limit = f"its limit is {printable(limits[device])}" if device in limits else "it has no limit"
                raise Refusal(
                    Reason.INVALID_REQUEST,
                    f"pod {pod.key}: container {printable(container.name)} requests {printable(number)} {device}, and "
                    f"{limit}: the API server accepts a device only with equal limits; write it under limits alone",
                )
