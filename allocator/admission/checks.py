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
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from heapq import nsmallest
from typing import Any, Final

import msgspec
import structlog

from allocator.admission.objects import (
    CONTROLLER,
    VERSIONS,
    AdmissionCheck,
    ResourceFlavor,
    Workload,
    kinds,
)
from allocator.admission.workload_pods import FlavorMissing, owner_of, owners, pods_of
from allocator.decision.engine import DecisionEngine
from allocator.decision.expected import ExpectedPods
from allocator.observe.refusal_events import Publish
from allocator.rules.summary import told_in
from allocator.watch.pod_group_queue import Leads
from ascend.errors import ApiError, Conflict, InvalidValue, NotFound, Refusal, Unreachable
from ascend.grammar import count
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.objects import JsonObject, Pod
from ascend.kube.reflector import Reflector
from ascend.reasons import Reason

log = structlog.get_logger()

RETRY_S: Final = 60.0
"""The delay after the first refusal, as Kueue's own controllers have it; it doubles up to ``MOST_S``."""
MOST_S: Final = 1800.0
LEAST_S: Final = 1.0
"""A delay is not ended earlier than this."""
AGAIN_S: Final = 5.0
"""After this time what could not be answered is tried again."""
LOOK_S: Final = 1.0
"""How often workloads in a delay are looked at, if anything has changed."""
MOST_LOOKS: Final = 16
"""How many of them: those that were looked at least recently."""


DELAYS_EVICTIONS: Final = "v1beta2"
"""Kueue with this version puts off the eviction of a workload with a delay until that is over, and so its quota stays
reserved (0.17: pkg/controller/core/workload_controller.go, "Waiting for backoff"): there the delay is written once the
workload is evicted, before Kueue queues it again."""


class _Delay(msgspec.Struct):
    """A workload that was refused.

    Attributes:
        workload: as it was last seen.
        tries: how often it was refused.
        since_s: when it was last.
        revision: the changes of nodes that were considered.
        owed_s: the delay that is not written yet.
    """

    workload: Workload
    tries: int = 0
    since_s: float = 0.0
    revision: int = -1
    owed_s: float = 0.0

    @property
    def precedence(self) -> tuple[int, str]:
        """By priority and age, as in Kueue's queues."""
        return -(self.workload.spec.priority or 0), self.workload.metadata.creation_timestamp or ""


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
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._expected = ExpectedPods(engine)
        self._leadership = leadership
        self._publish = publish
        self._answered = answered
        self._ttl_s = ttl_s
        self._monotonic = monotonic
        self._now_s = now_s
        self._checks: dict[str, AdmissionCheck] = {}
        self._flavors: dict[str, ResourceFlavor] = {}
        self._workloads: dict[str, Workload] = {}
        self._due: dict[str, float] = {}  # by uid: not before
        self._kept: dict[str, tuple[str, ...]] = {}
        self._delays: dict[str, _Delay] = {}
        self._wake = asyncio.Event()
        self._kinds = kinds(VERSIONS[0])

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._leadership.wait_until_open()
        await self._find_version()
        watched = (
            Reflector(self._client, self._kinds.checks, _Handler(self._check_applied, self._check_deleted)),
            Reflector(self._client, self._kinds.flavors, _Handler(self._flavor_applied, self._flavor_deleted)),
            Reflector(self._client, self._kinds.workloads, _Handler(self._workload_applied, self._workload_deleted)),
        )
        async with asyncio.TaskGroup() as tasks:
            for reflector in watched:
                tasks.create_task(reflector.run(), name="watch Kueue")
            for reflector in watched:
                await reflector.synced.wait()
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._wake.wait()
                self._wake.clear()
                await self._work()

    async def _find_version(self) -> None:
        """Wait until a version of Kueue's API is served; the newest is used, until this process ends."""
        while True:
            for version in VERSIONS:
                self._kinds = kinds(version)
                try:
                    await self._client.request("GET", self._kinds.workloads.path(), query={"limit": "1"})
                except NotFound:
                    continue
                except (ApiError, Unreachable) as error:
                    log.warning("can't list Kueue's workloads", version=version, error=str(error))
                    break
                return
            await asyncio.sleep(AGAIN_S)

    async def _work(self) -> None:
        if not self._leadership.leads():
            return
        for check in tuple(self._checks.values()):
            if not check.is_active:
                await self._attempt(check.key, self._activate(check))
        now_s = self._monotonic()
        for uid in tuple(self._kept):
            if (workload := self._workloads.get(uid)) is not None and self._is_asked(workload):
                self._due.setdefault(uid, 0.0)  # its seats have expired, or a node of them has failed
        if self._is_late:
            await self._keep_delays()
        for uid in [uid for uid, due_s in self._due.items() if due_s <= now_s]:
            self._due.pop(uid, None)
            workload = self._workloads.get(uid)
            if workload is not None and await self._attempt(workload.key, self._answer(workload)):
                self._due.setdefault(uid, now_s + AGAIN_S)
        await self._look()

    async def _keep_delays(self) -> None:
        """Write the delays of evicted workloads, and remove the times of past delays."""
        now_s, delays = self._now_s(), tuple(self._delays.values())
        for delay in [delay for delay in delays if not delay.workload.has_reservation]:
            if delay.owed_s:
                await self._attempt(delay.workload.key, self._begin_delay(delay))
            elif 0.0 < delay.workload.requeue_at_s <= now_s:
                await self._attempt(delay.workload.key, self._patch(delay.workload, self._end_state(delay.workload)))

    async def _attempt(self, key: str, work: Awaitable[None]) -> bool:
        """Do some work; returns whether it has to be tried again."""
        try:
            await work
        except (NotFound, Conflict):
            pass  # it has changed or is gone, and so the watch reports it
        except (ApiError, Unreachable, InvalidValue) as error:
            log.warning("could not answer an admission check", object=key, error=str(error))
            return True
        return False

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
            if (delay := self._delays.get(uid)) is not None:
                delay.workload = workload
                if delay.owed_s:
                    self._wake.set()
            elif (tries := workload.retries(set(self._checks))) and workload.requeue_at_s > self._now_s():
                self._delays[uid] = _Delay(workload, tries)  # another leader has refused it
        elif workload.is_true("Admitted"):
            self._delays.pop(uid, None)

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
        self._delays.pop(uid, None)
        self._release(uid)

    def _release(self, uid: str) -> None:
        self._expected.release(self._kept.pop(uid, ()))

    async def _activate(self, check: AdmissionCheck) -> None:
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "the allocator answers whether the pods of a workload fit",
            "lastTransitionTime": self._time(),
        }
        body: JsonObject = {"status": {"conditions": [condition]}}
        await self._client.patch(self._kinds.checks, check.name, body, subresource="status")

    async def _pods(self, workload: Workload) -> list[Pod]:
        """The pods of a workload that request chips.

        Raises:
            ApiError: the API server refused.
            FlavorMissing: a flavor is not known yet.
            Refusal: the pods can't be known from its job and its status.
            Unreachable: the API server did not answer.
        """
        owner, job = owner_of(workload), None
        resource = owners().get((owner.kind, owner.api_version)) if owner is not None else None
        if owner is not None and resource is not None:
            # As a list, because the allocator may list these objects anyway.
            named = f"metadata.name={owner.name}"
            found = await self._client.list_objects(resource, workload.metadata.namespace, field_selector=named)
            job = next((job for job in found if job.uid == owner.uid), None)
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
        pods: list[Pod] = []
        try:
            pods = await self._pods(workload)
            if self._workloads.get(uid) is not workload:
                return  # a change of it is due as well
            self._release(uid)
            plans = await self._expected.keep(pods, self._ttl_s)
        except Refusal as refusal:
            await self._refuse(workload, set(states), pods, refusal)
            return
        self._kept[uid] = plans
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
        await self._write(workload, names, {"state": "Ready", "message": why})
        self._answered("Ready")
        log.info("a workload fits", workload=workload.key, why=why)

    async def _refuse(self, workload: Workload, names: set[str], pods: list[Pod], refusal: Refusal) -> None:
        revision = self._cluster.changes.revision
        more = await self._expected.never_fit(pods)
        if workload.is_placed and await self._fits(workload.without_places()):
            more = "the pods fit on other nodes than Kueue has chosen"
        said = refusal.message if more is None or more == refusal.message else f"{refusal.message}; {more}"
        message = told_in(workload.metadata.namespace, said)
        last = self._delays.get(workload.uid)
        tries = last.tries - bool(last.owed_s) if last is not None else 0  # one that Kueue did not wait for is repeated
        delay_s = min(RETRY_S * 2 ** min(tries, 16), MOST_S)
        state: JsonObject = {} if self._is_late else {"requeueState": self._requeue(workload, delay_s)}
        await self._write(workload, names, {"state": "Retry", "message": message}, **state)
        if (seen := self._workloads.get(workload.uid)) is not None:  # by now without its quota, or gone
            owed_s = delay_s if self._is_late else 0.0
            self._delays[workload.uid] = _Delay(seen, tries + 1, self._monotonic(), revision, owed_s)
            self._wake.set()
        self._answered("Retry")
        metadata = workload.metadata
        regarding = Regarding(
            "Workload", workload.name, metadata.namespace, workload.uid, self._kinds.workloads.api_version
        )
        self._publish(regarding, refusal.reason, message, action="AdmissionCheck")
        log.info("a workload does not fit", workload=workload.key, reason=refusal.reason, retry_s=delay_s)

    async def _write(self, workload: Workload, names: set[str], answer: JsonObject, **more: Any) -> None:
        """Answer checks, and write more of the status."""
        checks = [
            {**check, **answer, "lastTransitionTime": self._time()} if check.get("name") in names else check
            for check in workload.status.admission_checks
        ]
        await self._patch(workload, {"admissionChecks": checks, **more})

    async def _look(self) -> None:
        """End the delay of the first workload that fits now, as far as that is known without the choices of Kueue."""
        now_s, revision, clock_s = self._monotonic(), self._cluster.changes.revision, self._now_s()
        due = [
            delay
            for delay in self._delays.values()
            if now_s - delay.since_s >= LEAST_S
            and delay.revision != revision
            and not delay.workload.is_true("QuotaReserved")
            and delay.workload.requeue_at_s > clock_s
        ]
        due = nsmallest(MOST_LOOKS, due, key=lambda delay: (delay.revision, delay.precedence))
        for delay in sorted(due, key=lambda delay: delay.precedence):
            delay.revision, before = revision, delay.since_s
            await self._attempt(delay.workload.key, self._end_delay(delay))
            if delay.since_s != before:
                return

    async def _begin_delay(self, delay: _Delay) -> None:
        await self._patch(delay.workload, {"requeueState": self._requeue(delay.workload, delay.owed_s)})
        delay.owed_s = 0.0

    async def _end_delay(self, delay: _Delay) -> None:
        workload = delay.workload
        fits = await self._fits(workload)
        if not fits or self._delays.get(workload.uid) is not delay or delay.workload is not workload:
            return
        delay.since_s = self._monotonic()
        await self._patch(workload, self._end_state(workload))
        log.info("a workload may fit now", workload=workload.key)

    async def _fits(self, workload: Workload) -> bool:
        try:
            return await self._expected.fit(await self._pods(workload))
        except Refusal:
            return False

    async def _patch(self, workload: Workload, status: JsonObject) -> None:
        """Write the status of a workload; that it has changed since is a conflict."""
        metadata = {"uid": workload.uid, "resourceVersion": workload.metadata.resource_version}
        body: JsonObject = {"metadata": metadata, "status": status}
        namespace = workload.metadata.namespace
        await self._client.patch(self._kinds.workloads, workload.name, body, namespace=namespace, subresource="status")

    @property
    def _is_late(self) -> bool:
        """Whether delays are written after the eviction, and removed."""
        return self._kinds.workloads.api_version.endswith(DELAYS_EVICTIONS)

    def _end_state(self, workload: Workload) -> JsonObject:
        """The status of a workload whose delay is over.

        Kueue of the newer kind waits until the time is gone, and its server-side apply removes no field of others.
        """
        state = self._requeue(workload)
        return {"requeueState": {**state, "requeueAt": None} if self._is_late else state}

    def _requeue(self, workload: Workload, in_s: float = 0.0) -> JsonObject:
        """The state of a delay that ends then.

        With the count, even of 0: Kueue to 0.16 removes the time when the delay is over, and an empty state is invalid.
        """
        state = workload.status.requeue_state
        return {"requeueAt": self._time(in_s), "count": state.count if state is not None else 0}

    def _time(self, in_s: float = 0.0) -> str:
        return datetime.fromtimestamp(int(self._now_s() + in_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Handler:
    """The handler of a reflector."""

    def __init__(self, applied: Callable[[Any], None], deleted: Callable[[Any], None]) -> None:
        self.on_apply = applied
        self.on_delete = deleted
