"""Deletes the pods of a decision, and follows them until they are gone and their chips are free."""

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from msgspec.structs import replace

from allocator.metrics import AllocatorMetrics
from allocator.rescheduling.actions import Actions, is_refusal_for_now
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.decision import JobPod, PodChoice
from allocator.rescheduling.evidence import Proof
from allocator.rescheduling.lookout import Lookout
from allocator.rescheduling.memory import Deleted, Memory
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.chips import chip_ids
from ascend.errors import ApiError, Unreachable
from ascend.kube.objects import Pod, unix_seconds

log = structlog.get_logger()

AT_ONCE: Final = 16
"""Requests to delete pods at the same time."""
RELEASE_AFTER_S: Final = 60.0
"""For so long the chips of a pod that was deleted by force stay held after its node is Ready again: longer than a
kubelet takes to see the deletion and to end the containers. One that has begun to end a pod before gives it the whole
grace period that it had then, as kubelet 1.34 does, whatever is deleted afterwards."""
NODE_GONE_S: Final = 24 * 3600.0
"""The same if its Node is gone and does not come back."""
RETRY_S: Final = 10.0
"""After so long a pod that could not be deleted is tried again."""
FORCE_AGAIN_S: Final = 60.0
"""The same for one that was deleted by force, and is still there: something else keeps it."""
RESEND_S: Final = 10.0
"""A pod that was to be deleted, and is still not terminating after so long, was not."""
FORCED_GRACE_S: Final = 1
"""The grace period of a deletion at once. With 0 the API server would forget the pod before its containers have ended,
and another pod could be given their chips."""


class Deletions:
    """Deletes pods.

    Args:
        cluster: nodes and pods.
        actions: the requests.
        lookout: knows the nodes whose kubelets are lost, and where no pods are deleted now.
        announcer: says what was deleted.
        metrics: counts it.
        leads: whether this allocator leads still: it may have been suspended.
        settings: when pods are deleted by force; in a dry run no pod is deleted, and nothing is stored.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        actions: Actions,
        lookout: Lookout,
        *,
        announcer: Announcer,
        metrics: AllocatorMetrics,
        leads: Callable[[], bool],
        settings: Settings,
        now_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._actions = actions
        self._lookout = lookout
        self._watch = lookout.watch
        self._evidence = lookout.evidence
        self._announcer = announcer
        self._metrics = metrics
        self._leads = leads
        self._grace_s = settings.reschedule_grace_s
        self._is_dry = not settings.reschedules
        self._now_s = now_s
        self._lost_s: dict[str, float] = {}
        self._anew_s = now_s()
        self._followed_s: dict[str, float] = {}
        """Since when this process follows the end of each pod, by uid, without the times that passed in silence."""

    def begin_anew(self) -> None:
        """Give kubelets time to say what has happened while nobody could."""
        self._anew_s = self._now_s()
        self._lost_s.clear()

    @property
    def _heard_s(self) -> float:
        return self._now_s() - self._evidence.contact.silent_s

    def note(self, pod: Pod, *, at_once: bool) -> Deleted:
        """Return what is remembered of a pod that is deleted now."""
        self._followed_s.setdefault(pod.uid, self._heard_s)
        record = self._cluster.nodes.get(pod.spec.node_name)
        held = record.holdings.get(pod.uid) if record is not None else None
        chips = list(chip_ids(held.chips)) if held is not None else []
        vnpus = [vnpu.name for vnpu in held.vnpus] if held is not None else []
        cuts, cores = ([cut.name for cut in held.cuts], held.counted_cores) if held is not None else ([], 0)
        return Deleted(pod.key, pod.spec.node_name, self._now_s(), chips, at_once, _end_s(pod), vnpus, cuts, cores)

    def prepare(self, choice: PodChoice, memory: Memory) -> list[Pod]:
        """Keep the chips of pods that will be deleted without their kubelets; then ``memory`` has to be stored.

        Returns:
            The pods whose chips were not kept before.
        """
        lost = [peer.pod for peer in choice.pods if choice.at_once and self._watch.is_lost(peer.pod.spec.node_name)]
        return [pod for pod in lost if self._hold(pod, memory)]

    def withdraw(self, pods: Iterable[Pod], memory: Memory) -> None:
        """Keep the chips of pods no longer that are not deleted after all, because that could not be stored."""
        for pod in pods:
            memory.force_deleted.pop(pod.uid, None)
            self._cluster.release_deleted(pod.uid, pod.spec.node_name)

    async def carry_out(self, job: Job, choice: PodChoice, why: str, memory: Memory, proof: Proof) -> PodChoice:
        """Delete the pods of a decision; one that can't be deleted is looked at again.

        Args:
            job: their job.
            choice: the decision, which ``memory`` has already.
            why: what has failed, a sentence.
            memory: what is remembered.
            proof: what the decision rests on.

        Returns:
            The decision with the pods that were deleted.
        """
        limit = asyncio.Semaphore(AT_ONCE)

        async def delete(member: JobPod) -> bool:
            async with limit:
                if not self._leads():
                    return False
                sentence = member.fault.sentence if member.fault is not None else f"with the others of its job: {why}"
                try:
                    refused = await proof.why_not()
                    if refused is None:
                        await self._delete(member.pod, sentence, choice, memory)
                except (ApiError, Unreachable) as error:
                    refused = str(error)
                    verb = "evicted" if isinstance(error, ApiError) and is_refusal_for_now(error) else "deleted"
                else:
                    verb = "deleted"
                if refused is not None:
                    recovery = memory.jobs[job.key.plan]
                    recovery.deleted.pop(member.pod.uid, None)
                    recovery.retry_at_s = self._now_s() + RETRY_S
                    self._announcer.hold(job, member.pod, f"pod {member.pod.key} can't be {verb} yet: {refused}")
                    return False
                proof.on_deletion()
                kind = str(member.fault.kind) if member.fault is not None else "peer"
                self._metrics.rescheduled.labels(reason=kind).inc()
                self._announcer.say_deletion(member, sentence)
                return True

        ended = await asyncio.gather(*map(delete, choice.pods))
        deleted = replace(choice, pods=tuple(itertools.compress(choice.pods, ended)))
        if deleted.pods:
            self._announcer.say_rescheduling(job, deleted, why)
        return deleted

    async def _delete(self, pod: Pod, sentence: str, choice: PodChoice, memory: Memory) -> None:
        if not choice.at_once:
            await self._actions.delete(pod, sentence, None)
        elif self._watch.is_lost(pod.spec.node_name) and await self._evidence.is_lost(pod.spec.node_name):
            await self._delete_by_force(pod, memory)
        else:
            await self._actions.delete(pod, sentence, FORCED_GRACE_S)

    async def follow(self, memory: Memory) -> None:
        """Delete pods by force that outlast the time for their end; free the chips of pods deleted by force.

        If another allocator leads by now, nothing is done; in a dry run chips are freed, and nothing else is done.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        if not self._leads():
            return
        is_released = await self._release(memory)
        if self._is_dry:
            return
        now_s, is_changed, late, followed_s = self._now_s(), False, list[Pod](), dict[str, float]()
        has_heard = self._anew_s + min(self._grace_s, RELEASE_AFTER_S) <= now_s
        for recovery in memory.jobs.values():
            for uid, deleted in list(recovery.deleted.items()):
                pod = self._cluster.pods.get(uid)
                sent_s = max(deleted.at_s, self._anew_s)
                is_lost = pod is not None and not pod.is_terminating and sent_s + RESEND_S <= now_s
                if pod is None or is_lost:  # gone, or the leader ended before it was deleted: it is decided anew
                    del recovery.deleted[uid]
                    is_changed = True
                    continue
                followed_s[uid] = self._followed_s.get(uid, self._heard_s)
                is_over = has_heard and followed_s[uid] + self._grace_s <= self._heard_s
                if (is_over or self._never_ends(deleted)) and self._lookout.why_stopped([deleted.node]) is None:
                    late.append(pod)
        self._followed_s = followed_s
        late = [pod for pod in late if self._is_due(pod, memory)]
        held = [pod for pod in late if self._hold(pod, memory)]
        if is_changed or is_released or held:
            await self._store(held, memory)
        for pod in late:
            if self._leads():
                await self._force(pod, memory)

    async def _release(self, memory: Memory) -> bool:
        """Free the chips of pods deleted by force whose containers have ended by now; return whether there were any."""
        now_s, over = self._now_s(), dict[str, Deleted]()
        for uid, deleted in (memory.force_deleted | memory.doubtful).items():
            if self._watch.is_lost(deleted.node):
                self._lost_s[uid] = now_s
            is_over = max(self._lost_s.setdefault(uid, now_s), deleted.ends_s) + RELEASE_AFTER_S <= now_s
            if self._watch.has_no_object(deleted.node):
                is_over = deleted.at_s + NODE_GONE_S <= now_s
            if is_over and uid not in self._cluster.pods:
                over[uid] = deleted
        await self._evidence.see_more({deleted.node for deleted in over.values()})
        is_changed = False
        for uid, deleted in over.items():
            is_gone = self._watch.has_no_object(deleted.node) and self._evidence.is_gone(deleted.node)
            if not is_gone and not self._evidence.is_ready(deleted.node):
                self._lost_s[uid] = now_s
                continue
            self._cluster.release_deleted(uid, deleted.node)
            is_changed |= memory.force_deleted.pop(uid, None) is not None
            memory.doubtful.pop(uid, None)
            self._lost_s.pop(uid, None)
        return is_changed

    def _never_ends(self, deleted: Deleted) -> bool:
        """Whether the kubelet that had to end a pod is lost, and the pod was not to be waited for."""
        return self._evidence.is_gone(deleted.node) or (
            deleted.at_once and self._evidence.is_lost_for_long(deleted.node)
        )

    def _is_due(self, pod: Pod, memory: Memory) -> bool:
        forced = memory.force_deleted.get(pod.uid)
        return forced is None or forced.at_s + FORCE_AGAIN_S <= self._now_s()

    async def _force(self, pod: Pod, memory: Memory) -> None:
        memory.force_deleted[pod.uid] = replace(memory.force_deleted[pod.uid], at_s=self._now_s())
        try:
            await self._delete_by_force(pod, memory)
            log.warning("deleted a pod by force", pod=pod.key, pod_uid=pod.uid, node=pod.spec.node_name)
        except (ApiError, Unreachable) as error:
            log.warning("can't delete a pod by force yet", pod=pod.key, pod_uid=pod.uid, error=str(error))

    async def _delete_by_force(self, pod: Pod, memory: Memory) -> None:
        """Delete a pod without its kubelet; the chips stay held until the kubelet has been Ready again for a while."""
        if self._hold(pod, memory):
            await self._store([pod], memory)
        await self._actions.delete_by_force(pod)

    async def _store(self, held: Iterable[Pod], memory: Memory) -> None:
        """Store a memory; if that can't be, the chips that are held now are not."""
        try:
            await self._actions.save(memory)
        except (ApiError, Unreachable):
            self.withdraw(held, memory)
            raise

    def _hold(self, pod: Pod, memory: Memory) -> bool:
        """Let a pod hold its chips after its deletion; return whether this is new and has to be stored."""
        if pod.uid in memory.force_deleted:
            return False
        held = memory.force_deleted[pod.uid] = self.note(pod, at_once=True)
        self._cluster.hold_deleted(pod.uid, held.node, held.holding)
        return True


def _end_s(pod: Pod) -> float:
    """When the grace period of a pod that is being deleted is over, Unix seconds; 0 for other pods."""
    return unix_seconds(pod.metadata.deletion_timestamp) or 0.0
