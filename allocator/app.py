"""The allocator: puts informers, state, decisions and front ends together, and runs them."""

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from allocator.admission.checks import AdmissionChecks
from allocator.binding.annotations import Stamper
from allocator.binding.barrier import Barrier
from allocator.binding.binder import Binder
from allocator.binding.injection import Injector
from allocator.binding.known_pods import FOR_ANYONE, FOR_SCHEDULERS, KnownPods, ReadLimit
from allocator.binding.reserving import Reserver
from allocator.binding.volumes import VolumeWaits
from allocator.decision.engine import DecisionEngine
from allocator.decision.preemption import Preemption
from allocator.decision.tentative import Tentative
from allocator.leadership.handover import HandOver
from allocator.leadership.leadership import Leadership
from allocator.metrics import AllocatorMetrics
from allocator.nomination.nominations import Nominations
from allocator.observe.cluster_gauges import ClusterGauges
from allocator.observe.expiry import Expiry
from allocator.observe.journal import Journal
from allocator.observe.notices import (
    advice,
    log_hyper_nodes,
    log_ignored,
    log_switches,
    log_unreadable,
    notices,
    scaling,
)
from allocator.observe.refusal_events import REFILL_S, RefusalEvents
from allocator.observe.switch_publisher import SwitchPublisher
from allocator.observe.unasked import UnaskedPods
from allocator.rescheduling.rescheduler import Rescheduler
from allocator.rescheduling.setup import make_rescheduler
from allocator.serving.bypassing import Bypasses
from allocator.serving.explanations import Explanations
from allocator.serving.extender import Extender
from allocator.serving.grpc_api import AllocatorService
from allocator.serving.grpc_server import GrpcServer, serve_grpc
from allocator.serving.ports import CALLS, INSECURE_VOLCANO, PROBES, WEBHOOKS, Ports, most_calls
from allocator.serving.requeue import Requeuer
from allocator.serving.volcano import VolcanoExtender
from allocator.serving.webhook import Webhook
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.previous_nodes import PreviousNodes
from allocator.watch.informers import Informers
from allocator.watch.pod_group_queue import PodGroupQueue
from ascend.chips import chip_ids, join_names
from ascend.daemon.lean import keep_collections_short
from ascend.daemon.reload import SettingsReload
from ascend.daemon.settings import SettingsSource
from ascend.errors import Refusal
from ascend.jobs.table import TABLE
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.lease import boot_time
from ascend.observe.probes import add_probes
from ascend.reasons import Reason
from ascend.turn import Turn

log = structlog.get_logger()

COMPONENT = "ascend-allocator"
HOUSEKEEPING_S = 1.0


class AllocatorApp:
    """An allocator that runs for the duration of an ``async with`` block, and can be inspected within it.

    If one of its tasks fails, the block is cancelled and raises the error: a process must not continue without it.

    Args:
        settings: the settings, as read at the start.
        source: where they are read again while it runs; None if they stay as they are.
        client: the API server; if not given, it is made from the settings and closed at the end.
        monotonic: the clock for durations and times to live.
        now_ns: the wall clock for predicate times, Unix nanoseconds.
        boot_s: the clock of the lease; it advances while the process or the machine is suspended.
    """

    def __init__(
        self,
        settings: Settings,
        source: SettingsSource[Settings] | None = None,
        *,
        client: KubeClient | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
        boot_s: Callable[[], float] = boot_time,
    ) -> None:
        self._settings = settings
        self._source = source
        self._client = client
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._now_s = now_s = lambda: now_ns() / 1e9
        self._boot_s = boot_s
        self._stack = AsyncExitStack()
        self.ledger = Ledger(ttl_s=settings.reservation_ttl_s, monotonic=monotonic)
        self.cluster = Cluster(
            self.ledger,
            clock=monotonic,
            max_report_age_s=settings.max_report_age_s,
            previous=PreviousNodes() if settings.prefer_previous_node else None,
            ignored=log_ignored,
        )
        self.cluster.reports.info.unreadable = log_unreadable
        self.cluster.switches.unreadable = log_switches
        self.cluster.hyper_nodes.unreadable = log_hyper_nodes
        self.cluster.jobs.reschedules = settings.reschedules
        self.cluster.plain.schedulers = frozenset(settings.scheduler_names)
        self.engine = DecisionEngine(
            self.cluster,
            self.ledger,
            gang_ttl_s=settings.gang_ttl_s,
            defaults=settings.job_defaults,
            earmark_share=settings.earmark_share,
            now_s=now_s,
        )
        self.bypasses = Bypasses(monotonic, now_s)
        self.cluster.followers.add(self.bypasses.pod_applied, self.bypasses.pod_deleted)
        self.gauges = ClusterGauges(self.engine, now_s, monotonic, sharing_products=settings.sharing_products)
        self._barrier = Barrier(
            self.engine,
            monotonic=monotonic,
            hold_s=settings.gang_hold_s,
            most_calls=most_calls(settings),
        )
        self._addresses: dict[str, str] = {}
        self.grpc_address = ""
        """Where ``ascend.allocator.v1`` listens."""

    async def __aenter__(self) -> Self:
        try:
            self._stack.enter_context(TABLE.using(self._settings.job_kinds))
            await self._stack.enter_async_context(self._running())
        except BaseException:  # also if it is cancelled: __aexit__ is not called then
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def wait_until_synced(self) -> None:
        """Wait until it leads and its informers have synced: from then on calls are answered."""
        await self._leadership.wait_until_open()

    def has_synced(self) -> bool:
        """Whether its informers have synced; a standby's have, too."""
        return self._informers.missing() is None

    def missing(self) -> str | None:
        """What the allocator waits for before calls are answered, a sentence; None once calls are answered."""
        closed = self._leadership.why_closed()
        return closed.message if closed is not None else None

    @property
    def addresses(self) -> Mapping[str, str]:
        """The addresses of the ports, by the names of what they serve."""
        return {**self._addresses, "grpc": self.grpc_address}

    @property
    def extender_address(self) -> str:
        """Where the extender is answered, and Volcano's extender plugin."""
        return self._addresses.get(CALLS, "")

    @property
    def webhook_address(self) -> str:
        """Where the webhooks are answered."""
        return self._addresses.get(WEBHOOKS, self.extender_address)

    @property
    def probe_address(self) -> str:
        """Where the probes and metrics are."""
        return self._addresses.get(PROBES, self.extender_address)

    @property
    def insecure_volcano_address(self) -> str:
        """Where Volcano's extender plugin is answered without protection; empty if it is not."""
        return self._addresses.get(INSECURE_VOLCANO, "")

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            client = self._client
            if client is None:
                kubeconfig = self._settings.kubeconfig
                client = await KubeClient.connect(kubeconfig)
                await stack.enter_async_context(client)
            informers = self._informers = Informers(
                client,
                self.cluster,
                health_namespace=self._settings.node_health_namespace,
                monotonic=self._monotonic,
            )
            leadership = Leadership(
                self._settings,
                client,
                informers,
                HandOver(self.cluster, self.ledger),
                boot_s=self._boot_s,
                now_ns=self._now_ns,
            )
            self._leadership = leadership
            ports = Ports(self._settings)
            metrics = AllocatorMetrics(
                self.ledger, lambda: informers.age_s, self.cluster.index, leadership.leads, ports.validities
            )
            events = EventRecorder(client, COMPONENT, platform.node(), refill_s=REFILL_S, monotonic=self._monotonic)
            posts = (
                notices(self.cluster, events.publish, leadership.leads).post,
                advice(self.engine, events.publish, leadership.leads).post,
                scaling(self.engine, events.publish, leadership.leads).post,
                Expiry(
                    ports.validities,
                    partial(events.publish, once=True),
                    leadership.leads,
                    leadership.regarding,
                    now_s=self._now_s,
                    monotonic=self._monotonic,
                ).post,
            )
            journal = Journal(metrics, RefusalEvents(events.publish, self._monotonic), self._monotonic)
            volumes = VolumeWaits(
                client,
                self.cluster,
                self.ledger,
                self._barrier,
                limit_s=self._settings.volume_wait_s,
                monotonic=self._monotonic,
            )
            unasked = UnaskedPods(
                self.engine,
                journal.on_unasked_pod,
                schedulers=self._settings.scheduler_names,
                monotonic=self._monotonic,
            )
            stamper = Stamper(self.cluster, self.ledger, self._now_ns)
            pods = self._known_pods(client, FOR_SCHEDULERS)
            binder = Binder(
                client=client,
                pods=pods,
                engine=self.engine,
                barrier=self._barrier,
                stamper=stamper,
                monotonic=self._monotonic,
                outcome=journal.bind_ended,
                lease=leadership.lease,
            )
            stack.push_async_callback(leadership.leave, binder.drain)
            add_probes(
                ports.probes,
                registry=metrics.registry,
                ready={"leader and informers": self.missing},
                standby={"informers": informers.missing},
            )
            nominations = Nominations(
                client,
                self.engine,
                journal,
                metrics,
                self._barrier.lapsed,
                settings=self._settings,
                monotonic=self._monotonic,
                now_s=self._now_s,
            )
            requeuer = Requeuer(
                client,
                self.engine,
                metrics,
                monotonic=self._monotonic,
                now_ns=self._now_ns,
                nominate=nominations.nominator.renominate,
            )
            injector = Injector(
                pods=self._known_pods(client, FOR_ANYONE),
                engine=self.engine,
                barrier=self._barrier,
                stamper=stamper,
                monotonic=self._monotonic,
                lease=leadership.lease,
                reserved=journal.on_reservation,
            )
            Webhook(
                injector,
                journal,
                leadership.why_closed,
                validate=self.engine.validate_here,
                require_called=self.bypasses.require_called,
                warnings=self.engine.warnings,
                invalid=self._settings.invalid_pods,
                gates=nominations.gates.wants,
                explanations=Explanations(self.engine, client, self._monotonic),
            ).add_routes(ports.webhooks, self._settings.webhooks)
            preemption = Preemption(self.cluster, self.ledger, self.engine, keep_s=self._settings.preemption_keep_s)
            self.extender = Extender(
                pods=pods,
                engine=self.engine,
                binder=binder,
                barrier=self._barrier,
                preemption=preemption,
                journal=journal,
                requeuer=requeuer,
                nominator=nominations.nominator,
                closed=leadership.why_closed,
                known_nodes=lambda: len(self.cluster.nodes),
            )
            self.extender.add_routes(ports.calls)
            service = AllocatorService(
                pods=pods,
                engine=self.engine,
                binder=binder,
                reserver=Reserver(self.engine, stamper),
                preemption=preemption,
                journal=journal,
                closed=leadership.why_closed,
            )
            self._add_volcano(ports, journal, pods, preemption)
            self._addresses = dict(await ports.serve(stack, metrics.http))
            # A unix socket needs no certificates: its file mode restricts access.
            over_tcp = not self._settings.grpc_address.startswith("unix:")
            grpc_server = await stack.enter_async_context(
                serve_grpc(
                    service,
                    self._settings.grpc_address,
                    credentials=ports.certificates.grpc_credentials() if ports.certificates and over_tcp else None,
                    interceptors=(ports.clients,) if ports.clients is not None and over_tcp else (),
                )
            )
            self.grpc_address = grpc_server.address
            # First of all at the end: the servers wait for the calls that it holds.
            stack.callback(self._barrier.close, Refusal(Reason.NOT_LEADER, "this allocator is stopping"))
            rescheduler = make_rescheduler(
                self._settings,
                client,
                self.cluster,
                publish=events.publish,
                metrics=metrics,
                leads=leadership.leads,
                now_ns=self._now_ns,
                boot_s=self._boot_s,
            )
            failure: Exception | None = None
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._follow_settings(), name="settings"),
                    tasks.create_task(informers.run(), name="informers"),
                    tasks.create_task(self._housekeep(binder, posts), name="housekeeping"),
                    tasks.create_task(self.engine.earmarks.run(), name="earmarks"),
                    tasks.create_task(requeuer.run(), name="requeuer"),
                    tasks.create_task(volumes.run(), name="volumes"),
                    tasks.create_task(events.run(), name="events"),
                    tasks.create_task(leadership.run(), name="election"),
                    tasks.create_task(self._lead(grpc_server, stamper, preemption, rescheduler), name="leadership"),
                    tasks.create_task(self.gauges.run(metrics.registry, informers.wait_until_synced), name="gauges"),
                    tasks.create_task(self._when_open(nominations.run), name="nominations"),
                    tasks.create_task(self._when_open(unasked.run), name="unasked pods"),
                    tasks.create_task(self._reschedule(rescheduler), name="rescheduling"),
                    tasks.create_task(PodGroupQueue(client, self._settings, leadership).run(), name="pod groups"),
                    tasks.create_task(self._publish_switches(client), name="publication of switches"),
                    tasks.create_task(self._check_admission(client, events, metrics), name="admission checks"),
                ]
                if ports.certificates is not None:
                    background.append(tasks.create_task(ports.certificates.run(), name="certificates"))
                try:
                    yield
                except Exception as error:  # noqa: BLE001 - raised again below, outside the exception group
                    failure = error
                finally:
                    for task in background:
                        task.cancel()
            if failure is not None:
                raise failure

    def _known_pods(self, client: KubeClient, limit: ReadLimit) -> KnownPods:
        names = self._settings.scheduler_names
        return KnownPods(
            client,
            self.cluster,
            schedulers=names,
            called=self.bypasses.on_call,
            limit=limit,
            monotonic=self._monotonic,
        )

    def _add_volcano(self, ports: Ports, journal: Journal, pods: KnownPods, preemption: Preemption) -> None:
        if not self._settings.volcano:
            return
        volcano = VolcanoExtender(
            pods=pods,
            engine=self.engine,
            tentative=Tentative(self.cluster, self.ledger, self.engine),
            preemption=preemption,
            journal=journal,
            closed=self._leadership.why_closed,
        )
        for app in filter(None, (ports.calls, ports.insecure_volcano)):
            volcano.add_routes(app)

    async def _lead(
        self, grpc_server: GrpcServer, stamper: Stamper, preemption: Preemption, rescheduler: Rescheduler | None
    ) -> None:
        await self._leadership.enter()
        await Turn().share_between(stamper.resume())
        if rescheduler is not None:
            await rescheduler.load()
        for job in await self.engine.resume():
            log.warning("the rest of a gang does not fit now", job=str(job.key), kind=job.kind)
        preemption.resume()
        await grpc_server.set_serving(serving=True)
        log.info("ready", nodes=len(self.cluster.nodes), pods=len(self.cluster.pods) + len(self.cluster.plain))
        # Probes are of each pod, not of the Service.
        await self._leadership.keep({name: address for name, address in self.addresses.items() if name != PROBES})

    async def _when_open(self, run: Callable[[], Awaitable[None]]) -> None:
        await self._leadership.wait_until_open()
        await run()

    async def _reschedule(self, rescheduler: Rescheduler | None) -> None:
        if rescheduler is not None:
            await self._when_open(rescheduler.run)

    async def _check_admission(self, client: KubeClient, events: EventRecorder, metrics: AllocatorMetrics) -> None:
        if self._settings.admission_checks:
            await AdmissionChecks(
                client,
                self.engine,
                self._leadership,
                publish=events.publish,
                answered=lambda state: metrics.admission_checks.labels(state).inc(),
                ttl_s=self._settings.gang_ttl_s,
                monotonic=self._monotonic,
                now_s=lambda: self._now_ns() / 1e9,
            ).run()

    async def _publish_switches(self, client: KubeClient) -> None:
        if self._settings.publish_switches:
            await self._when_open(SwitchPublisher(client, self.cluster, self.ledger, self._leadership.leads).run)

    async def _follow_settings(self) -> None:
        def apply(_settings: Settings) -> None:
            """Do nothing: the only setting that needs no restart is the level of the log."""

        if self._source is not None:
            await SettingsReload(self._source, self._settings, apply).run()

    async def _housekeep(self, binder: Binder, posts: Sequence[Callable[[], None]]) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            turn = Turn()
            for promise in self.ledger.promises.expire():
                log.warning("chips are no longer kept", promised_to=promise.what, kept_on=sorted(promise.chips))
            expired = await turn.share_between(self.ledger.expire_plans())
            for reservation in [*expired, *self.ledger.expire_reserved()]:
                log.info("a reservation expired", pod=reservation.pod, pod_uid=reservation.uid, node=reservation.node)
                await turn.share()  # the plan of a large gang has thousands
            for node in self.cluster.reports.age():
                log.warning("the report of a node is too old", node=node)
            for node, chips in self.cluster.close_unexplained().items():
                log.warning(
                    "chips are in use without a pod, so none is placed there",
                    node=node,
                    chips=join_names(chip_ids(chips)),
                )
            for post in posts:
                post()
            await self._barrier.check()
            await binder.outcomes.verify()


async def serve(
    settings: Settings,
    source: SettingsSource[Settings] | None = None,
    *,
    started: Callable[[AllocatorApp], None] | None = None,
) -> None:
    """Run an allocator until cancelled.

    Args:
        settings: the settings, as read at the start.
        source: where they are read again while it runs; None if they stay as they are.
        started: called once it listens; it may not be ready yet.
    """
    async with AllocatorApp(settings, source) as app:
        log.info("listening", **app.addresses)
        if started is not None:
            started(app)
        await keep_collections_short(app.has_synced)
