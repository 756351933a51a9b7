"""Why a pod waits, by node, from the code that decides; and what would help."""

import contextlib
import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import structs

from allocator.rules.job import JobKey, find_job
from allocator.rules.own_devices import NODE_CURE, named_node
from allocator.rules.request import ChipRequest, counted_chips, counted_cores, counted_vnpus, requested_what
from allocator.settings import Settings
from allocator.state.reservation import InBlock
from ascend.annotations import ALLOCATED, REAL
from ascend.chips import chip_ids, chip_name
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.pod_devices import read_held
from ascend.printable import printable
from ascend.reasons import Category, Reason
from npuctl.chips import chip_faults
from npuctl.evaluation import Evaluation, PodVerdict
from npuctl.explain.advice import advice_of_ends, advice_of_peers, advice_of_several, advice_or_kept, describe_blocks
from npuctl.explain.answer import Ahead, BrokenChip, Explanation
from npuctl.explain.remedies import Remedy, find_remedies
from npuctl.offline_allocator import OfflineAllocator
from npuctl.plan.placement import devices, find_candidates
from npuctl.reading.objects import ClusterObjects
from npuctl.refusals import as_values, group

MOST_NODES: Final = 200
"""Remedies are searched on this many nodes at most, those with an occupancy reason first."""

_HOPELESS: Final = {Category.REQUEST, Category.INCOMPLETE, Category.MISMATCH, Category.NOT_NPU}
"""Categories of reasons that no change on the node resolves."""

_INVALID: Final = "change the pod or its job: nothing on any node helps"


async def explain(
    pods: Sequence[Pod], objects: ClusterObjects, settings: Settings, now_ns: int
) -> tuple[Explanation, ...]:
    """Explain why these pods of a job have no place at a time in Unix nanoseconds, or say where their places are.

    Pods with the gates of others are judged as if their job had none.
    """
    gates = {pod.uid: tuple(gate.name for gate in pod.spec.scheduling_gates) for pod in pods}
    gated = {find_job(pod) for pod in pods if pod.is_gated}
    if gated:
        objects = objects.without_gates(lambda peer: find_job(peer) in gated)
    judging = _Judging(objects, settings, now_ns)
    asked = [pod for pod in objects.pods if pod.uid in gates]
    found = await judging.explain(asked)
    return tuple(
        structs.replace(found[pod.uid], gates=gates[pod.uid]) if pod.uid in judging.waited else found[pod.uid]
        for pod in pods
    )


class _Found(NamedTuple):
    """The findings for a waiting pod and its equal peers.

    Attributes:
        remedies: what would help.
        examined: the number of nodes tried.
        fits_alone: the number of nodes that fit but for the queue.
        ends: when it fits at the latest, a sentence; empty if that is not known.
    """

    remedies: tuple[Remedy, ...]
    examined: int
    fits_alone: int
    ends: str


class _Judging:
    """Judges pods in the order of the queue; explains the requested pods when their turn comes."""

    def __init__(self, objects: ClusterObjects, settings: Settings, now_ns: int) -> None:
        self._given = objects
        self._settings = settings
        self._now_ns = now_ns
        self._evaluation = Evaluation(objects, settings, now_ns)
        self._allocator = self._evaluation.allocator
        self._ahead: dict[JobKey, Ahead] = {}
        self._searched: dict[object, _Found] = {}
        self.waited: set[str] = set()
        """The uids of the pods that wait, of those that were asked for."""

    async def explain(self, pods: Sequence[Pod]) -> dict[str, Explanation]:
        """Explain pods, by uid."""
        queue = self._evaluation.waiting()
        self.waited = {pod.uid for pod in queue}.intersection(pod.uid for pod in pods)
        found = {pod.uid: self._without_turn(pod) for pod in pods if pod.uid not in self.waited}
        units = defaultdict[str, list[Pod]](list)
        for pod in pods:
            if pod.uid in self.waited:
                units[self._unit_of(pod)].append(pod)
        begun = dict[str, Explanation]()
        for pod in queue:
            if len(found) == len(pods):
                break
            # The pods of a gang are placed when its first one is.
            due = units.pop(self._unit_of(pod), [])
            begun |= {peer.uid: self._begin(peer) for peer in due}
            asked = self._allocator.free_for_blocks(pod) if due else None
            verdict = await self._evaluation.judge(pod)
            if due:
                blocks = describe_blocks(self._allocator, pod, asked)
                switches = self._allocator.switches_of(self._allocator.job_of(pod))
                for peer in due:
                    begun[peer.uid] = structs.replace(begun[peer.uid], blocks=blocks, switches=switches)
            if pod.uid in begun:
                found[pod.uid] = self._finish(begun[pod.uid], verdict)
            if verdict.held is not None:
                self._evaluation.bind(pod, verdict.held)
            self._note(verdict)
        return found

    def _unit_of(self, pod: Pod) -> str:
        """What tells the pods of its gang, or this pod alone, from others."""
        gang = self._allocator.engine.gang_of(pod)
        return gang.key.plan if gang is not None else pod.uid

    def _note(self, verdict: PodVerdict) -> None:
        """Count a pod among those before the next one."""
        held, pod = verdict.held, verdict.pod
        known = self._ahead.get(verdict.job) or Ahead(str(verdict.job), pod.priority, 0, 0, 0)
        self._ahead[verdict.job] = structs.replace(
            known,
            priority=max(known.priority, pod.priority),
            pods=known.pods + 1,
            placed=known.placed + (held is not None),
            chips=known.chips + (len(held.take.chips) if held is not None else 0),
        )

    def _describe(self, pod: Pod) -> Explanation:
        says = next((condition.message for condition in pod.status.conditions if condition.type == "PodScheduled"), "")
        explanation = Explanation(
            pod.metadata.namespace,
            pod.name,
            str(self._allocator.job_of(pod).key),
            counted_chips(pod),
            "none",
            ",".join(counted_vnpus(pod)),
            counted_cores(pod),
            requested_what(pod),
            scheduler=printable(says),
        )
        if not pod.is_live:
            return explanation
        told = self._allocator.engine.without_effect(pod)
        return structs.replace(explanation, without_effect=told, warnings=self._evaluation.warnings(pod))

    def _without_turn(self, pod: Pod) -> Explanation:
        """Explain a pod that no scheduler looks at any more, or of which the allocator does not decide."""
        explanation = self._describe(pod)
        if not pod.requests_chips:
            return explanation
        if not pod.is_live:
            message = printable(pod.status.message) or "its containers have ended"
            return structs.replace(explanation, state="finished", reason=printable(pod.status.reason), message=message)
        if pod.spec.node_name:
            return _placed(structs.replace(explanation, broken=self._broken(pod)), pod)
        return structs.replace(explanation, state="terminating")

    def _broken(self, pod: Pod) -> tuple[BrokenChip, ...]:
        """The chips of a pod that must not be used any more."""
        name = pod.spec.node_name
        record = self._allocator.cluster.nodes.get(name)
        if record is None:
            return ()
        faults = chip_faults(record, self._given.valid_reports.get(name), self._given.cordons.get(name, {}))
        return tuple(
            BrokenChip(chip_name(fault.chip), fault.codes, fault.level, fault.what, fault.advice)
            for fault in faults
            if pod.key in fault.pods
        )

    def _begin(self, pod: Pod) -> Explanation:
        """The part of a pod's explanation from before its gang is placed: independent of whether the pod fits."""
        refused = as_values(self._allocator.refusals(pod))
        return structs.replace(
            self._describe(pod),
            gang=self._allocator.engine.is_of_gang(pod),
            holdups=self._allocator.holdups(pod),
            groups=group(refused),
            nodes=refused,
            candidates=find_candidates(self._allocator, pod),
            ahead=tuple(self._ahead.values()),
        )

    def _finish(self, begun: Explanation, verdict: PodVerdict) -> Explanation:
        held = verdict.held
        if held is None:
            return self._waits(structs.replace(begun, switches=()), verdict)
        block = held.part.block if isinstance(held.part, InBlock) else None
        fits = structs.replace(begun, state="fits", block=block)
        if not verdict.victims:
            return fits
        chips, vnpus = devices(held.take)
        return structs.replace(
            fits, state="preempts", node=held.node, chips=chips, vnpus=vnpus, preempts=verdict.victims
        )

    def _waits(self, begun: Explanation, verdict: PodVerdict) -> Explanation:
        pod, refusal, allocator = verdict.pod, verdict.refusal, self._allocator
        assert refusal is not None  # noqa: S101 - a pod that gets nothing is refused
        refused = as_values(allocator.refusals(pod))  # what was promised to it may have ended with the decision
        waiting = structs.replace(
            begun,
            state="waits",
            reason=refusal.reason,
            message=refusal.message,
            groups=group(refused),
            nodes=refused,
        )
        request = None
        with contextlib.suppress(Refusal):
            request = allocator.engine.request_of(pod)
        if refusal.reason.category is Category.REQUEST:
            waiting = structs.replace(waiting, holdups=())  # its scheduler repeats what is said here
        invalid = ends = ""
        if request is not None:
            # The pods of a gang that request the same are told the same.
            alike = self._unit_of(pod), request, pod.spec.node_requirements
            if alike not in self._searched:
                self._searched[alike] = self._search(waiting, pod, request)
            found = self._searched[alike]
            waiting = structs.replace(
                waiting, remedies=found.remedies, examined=found.examined, fits_alone=found.fits_alone
            )
            ends = found.ends
            if not found.remedies:
                invalid = advice_of_several(pod, request, allocator)
        else:
            invalid = advice_of_peers(pod, self._given, self._settings, self._now_ns, allocator) or _INVALID
        advice = advice_or_kept(waiting, pod, allocator, invalid)
        return structs.replace(waiting, advice=(*advice, ends) if ends else advice)

    def _ends(self, pod: Pod) -> str:
        objects, now_s = self._evaluation.objects, self._now_ns / 1e9
        jobs, own = self._allocator.cluster.jobs, self._allocator.job_of(pod).key
        if not any(peer.spec.node_name and math.isfinite(jobs.end_of(peer, now_s)) for peer in objects.pods):
            return ""
        after = OfflineAllocator(objects, self._settings, self._now_ns)
        is_first = all(ahead.placed == ahead.pods for job, ahead in self._ahead.items() if job != own)
        return advice_of_ends(pod, after, self._now_ns, is_first=is_first)

    def _search(self, waiting: Explanation, pod: Pod, request: ChipRequest) -> "_Found":
        refused = waiting.nodes
        likely = sorted(refused, key=lambda node: (refused[node].reason.category is not Category.OCCUPIED, node))
        examined = [node for node in likely if refused[node].reason.category not in _HOPELESS][:MOST_NODES]
        peers, objects = frozenset(self._allocator.job_of(pod).pods), self._evaluation.objects
        tried = {node: refused[node] for node in examined}
        found = tuple(find_remedies(objects, self._settings, self._now_ns, request, tried, peers=peers))
        fits_alone = self._fits_alone(pod) if any(ahead.placed for ahead in waiting.ahead) else 0
        return _Found(found, len(examined), fits_alone, self._ends(pod))

    def _fits_alone(self, pod: Pod) -> int:
        """The number of nodes for a pod, or for a pod of its gang, without the queue ahead."""
        candidates = find_candidates(self._untouched, pod)
        if not self._untouched.engine.is_of_gang(pod):
            return len(candidates)
        try:
            self._untouched.place(pod)
        except Refusal:
            return 0
        finally:
            del self._untouched
        return len(candidates)

    @cached_property
    def _untouched(self) -> OfflineAllocator:
        """The cluster before anything was decided."""
        return OfflineAllocator(self._given, self._settings, self._now_ns)


def _placed(explanation: Explanation, pod: Pod) -> Explanation:
    if (by_hand := named_node(pod)) is not None:
        reason, advice = Reason.NOT_PLACED, (NODE_CURE,)
        return structs.replace(explanation, state="waits", reason=reason, message=by_hand, advice=advice)
    placed = structs.replace(explanation, state="placed", node=pod.spec.node_name)
    try:
        held = read_held(pod.metadata.annotations)
    except InvalidValue as error:
        return structs.replace(placed, reason=Reason.UNREADABLE_POD, message=str(error))
    chips, vnpus = tuple(map(chip_name, chip_ids(held.chips))), tuple(part.name for part in held.parts)
    if not chips and not vnpus:
        what = "chips it holds" if placed.request or placed.cores else "vNPU it has"
        message = f"pod {pod.key} is on node {pod.spec.node_name}, but no annotation says which {what}"
        return structs.replace(placed, reason=Reason.UNREADABLE_POD, message=message)
    if len(chips) > placed.request and not placed.cores:
        real, written = (pod.metadata.annotations.get(key, "") for key in (REAL, ALLOCATED))
        message = printable(f"pod {pod.key} has {REAL} {real}, but {written} written on it; both count until it ends")
        placed = structs.replace(placed, message=message)
    return structs.replace(placed, chips=chips, vnpus=vnpus)
