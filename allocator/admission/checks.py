"""Answers Kueue's admission checks: whether the pods of a workload could start now.

Kueue counts quota, and with topology-aware scheduling what nodes have allocatable. It knows nothing of rings, dies,
networks of chips and gangs, so it admits what can't start. With an AdmissionCheck of this controller in its
ClusterQueue, a workload with a reservation of quota is asked about first (kueue: docs/concepts/admission_check):

* Ready: a seat is reserved for each pod, as for a gang, until the pods come or the seats expire.
* Retry, with the reason: Kueue gives the quota back and tries again after a delay, which grows; the allocator ends the
  delay when all pods fit.

Only the leader answers. Until the workload is admitted, it is asked again when its seats have expired or a node of them
has failed, and by another leader; after that nothing is taken back: pods are placed by their own decisions anyway.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from allocator.admission.delays import LOOK_S, Delays
from allocator.admission.objects import CONTROLLER, AdmissionCheck, ResourceFlavor, Workload
from allocator.admission.statuses import AGAIN_S, Statuses, attempt
from allocator.admission.workload_pods import FlavorMissing, OwningJob, pods_of, read_job
from allocator.decision.engine import DecisionEngine
from allocator.decision.expected import ExpectedPods
from allocator.observe.refusal_events import Publish
from allocator.rules.summary import told_in
from allocator.watch.pod_group_queue import Leads
from ascend.errors import InvalidValue, Refusal
from ascend.grammar import count
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod
from ascend.kube.reflector import Reflector
from ascend.reasons import Reason

log = structlog.get_logger()

_AT_ONCE: Final = 16
"""The most workloads that are answered at one time: most of an answer is waiting for the API server."""


class AdmissionChecks:
    """Answers the checks.

    Args:
        client: the API server.
        engine: the decisions on pods.
        leadership: only the leader answers.
        publish: posts an Event soon.
        answered: called with each answer, for the metrics.
        ttl_s: how long seats wait for their pods.
        monotonic: the clock for delays.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        engine: DecisionEngine,
        leadership: Leads,
        *,
        publish: Publish,
        answered: Callable[[str], None],
        ttl_s: float,
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self._client = client
        self._statuses = Statuses(client, now_s)
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._expected = ExpectedPods(engine)
        self._leadership = leadership
        self._publish = publish
        self._answered = answered
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._checks: dict[str, AdmissionCheck] = {}
        self._flavors: dict[str, ResourceFlavor] = {}
        self._workloads: dict[str, Workload] = {}
        self._due: dict[str, float] = {}  # by uid: not before
        self._kept: dict[str, tuple[str, ...]] = {}
        self._deciding = asyncio.Lock()  # what fits depends on the seats of those before
        self._delays = Delays(
            self._statuses,
            self._expected,
            engine.cluster.changes,
            read=partial(read_job, client),
            pods=self._pods,
            monotonic=monotonic,
            now_s=now_s,
            deciding=self._deciding,
        )
        self._wake = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        self._busy = set[str]()
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._leadership.wait_until_open()
        await self._statuses.find_version()
        kinds = self._statuses.kinds
        watched = (
            Reflector(self._client, kinds.checks, _Handler(self._check_applied, self._check_deleted)),
            Reflector(self._client, kinds.flavors, _Handler(self._flavor_applied, self._flavor_deleted)),
            Reflector(self._client, kinds.workloads, _Handler(self._workload_applied, self._workload_deleted)),
        )
        async with self._tasks:
            for reflector in watched:
                self._tasks.create_task(reflector.run(), name="watch Kueue")
            for reflector in watched:
                await reflector.synced.wait()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
                self._wake.clear()
                await self._work()

    async def _work(self) -> None:
        if not self._leadership.leads():
            return
        for check in tuple(self._checks.values()):
            if not check.is_active:
                await attempt(check.key, self._statuses.activate(check))
        now_s = self._monotonic()
        for uid in tuple(self._kept):
            if (workload := self._workloads.get(uid)) is not None and self._is_asked(workload):
                self._due.setdefault(uid, 0.0)  # its seats have expired, or a node of them has failed
        await self._delays.write()
        for uid in [uid for uid, due_s in self._due.items() if due_s <= now_s and uid not in self._busy]:
            self._busy.add(uid)
            self._tasks.create_task(self._answer_due(uid), name="answer an admission check")
        await self._delays.look()

    async def _answer_due(self, uid: str) -> None:
        async with self._at_once:
            self._due.pop(uid, None)
            workload = self._workloads.get(uid)
            if workload is not None and await attempt(workload.key, self._answer(workload)):
                self._due.setdefault(uid, self._monotonic() + AGAIN_S)
        self._busy.discard(uid)
        if uid in self._due:  # it has changed meanwhile
            self._wake.set()

    def _check_applied(self, check: AdmissionCheck) -> None:
        if check.spec.controller_name == CONTROLLER:
            self._checks[check.name] = check
            for workload in self._workloads.values():
                self._note(workload)
            self._wake.set()

    def _check_deleted(self, check: AdmissionCheck) -> None:
        self._checks.pop(check.name, None)

    def _flavor_applied(self, flavor: ResourceFlavor) -> None:
        self._flavors[flavor.name] = flavor
        self._due = dict.fromkeys(self._due, 0.0)  # some may have waited for it
        self._wake.set()

    def _flavor_deleted(self, flavor: ResourceFlavor) -> None:
        self._flavors.pop(flavor.name, None)

    def _workload_applied(self, workload: Workload) -> None:
        self._workloads[workload.uid] = workload
        self._note(workload)

    def _workload_deleted(self, workload: Workload) -> None:
        self._workloads.pop(workload.uid, None)
        self._forget(workload.uid)

    def _note(self, workload: Workload) -> None:
        uid = workload.uid
        states = set(workload.states(set(self._checks)).values())
        if not states or workload.is_true("Finished") or not workload.spec.active:
            self._forget(uid)
        elif self._is_asked(workload):
            self._due[uid] = 0.0
            self._wake.set()
        elif not workload.has_reservation:
            self._release(uid)  # the quota was withdrawn
            if self._delays.follow(workload, workload.retries(set(self._checks))):
                self._wake.set()
        elif workload.is_true("Admitted"):
            self._delays.forget(uid)

    def _is_asked(self, workload: Workload) -> bool:
        """Whether a workload has to be answered: also again, if it is not admitted yet and has no seats any more."""
        states = set(workload.states(set(self._checks)).values())
        if not workload.has_reservation or not states <= {"Pending", "Ready"}:
            return False
        if "Pending" in states:
            return True
        plans = self._kept.get(workload.uid)
        has_seats = plans is not None and all(plan in self._ledger.plans for plan in plans)
        return bool(states) and not (workload.is_true("Admitted") or has_seats)

    def _forget(self, uid: str) -> None:
        self._due.pop(uid, None)
        self._delays.forget(uid)
        self._release(uid)

    def _release(self, uid: str) -> None:
        self._expected.release(self._kept.pop(uid, ()))

    def _pods(self, workload: Workload, job: OwningJob | None) -> list[Pod]:
        """The pods of a workload that request chips.

        Raises:
            FlavorMissing: a flavor is not known yet.
            Refusal: the pods can't be known from its job and its status.
        """
        flavors = {name: flavor.spec for name, flavor in self._flavors.items()}
        try:
            return [pod for pod in pods_of(workload, job, self._cluster.pods, flavors) if pod.requests_chips]
        except FlavorMissing:
            raise
        except InvalidValue as error:
            sentence = f"the pods of workload {workload.key} can't be known: {error}"
            raise Refusal(Reason.INVALID_REQUEST, sentence) from error

    async def _answer(self, workload: Workload) -> None:
        uid, states = workload.uid, workload.states(set(self._checks))
        pending = {name for name, state in states.items() if state == "Pending"}
        if not self._is_asked(workload):
            return  # as another leader has answered
        if workload.is_true("Admitted"):  # its queue has got the check since: a refusal would evict what runs
            await self._ready(workload, pending, "the workload was admitted before")
            return
        job, pods = await read_job(self._client, workload), list[Pod]()
        try:
            async with self._deciding:
                pods = self._pods(workload, job)
                if self._workloads.get(uid) is not workload:
                    return  # a change of it is due as well
                self._release(uid)
                self._kept[uid] = await self._expected.keep(pods, self._ttl_s)
        except Refusal as refusal:
            await self._refuse(workload, set(states), job, pods, refusal)
            return
        if self._workloads.get(uid) is not workload:
            self._release(uid)
            return
        if not pending:
            return  # they were told so before
        fits = f"{count(len(pods), 'pod')} with chips fit now" if pods else "its pods request no chips"
        try:
            await self._ready(workload, pending, fits)
        except BaseException:  # a cancelled check keeps no seats either
            self._release(uid)
            raise

    async def _ready(self, workload: Workload, names: set[str], why: str) -> None:
        await self._statuses.answer(workload, names, "Ready", why)
        self._answered("Ready")
        log.info("a workload fits", workload=workload.key, why=why)

    async def _refuse(
        self, workload: Workload, names: set[str], job: OwningJob | None, pods: list[Pod], refusal: Refusal
    ) -> None:
        revision = self._cluster.changes.revision
        more = await self._expected.never_fit(pods)
        if workload.is_placed and await self._fits(workload.without_places(), job):
            more = "the pods fit on other nodes than Kueue has chosen"
        said = refusal.message if more is None or more == refusal.message else f"{refusal.message}; {more}"
        message, delay_s = told_in(workload.metadata.namespace, said), self._delays.next_s(workload.uid)
        at_once_s = None if self._statuses.delays_evictions else delay_s
        await self._statuses.answer(workload, names, "Retry", message, at_once_s)
        if (seen := self._workloads.get(workload.uid)) is not None:  # by now without its quota, or gone
            self._delays.record(seen, workload, delay_s, revision, job)
            self._wake.set()
        self._answered("Retry")
        metadata, version = workload.metadata, self._statuses.kinds.workloads.api_version
        regarding = Regarding("Workload", workload.name, metadata.namespace, workload.uid, version)
        self._publish(regarding, refusal.reason, message, action="AdmissionCheck")
        log.info("a workload does not fit", workload=workload.key, reason=refusal.reason, retry_s=delay_s)

    async def _fits(self, workload: Workload, job: OwningJob | None) -> bool:
        try:
            return await self._expected.fit(self._pods(workload, job))
        except Refusal:
            return False


class _Handler:
    """The handler of a reflector."""

    def __init__(self, applied: Callable[[Any], None], deleted: Callable[[Any], None]) -> None:
        self.on_apply = applied
        self.on_delete = deleted
