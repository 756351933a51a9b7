"""The whole allocator: view, state, decisions and front ends, put together and run."""

import asyncio
import platform
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import TracebackType
from typing import Self

import structlog
from aiohttp import web
from aiohttp.typedefs import Middleware

from allocator.bulletin import Bulletin
from allocator.commit import Committer
from allocator.decide import DecisionEngine
from allocator.injection import Injector
from allocator.journal import Journal
from allocator.metrics import AllocatorMetrics
from allocator.office import Office
from allocator.preempt import Preemption
from allocator.reconsider import Reconsideration
from allocator.selfaudit import SECOND_LOOK_S, SelfAudit
from allocator.serving.clients import AllowedClients
from allocator.serving.extender import MAX_BODY_BYTES, Extender
from allocator.serving.grpc_api import AllocatorService
from allocator.serving.grpc_server import GrpcServer, serve_grpc
from allocator.serving.node_states import NodeStates
from allocator.serving.webhook import Webhook
from allocator.settings import Settings
from allocator.stamp import Stamps
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.previous import PreviousNodes
from allocator.view import View
from ascend.daemon.certificates import Certificates
from ascend.daemon.garbage import keep_collections_short
from ascend.deviceinfo import NAMESPACE
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.lease import boot_time
from ascend.observe.probes import add_probes, serve_http

log = structlog.get_logger()

COMPONENT = "ascend-allocator"
HOUSEKEEPING_S = 1.0


class AllocatorApp:
    """An allocator that runs as long as its ``async with`` block; within one, it may also be inspected.

    If one of its tasks dies, the block is cancelled and the error comes out of it: a process must not live on blind.

    Args:
        settings: as given by the user.
        client: the API server; made from the settings where not given, and then also closed.
        monotonic: the clock for durations and times to live.
        now_ns: the wall clock for decision times, Unix nanoseconds.
        boot_s: the clock of the lease; it goes on while the process or the machine stands still.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        client: KubeClient | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now_ns: Callable[[], int] = time.time_ns,
        boot_s: Callable[[], float] = boot_time,
    ) -> None:
        self._settings = settings
        self._client = client
        self._monotonic = monotonic
        self._now_ns = now_ns
        self._boot_s = boot_s
        self._stack = AsyncExitStack()
        self.ledger = Ledger(ttl_s=settings.reservation_ttl_s, monotonic=monotonic)
        self.cluster = Cluster(
            self.ledger,
            now_s=lambda: now_ns() / 1e9,
            max_report_age_s=settings.max_report_age_s,
            previous=PreviousNodes() if settings.prefer_previous_node else None,
        )
        self.engine = DecisionEngine(self.cluster, self.ledger, gang_ttl_s=settings.gang_ttl_s)
        self.extender_address = ""
        """Where the extender, probes and metrics really listen."""
        self.grpc_address = ""
        """Where ``ascend.allocator.v1`` really listens."""

    async def __aenter__(self) -> Self:
        try:
            await self._stack.enter_async_context(self._running())
        except BaseException:  # also when it is cancelled: __aexit__ is not called then
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def synced(self) -> None:
        """Wait until it leads and its view is complete: from then on questions are answered."""
        await self._office.opened()

    def missing(self) -> str | None:
        """What it waits for before it answers questions, a sentence; None when it does."""
        closed = self._office.closed()
        return closed.message if closed is not None else None

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            client = self._client
            if client is None:
                kubeconfig = self._settings.kubeconfig
                client = await KubeClient.connect(kubeconfig)
                await stack.enter_async_context(client)
            self._view = View(
                client,
                self.cluster,
                health_namespace=self._settings.node_health_namespace,
                monotonic=self._monotonic,
            )
            office = Office(self._settings, client, self._view, boot_s=self._boot_s, now_ns=self._now_ns)
            self._office = office
            metrics = AllocatorMetrics(self.ledger, lambda: self._view.age_s, self.cluster.index, office.leads)
            events = EventRecorder(client, COMPONENT, platform.node(), monotonic=self._monotonic)
            journal = Journal(metrics, Bulletin(events.publish, self._monotonic), self._monotonic)
            stamps = Stamps(self._now_ns, self.cluster.predicate_times)
            committer = Committer(
                client=client,
                cluster=self.cluster,
                ledger=self.ledger,
                engine=self.engine,
                stamps=stamps,
                monotonic=self._monotonic,
                outcome=journal.bind_ended,
                permit=office.permit,
            )
            stack.push_async_callback(office.leave, committer)
            certificates = Certificates(tls) if (tls := self._settings.tls_files) is not None else None
            names = self._settings.client_names
            clients = AllowedClients(frozenset(names)) if names else None
            http = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=_guards(self._settings, clients))
            add_probes(
                http,
                registry=metrics.registry,
                ready={"leader and view": self.missing},
                standby={"view": self._view.missing},
            )
            reconsideration = Reconsideration(
                client, self.cluster, self.engine, metrics, monotonic=self._monotonic, now_ns=self._now_ns
            )
            period_s = self._settings.audit_period_s
            audit = SelfAudit(
                client,
                self.cluster,
                self.ledger,
                namespaces=filter(None, (NAMESPACE, self._settings.node_health_namespace)),
                show=metrics.differences.set,
                period_s=period_s,
                second_look_s=min(SECOND_LOOK_S, period_s),
            )
            injector = Injector(
                client=client,
                cluster=self.cluster,
                ledger=self.ledger,
                engine=self.engine,
                stamps=stamps,
                inscribed=committer.annotations,
                permit=office.permit,
                kept=journal.kept,
            )
            webhook = Webhook(injector, journal, office.closed, self.engine.validate, self._settings.senseless_pods)
            webhook.add_routes(http, self._settings.webhooks)
            preemption = Preemption(self.cluster, self.ledger, self.engine)
            self.extender = Extender(
                engine=self.engine,
                committer=committer,
                preemption=preemption,
                journal=journal,
                reconsideration=reconsideration,
                closed=office.closed,
            )
            self.extender.add_routes(http)
            service = AllocatorService(
                cluster=self.cluster,
                engine=self.engine,
                committer=committer,
                preemption=preemption,
                states=NodeStates(self.cluster, self.ledger),
                journal=journal,
                closed=office.closed,
            )
            self.extender_address = await stack.enter_async_context(
                serve_http(http, self._settings.extender_address, tls=certificates.http if certificates else None)
            )
            # Nobody is asked on a unix socket: its file says who may.
            over_tcp = not self._settings.grpc_address.startswith("unix:")
            grpc_server = await stack.enter_async_context(
                serve_grpc(
                    service,
                    self._settings.grpc_address,
                    credentials=certificates.grpc_credentials() if certificates and over_tcp else None,
                    interceptors=(clients,) if clients is not None and over_tcp else (),
                )
            )
            self.grpc_address = grpc_server.address
            failure: Exception | None = None
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(self._view.run(), name="view"),
                    tasks.create_task(self._keep_house(committer), name="housekeeping"),
                    tasks.create_task(reconsideration.run(), name="reconsideration"),
                    tasks.create_task(events.run(), name="events"),
                    tasks.create_task(audit.run(self._view.synced), name="audit"),
                    tasks.create_task(office.run(), name="election"),
                    tasks.create_task(self._work(grpc_server), name="office"),
                ]
                if certificates is not None:
                    background.append(tasks.create_task(certificates.run(), name="certificates"))
                try:
                    yield
                except Exception as error:  # noqa: BLE001 - raised again below, as it came and not in a group
                    failure = error
                finally:
                    for task in background:
                        task.cancel()
            if failure is not None:
                raise failure

    async def _work(self, grpc_server: GrpcServer) -> None:
        await self._office.enter()
        for job in self.engine.gangs.resume():
            log.warning("the rest of a gang does not fit now", job=str(job.key), kind=job.kind)
        await grpc_server.show(serving=True)
        log.info("ready", nodes=len(self.cluster.nodes), pods=len(self.cluster.pods))
        await self._office.keep(self.extender_address, self.grpc_address)

    async def _keep_house(self, committer: Committer) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for reservation in self.ledger.expire():
                log.info("gave up a reservation", pod=reservation.pod, pod_uid=reservation.uid, node=reservation.node)
            for node in self.cluster.age_reports():
                log.warning("a node's report has grown too old", node=node)
            await committer.verify()


def _guards(settings: Settings, clients: AllowedClients | None) -> list[Middleware]:
    """Who may ask over HTTP."""
    guards = [clients.http("/scheduler/")] if clients is not None else []
    if settings.webhook_client_names:
        callers = AllowedClients(frozenset(settings.webhook_client_names), "webhook_client_names")
        guards.append(callers.http("/webhook/"))
    return guards


async def serve(settings: Settings, *, started: Callable[[AllocatorApp], None] | None = None) -> None:
    """Run an allocator until cancelled.

    Args:
        settings: as given by the user.
        started: called once it listens; it may not be ready yet.
    """
    async with AllocatorApp(settings) as app:
        log.info("listening", extender=app.extender_address, grpc=app.grpc_address)
        if started is not None:
            started(app)
        await app.synced()
        await keep_collections_short()
