"""Looks for jobs with faulty pods once a second, decides about each, and carries the decision out.

Only the leader does, and from this one loop. What is remembered of a job is stored before its pods are deleted, so that
the next leader knows of every deletion.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from allocator.gangs.record import ENDS_S
from allocator.metrics import AllocatorMetrics
from allocator.rescheduling.actions import Actions
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.decision import (
    Depth,
    JobPod,
    PodChoice,
    choose,
    stage_after,
    switches_of,
    unfinished,
)
from allocator.rescheduling.deletions import Deletions
from allocator.rescheduling.evidence import Proof
from allocator.rescheduling.limits import DeletionLimits, spend
from allocator.rescheduling.lookout import Lookout
from allocator.rescheduling.marker import Marker
from allocator.rescheduling.memory import Memory, Recovery
from allocator.rescheduling.owners import owner_uid, wanted
from allocator.rescheduling.reading import Reader
from allocator.rescheduling.records import RecordWriter
from allocator.rescheduling.reset_config import ResetConfigs
from allocator.rescheduling.restoring import restore
from allocator.rules.job import JobKey
from allocator.rules.rescheduling_labels import FaultLabels, Mode
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.errors import ApiError, InvalidValue, Unreachable
from ascend.kube.objects import Pod
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 1.0
LOAD_AGAIN_S: Final = 30.0
FORGET_S: Final = 24 * 3600.0
"""How long the counts of a job without pods are kept."""


class Rescheduler:
    """Reschedules jobs.

    Args:
        cluster: nodes, reports, pods and jobs.
        actions: the requests.
        reading: reads anew what deletions rest on.
        settings: the settings of rescheduling.
        announcer: says what is done, and why something is not.
        records: writes what other programs read; None if nothing does.
        reset_configs: tells the processes of jobs; None if nothing does.
        metrics: counts deletions and what is held back.
        leads: whether this allocator leads still: it may have been suspended.
        now_s: the wall clock, Unix seconds.
        monotonic: a clock that advances while the process or the machine is suspended, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        actions: Actions,
        reading: Reader,
        settings: Settings,
        *,
        announcer: Announcer,
        records: RecordWriter | None,
        reset_configs: ResetConfigs | None = None,
        metrics: AllocatorMetrics,
        leads: Callable[[], bool],
        now_s: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._actions = actions
        self._is_dry = not settings.reschedules
        self._announcer = announcer
        self._records = records
        self._reset_configs = reset_configs
        self._metrics = metrics
        self._leads = leads
        self._now_s = now_s
        self._monotonic = monotonic
        self._lookout = Lookout(cluster, reading, settings, announcer=announcer, metrics=metrics, monotonic=monotonic)
        self._evidence = self._lookout.evidence
        self._per_hour = settings.reschedules_per_hour
        self._limits = DeletionLimits(cluster, settings.reschedule_pods_per_minute, self._per_hour)
        self._marker = Marker(actions, self._lookout, announcer, leads, dry_run=self._is_dry)
        self._is_loaded = False
        self._loaded_s = 0.0
        self._is_stored = True
        self.memory = Memory()
        self._deletions = Deletions(
            cluster,
            actions,
            self._lookout,
            announcer=announcer,
            metrics=metrics,
            leads=leads,
            settings=settings,
            now_s=now_s,
        )

    async def run(self) -> None:
        """Reschedule until cancelled; this allocator leads."""
        while True:
            if self._leads():
                try:
                    await self.look()
                except Exception:
                    # Placing pods goes on whatever happens here, and so does the next look.
                    log.exception("rescheduling has failed")
            await asyncio.sleep(PERIOD_S if self._is_loaded else LOAD_AGAIN_S)

    async def look(self) -> None:
        """Look once, and do what has to be done."""
        if not self._is_loaded:
            await self.load()
            if not self._is_loaded:
                return
        if self.memory.broken and self._loaded_s + LOAD_AGAIN_S <= self._monotonic():
            await self.load()
        await self._lookout.look(self.memory)
        try:
            if not await self._lookout.see(self.memory):
                self._deletions.begin_anew()
                self.memory.begin_anew()
            await self._deletions.follow(self.memory)
            for job, pods in (await self._lookout.jobs(self.memory)).items():
                await self._try(job, pods)
            self._forget()
            if not self._leads():  # it was suspended meanwhile: another one has stored more
                return
            if not self._is_stored:  # the next leader would end recoveries once more
                await self._actions.save(self.memory)
                self._is_stored = True
            if self._records is not None and not self._is_dry:
                await self._records.count_retries(self.memory)
        except (ApiError, Unreachable) as error:
            log.warning("rescheduling is delayed", error=str(error))

    async def load(self) -> None:
        """Restore what the former leader remembered; call it before this allocator places pods.

        From then on the chips of pods that were deleted by force are held. Where the right to read it is missing, pods
        are placed, but nothing is rescheduled.
        """
        memory = await restore(self._actions, self._cluster, self._now_s)
        self._loaded_s = self._monotonic()
        if memory is not None:
            memory.doubtful = self.memory.doubtful | memory.doubtful
            self.memory, self._is_loaded = memory, True
            self._metrics.rescheduling_unread.set(memory.unread)

    async def _try(self, job: Job, pods: list[Pod]) -> None:
        try:
            await self._judge(job, pods)
        except (ApiError, Unreachable):
            raise
        except Exception:
            log.exception("a job can't be rescheduled", job=str(job.key))  # the others are
        await Turn().share()

    async def _judge(self, job: Job, pods: list[Pod]) -> None:
        if not any(pod.requests_chips for pod in pods):
            return
        try:
            switches = switches_of(job, pods)
        except InvalidValue as error:
            self._announcer.hold(job, pods[0], f"job {job.key} is not rescheduled: {error.message}")
            return
        if switches.mode is Mode.OFF:
            return
        members = [self._lookout.judge(job, pod, switches) for pod in pods]
        if (unread := self.memory.unread_jobs.get(job.key.plan)) is not None:
            if any(member.fault is not None for member in members):
                self._announcer.hold(job, pods[0], f"what is remembered of job {job.key} can't be read: {unread.why}")
            return
        if switches.mode.is_external:
            await self._marker.mark(job, members, switches)
        else:
            await self._decide(job, members, switches)

    async def _decide(self, job: Job, members: list[JobPod], switches: FaultLabels) -> None:
        now_s = self._now_s()
        owners = {owner_uid(member.pod) for member in members}
        recovery, is_another = self.memory.recovery_of(job.key.plan, owners, now_s)
        if is_another:
            self._cluster.faulty_nodes.note(job.key, ())
            self._is_stored = self._is_dry
        members = [member for member in members if member.pod.uid not in recovery.deleted]  # the watch may be late
        self._note_waiting(job, recovery, now_s)
        stage = Depth.PODS
        if recovery.waits_since_s is not None:
            has_blocks = any(member.block is not None for member in members)
            stage = stage_after(now_s - recovery.waits_since_s, switches, recovery.stage, has_blocks=has_blocks)
        left = unfinished(members, recovery.chosen, goes_together=recovery.goes_together)
        is_refused = bool(recovery.chosen) and {member.pod.uid for member in members}.issuperset(recovery.chosen)
        is_wider = stage > recovery.stage or is_refused
        choice = choose(members, switches, stage if is_wider else Depth.PODS, recovery.damaged, left)
        if not choice.pods:
            await self._end_if_whole(job, recovery)
        if not choice.pods or now_s < recovery.retry_at_s:
            return
        stopped = self._lookout.why_stopped(member.pod.spec.node_name for member in choice.pods)
        if stopped is None and not self._evidence.is_due(choice.pods):
            return
        why_not = self._limits.why_not(
            choice, recovery, switches, stopped=stopped, recent=self.memory.recent, now_s=now_s
        )
        proof = Proof(self._evidence, job, choice.pods, switches, is_begun=bool(left), monotonic=self._monotonic)
        if why_not is None and (unproved := await proof.why_not()) is not None:
            why_not = f"nothing is deleted: {unproved}"
        if why_not is not None:
            self._announcer.hold(job, choice.pods[0].pod, why_not)
            return
        if not recovery.is_again(choice):
            recovery.some_stayed = len(choice.pods) < len(members)
        await self._carry_out(job, choice, recovery, switches, proof)

    async def _carry_out(
        self, job: Job, choice: PodChoice, recovery: Recovery, switches: FaultLabels, proof: Proof
    ) -> None:
        why = choice.why
        if self._is_dry:
            self._announcer.plan(job, choice, why)
            return
        if not self._leads():
            return
        now_s, uids = self._now_s(), [member.pod.uid for member in choice.pods]
        recovery.on_choice(choice, switches, now_s, self._per_hour)
        recovery.spots = dict(self._cluster.blocks.of(job.key))
        self._cluster.faulty_nodes.note(job.key, recovery.faulty_nodes)
        for member in choice.pods:
            recovery.deleted[member.pod.uid] = self._deletions.note(member.pod, at_once=choice.at_once)
        self.memory.jobs[job.key.plan] = recovery
        self.memory.recent = spend(len(choice.pods), self.memory.recent, now_s)
        held = self._deletions.prepare(choice, self.memory)
        try:
            await self._actions.save(self.memory)
        except (ApiError, Unreachable):
            self._deletions.withdraw(held, self.memory)
            self.memory.recent.pop()
            for uid in uids:
                del recovery.deleted[uid]
            raise
        if self._reset_configs is not None:
            await self._reset_configs.tell_deleted(choice, switches)
        deleted = await self._deletions.carry_out(job, choice, why, self.memory, proof)
        self.memory.recent[-1] = (now_s, len(deleted.pods))  # a refused deletion uses up no budget
        if deleted.pods and self._records is not None:
            await self._records.record(job, deleted, now_s)

    def _note_waiting(self, job: Job, recovery: Recovery, now_s: float) -> None:
        """Note since when a pod waits for chips; waiting for other pods of the job does not count."""
        are_there = job.size >= wanted(job, self._cluster.jobs.owners.of)
        are_ending = any(now_s < deleted.at_s + ENDS_S for deleted in recovery.deleted.values())
        waits = any(pod.waits_for_chips for pod in job.pods.values())
        if not (recovery.is_open and waits and are_there) or are_ending or recovery.is_switch:
            recovery.waits_since_s = None
        elif recovery.waits_since_s is None:
            recovery.waits_since_s = now_s

    async def _end_if_whole(self, job: Job, recovery: Recovery) -> None:
        """End the recovery of a job once what was deleted is gone, and all of its pods are placed."""
        is_waiting = recovery.deleted or any(not pod.spec.node_name for pod in job.pods.values())
        if not recovery.is_open or is_waiting or job.size < wanted(job, self._cluster.jobs.owners.of):
            return
        if self._reset_configs is not None and not self._is_dry:
            await self._reset_configs.tell_whole(recovery, job.pods.values(), self._now_s())
        recovery.on_whole(self._now_s())
        self._cluster.faulty_nodes.note(job.key, ())
        self._is_stored = self._is_dry
        log.info("a job is whole again", job=str(job.key))

    def _forget(self) -> None:
        now_s = self._now_s()
        for plan, recovery in list(self.memory.jobs.items()):
            is_there = JobKey.of_plan(plan) in self._cluster.jobs.by_key
            if not is_there and not recovery.deleted and recovery.changed_s + FORGET_S <= now_s:
                del self.memory.jobs[plan]
                self._cluster.faulty_nodes.note(JobKey.of_plan(plan), ())
        if self._loaded_s + FORGET_S <= self._monotonic():
            self.memory.forget_unread(lambda plan: JobKey.of_plan(plan) in self._cluster.jobs.by_key)
            self._metrics.rescheduling_unread.set(self.memory.unread)
        for part in (self._announcer, self._marker):
            part.forget(lambda uid: uid not in self._cluster.pods)
