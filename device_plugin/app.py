"""Puts the device plugin together and runs it.

The order matters at the start: pods listed, chips judged, ledger rebuilt, and only then registration, because from then
on the kubelet can call.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog
from aiohttp import web

from ascend.chips import chip_ids
from ascend.daemon.lean import trim_heap_after
from ascend.daemon.observable import Observable
from ascend.daemon.reload import Outcome, SettingsReload
from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue, Refusal
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.objects import PODS, Node
from ascend.kube.reflector import Reflector
from ascend.observe.probes import Check, loop_is_turning, task_is_running
from ascend.serving.http import serve_http
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.chips.scanner import Scanner
from device_plugin.chips.switch_monitor import SwitchMonitor
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.driver.dcmi.port_tool import PortCounters
from device_plugin.hang import HangDetector
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.moment import RunningTime
from device_plugin.health.snapshot import Snapshot
from device_plugin.job_files.mirror import JobFiles
from device_plugin.kubelet.pods_api import KubeletPods, pods_url
from device_plugin.ledger.allocations import Allocations
from device_plugin.ledger.chip_choice import ChipChooser, VnpuChooser
from device_plugin.ledger.cores import kind_of
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.offers import DeviceService, OfferMaker
from device_plugin.parts import ChipMonitoring, DeviceServing, Probes
from device_plugin.pods.cdi_file import ContainerInjector
from device_plugin.pods.claims import ClaimWriter
from device_plugin.pods.container_edits import ContainerEdits, detect, offers_cdi
from device_plugin.pods.topology import TopologyFile, TopologyUpdates
from device_plugin.processes import ProcessWatch
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_health import NodeHealthWriter
from device_plugin.publish.node_object import NodeInfo, NodeWriter, ShownChips, node_announcer
from device_plugin.publish.order import PublishingOrder
from device_plugin.publish.readiness import Readiness
from device_plugin.publish.readmission_labels import CHIPS, PORTS, ReadmissionLabels
from device_plugin.publish.reporter import Reporter
from device_plugin.publish.restore import restore
from device_plugin.publish.rights import RefusedRights
from device_plugin.reset.host import Knowledge
from device_plugin.reset.hot_reset import HotReset
from device_plugin.reset.steps import ResetOptions
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.plugin_socket import new_instance
from device_plugin.serving.succession import Succession, kubelet_version
from device_plugin.serving.withdrawal import Withdrawal
from device_plugin.settings import Settings
from device_plugin.telemetry.collector import ChipMetrics
from device_plugin.telemetry.meter import Meter

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

COMPONENT = "ascend-device-plugin"

FINISH_CLAIMS_S = 3.0
"""How long claims delay the end, with ``STOP_GRACE_S`` and ``SIGN_OFF_S`` less than a pod's grace period of 10 s."""

NODE_LIMIT_S = 1.0
"""How long the first registration waits for the present Node: it has the versions of the node's software."""


class Plugin:
    """The device plugin of one node.

    Args:
        settings: as read at the start.
        source: where the settings are read again while the plugin runs; None if they stay as they are.
    """

    def __init__(self, settings: Settings, source: SettingsSource[Settings] | None = None) -> None:
        self._settings = settings
        self._source = source
        self._host_ip = settings.host_ip
        self.metrics = Metrics()
        self._time = RunningTime()
        self._driver = settings.make_driver(
            lambda call, took_s: self.metrics.driver_calls.labels(call=call).observe(took_s), self._time.now_s
        )
        self._node_info = NodeInfo()
        self._injector = self._injectors()[-1]
        self._topology = TopologyFile(settings.topology_dir)
        self._unread: dict[str, str] = {}
        """What the start waits for at the API server, and why it can't be read."""
        self._refused = RefusedRights()
        self._instance = new_instance()
        self._serves = False
        """Until then the CDI file is another instance's."""
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.order = PublishingOrder()
        self.allocations = Allocations()
        self.pods = NodePods(on_gone=self.allocations.drop)
        self.ledgers = Ledgers(self.pods, self.allocations)
        self._live: dict[str, Check] = {}
        self.http_address = ""

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            AscendError: the plugin can't start; the message says why.
        """
        settings = self._settings
        page = web.Application()
        async with await KubeClient.connect(settings.kubeconfig) as client:
            client.on_forbidden = self._refused.note
            url = self._kubelet_pods_url
            async with KubeletPods(url, client.identity_headers, settings.kubelet_identity) as kubelet_pods:
                events = EventRecorder(client, COMPONENT, settings.node_name)
                chips = self._chip_side(client, events)
                pods = self._pod_side(client, kubelet_pods, events)
                refresh = chips.meter.refresh if settings.telemetry else None
                probes = Probes(chips, pods, self.snapshots, unread=self._unread, refused=self._refused)
                # The page is served from the start; it shows what is missing.
                probes.add(page, self._live, self.metrics.registry, refresh)
                readiness = Readiness(client, settings.node_name, probes.lacks)
                async with serve_http(page, settings.http_address, refusals=self.metrics.http) as self.http_address:
                    log.info("started", node=settings.node_name, http=self.http_address)
                    try:
                        await self._work(client, events, chips, pods, readiness)
                    finally:
                        chips.meter.close()
                        pods.close()
                        has_successor = pods.succession.has_begun or pods.lock.is_anothers
                        # A successor completes the claims; another product's plugin, which may follow, does not.
                        await asyncio.gather(
                            pods.claims.close(finish_s=0.0 if pods.succession.has_begun else FINISH_CLAIMS_S),
                            *(() if has_successor else (readiness.sign_off(),)),
                        )

    def _kubelet_pods_url(self) -> str:
        return self._settings.kubelet_pods_url or pods_url(self._host_ip)

    async def _work(
        self,
        client: KubeClient,
        events: EventRecorder,
        chips: ChipMonitoring,
        pods: DeviceServing,
        readiness: Readiness,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            start = self._starter(tasks)
            start("running time", self._time.run(_stood_still))
            # First: the start can wait for the API server for as long as that takes.
            start("settings", self._follow_settings(chips))
            start("readiness", readiness.run())
            start("rights", self._refused.follow(client))
            # What the start waits for is read in parallel: the driver, the pods, and what restore() reads.
            restored = asyncio.Event()
            start("scanner", chips.scanner.run(restored))
            self._live["scanner's loop"] = loop_is_turning(
                lambda: chips.scanner.turned_s, lambda: chips.scanner.period_s
            )
            start("pods", pods.watch.run())
            start("events", events.run())
            node = await restore(
                client, chips.node_object, chips.fault_config, chips.config_map, chips.health, unread=self._unread
            )
            # The first reading is compared with the state from before the restart, so it comes after that.
            restored.set()
            if not self._host_ip:
                self._host_ip = node.internal_ip
                log.info("learned this node's address", address=self._host_ip)
            start("kubelet's pods", pods.kubelet_pods.follow())
            start("fault rules", chips.fault_config.follow(client))
            # The health of a chip can depend on the pod that runs with it, so the pods come before the judgement.
            await pods.watch.synced.wait()
            start("health", chips.health.run())
            start("switches", chips.switches.run())
            if self._settings.hang_detection:
                start("hang detection", chips.hangs.run())
            await self.snapshots.newer_than(0)
            self._check_kind()
            async with pods.succession.ending(), pods.lock.held():
                try:
                    await self._serve(client, chips, pods, node)
                finally:
                    # No task here writes any more, and no other plugin does yet: its first report comes after this.
                    if not pods.succession.has_begun and pods.lock.is_still_ours():
                        await asyncio.gather(chips.reporter.sign_off(), chips.node_health.sign_off())

    def _check_kind(self) -> None:
        """Check that the chips can be cut when pods start, if the settings say so.

        Raises:
            InvalidValue: they can't.
        """
        snapshot = self.snapshots.value
        if not self._settings.dynamic_vnpus or snapshot is None or kind_of(snapshot.server) is not None:
            return
        server = snapshot.server
        memory_mb = max((chip.facts.hbm_mb for chip in snapshot.chips), default=0)
        raise InvalidValue(
            f"dynamic_vnpus: chips of this server can't be cut when pods start ({server.chip_type}, "
            f"{server.ai_cores or 'an unknown number of'} AI cores, {memory_mb} MB)"
        )

    async def _serve(self, client: KubeClient, chips: ChipMonitoring, pods: DeviceServing, node: Node) -> None:
        """Do what only one plugin per node may do at a time."""
        settings = self._settings
        async with asyncio.TaskGroup() as tasks:
            start = self._starter(tasks)
            self._serves = True
            chips.node_object.readers.append(chips.node_health)
            chips.node_health.on_apply(node)  # without the right to watch it, the Node is known from here on
            watch = chips.node_object.watch()
            start("node watch", watch.run())
            with suppress(TimeoutError):
                async with asyncio.timeout(NODE_LIMIT_S):
                    await watch.synced.wait()
            start("node software", self._follow_software(chips.node_object))
            self._renew_injector()
            updates = TopologyUpdates(client, node, self._host_ip, self.snapshots, self._topology)
            await updates.begin()
            start("topology", updates.run())
            if settings.choose_chips:
                pods.whole.matcher.chooser = ChipChooser(node, self.ledgers.whole)
            for device_type in self.ledgers.types.value:
                self._offer(pods, device_type)
            for offer in pods.kept:
                await offer.reconciler.restore()
            pods.start_cores(start)
            if (options := settings.hot_reset_options) is not None:
                reset = self._hot_reset(chips, pods, options, node)
                await reset.prepare()
                start("hot reset", reset.run())
            start("processes", self._process_watch(chips, pods).run())
            start("report watch", chips.config_map.watch().run())
            start("node health", chips.node_health.run(lambda: pods.other_plugin))
            for offer in pods.kept:
                start(f"reconciler{_of(offer)}", offer.reconciler.run())
                start(f"fault notices{_of(offer)}", offer.fault_notices.run())
            if pods.cores is None:
                start("shown chips", ShownChips(chips.node_object.seen, self.order).run())
            chips.reporter.gives_way = lambda: pods.other_plugin is not None
            start("report", chips.reporter.run())
            if settings.readmission == "manual":
                labels = ReadmissionLabels(client, node, snapshots=self.snapshots, on_readmit=chips.health.readmit)
                chips.node_object.readers.append(labels)
                start("labels", labels.run())
            if settings.job_files:
                folders = {"reset_config_dir": settings.reset_config_dir, "data_trace_dir": settings.data_trace_dir}
                start("job files", JobFiles(client, self.pods, **folders).run())
            tasks.create_task(trim_heap_after(self.order.reported_unhealthy.newer_than(0)))
            for offer in pods.offers:
                start(f"registration{_of(offer)}", offer.registration.run())
            start("withdrawal", self._withdraw(chips, pods))
            await self._offer_more(pods, start)

    async def _withdraw(self, chips: ChipMonitoring, pods: DeviceServing) -> None:
        """Withdraw what earlier plugins offered and this one does not."""
        # From its first list on the kubelet is there, and another plugin that serves is known.
        await self.order.advertised.newer_than(0)
        withdrawal = Withdrawal(self._settings.device_plugin_dir, self._instance, chips.node_object.seen)
        await withdrawal.run(lambda: {offer.device_type for offer in pods.offers}, lambda: pods.other_plugin)

    def _process_watch(self, chips: ChipMonitoring, pods: DeviceServing) -> ProcessWatch:
        return ProcessWatch(
            self._driver,
            self.snapshots,
            self.ledgers,
            chips.announce,
            self.metrics,
            off_limits=lambda: chips.scanner.muted,
            pauses=lambda: pods.other_plugin is not None,
        )

    def _hot_reset(self, chips: ChipMonitoring, pods: DeviceServing, options: ResetOptions, node: Node) -> HotReset:
        known = Knowledge(
            self.snapshots,
            self.order.advertised,
            self.ledgers,
            lambda: any(offer.matcher.is_admitting for offer in pods.kept),
            chips.node_object.annotations,
        )
        earlier = node.metadata.annotations
        return HotReset(
            self._driver,
            chips,
            known,
            options=options,
            metrics=self.metrics,
            earlier=earlier,
            moment=self._time.moment,
        )

    def _offer(self, pods: DeviceServing, device_type: DeviceType) -> DeviceService:
        """Offer the vNPUs of a size."""
        offer = pods.vnpus[device_type] = pods.make_offer(device_type)
        if self._settings.choose_chips:
            offer.matcher.chooser = VnpuChooser(self.ledgers.serve(device_type))
        return offer

    async def _offer_more(self, pods: DeviceServing, start: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        """Offer each size of vNPUs as soon as the first of it appears."""
        while True:
            version = self.ledgers.types.version
            for device_type in self.ledgers.types.value:
                if device_type not in pods.vnpus:
                    offer = self._offer(pods, device_type)
                    await offer.reconciler.restore()
                    start(f"reconciler{_of(offer)}", offer.reconciler.run())
                    start(f"fault notices{_of(offer)}", offer.fault_notices.run())
                    if pods.cores is None:
                        start(f"registration{_of(offer)}", offer.registration.run())
                    self._prepare(self._injector)
            await self.ledgers.types.newer_than(version)

    def _starter(self, tasks: asyncio.TaskGroup) -> Callable[[str, Coroutine[Any, Any, None]], None]:
        def start(what: str, work: Coroutine[Any, Any, None]) -> None:
            self._live[what] = task_is_running(tasks.create_task(work))

        return start

    async def _follow_settings(self, chips: ChipMonitoring) -> None:
        if self._source is None:
            await asyncio.Event().wait()
            return

        def apply(settings: Settings) -> None:
            self._settings = settings
            if self._serves:
                self._renew_injector()
            chips.scanner.period_s = settings.scan_period_s
            chips.meter.interval_s = settings.telemetry_interval_s
            chips.health.tune(hold_s=settings.recovery_hold_s, stale_s=settings.stale_s)

        def count(outcome: Outcome) -> None:
            self.metrics.settings_reloads.labels(result=outcome).inc()
            self.metrics.settings_awaiting_restart.set(len(reload.awaiting_restart))

        reload = SettingsReload(self._source, self._settings, apply, count=count)
        await reload.run()

    def _renew_injector(self) -> None:
        # During an upgrade to CDI this pod still lacks the mounted folder of CDI files: its way goes on.
        if (found := next(filter(self._prepare, self._injectors()), None)) is not None:
            if found.injection != self._injector.injection:
                log.info("containers get their chips in another way", injection=found.injection)
            self._injector = found

    def _injectors(self) -> list[ContainerInjector]:
        """Return how containers can get chips by the settings, the best way first."""
        settings, info = self._settings, self._node_info
        # Without the node's folder the file would be written where no container runtime looks.
        cdi = settings.cdi_dir.is_dir() and offers_cdi(info.container_runtime_version, info.kubelet_version)
        ways = (
            detect(settings.injection, os.environ, cdi=with_cdi) for with_cdi in ((True, False) if cdi else (False,))
        )
        return [ContainerInjector(way, settings.device_root, settings.cdi_dir) for way in dict.fromkeys(ways)]

    async def _follow_software(self, node_object: NodeWriter) -> None:
        """Renew the way in which containers get chips after an upgrade of kubelet or container runtime."""
        while True:
            version, info = node_object.seen.version, node_object.seen.value.status.node_info
            if info != self._node_info:
                self._node_info = info
                self._renew_injector()
            await node_object.seen.newer_than(version)

    def _prepare(self, injector: ContainerInjector) -> bool:
        """Return whether containers can get chips this way; until they can, each is refused with the same sentence."""
        snapshot = self.snapshots.value
        whole, vnpus = (snapshot.chips, snapshot.vnpus) if snapshot is not None else ((), {})
        try:
            injector.prepare(
                (chip.chip_id for chip in whole if not chip.facts.vnpus),
                (
                    device_type.vnpu(chip_id)
                    for device_type, found in vnpus.items()
                    for chip_id in chip_ids(found.present)
                ),
            )
        except Refusal as refusal:
            log.warning("containers can't get chips this way yet", reason=refusal.reason, error=refusal.message)
            return False
        return True

    def _chip_side(self, client: KubeClient, events: EventRecorder) -> ChipMonitoring:
        settings = self._settings
        announce = node_announcer(events, settings.node_name)
        book = HealthBook(
            default_rules(),
            hold_s=settings.recovery_hold_s,
            stale_s=settings.stale_s,
            readmission=settings.readmission,
            tells_faults_in_use=settings.faults_in_use == "unhealthy",
        )
        health = HealthMonitor(
            book,
            self.snapshots,
            ledgers=self.ledgers,
            metrics=self.metrics,
            announce=announce,
            by_cores=settings.dynamic_vnpus,
            moment=self._time.moment,
        )
        switches = SwitchMonitor(settings.make_switch_driver(), self.snapshots, announce)

        def configure(rules: FaultRules) -> None:
            health.configure(rules)
            switches.configure(rules.switches)

        manual = settings.readmission == "manual"
        node_object = NodeWriter(client, settings.node_name, () if manual else (CHIPS, PORTS), announce)
        config_map = DeviceInfoConfigMap(
            client, settings.node_name, health.on_separation_edited, health.warn_unknown_entries
        )
        reporter = Reporter(
            config_map,
            node_object,
            snapshots=self.snapshots,
            switches=switches.report,
            order=self.order,
            metrics=self.metrics,
        )
        node_health = NodeHealthWriter(client, settings.node_name, snapshots=self.snapshots, rule=settings.taint_rule)
        hangs = HangDetector(
            self._driver,
            health,
            rounds=settings.hang_minutes,
            packets=PortCounters(settings.link_tool).packets,
            off_limits=lambda: scanner.muted,
        )
        scanner = Scanner(
            self._driver,
            hangs if settings.hang_detection else health,
            known=lambda: book.discovered_chips,
            period_s=settings.scan_period_s,
            moment=self._time.moment,
        )
        fault_config = FaultConfig(configure, announce)
        meter = Meter(
            self._driver,
            self.snapshots,
            self.metrics,
            interval_s=settings.telemetry_interval_s,
            off_limits=lambda: scanner.muted,
        )
        if settings.telemetry:
            self.metrics.registry.register(ChipMetrics(meter, scanner.state, self.ledgers))
        return ChipMonitoring(
            scanner,
            hangs,
            announce,
            health,
            meter,
            switches,
            fault_config,
            node_object,
            node_health,
            config_map,
            reporter,
        )

    def _pod_side(self, client: KubeClient, kubelet_pods: KubeletPods, events: EventRecorder) -> DeviceServing:
        settings = self._settings
        claims = ClaimWriter(client)
        self.metrics.claims_pending.set_function(lambda: claims.pending)
        watch = Reflector(client, PODS, self.ledgers, field_selector=f"spec.nodeName={settings.node_name}")
        lock = InstanceLock(settings.device_plugin_dir)
        succession = Succession(lock, lambda: kubelet_version(client, settings.node_name))
        maker = OfferMaker(
            settings=settings,
            client=client,
            events=events,
            kubelet_pods=kubelet_pods,
            snapshots=self.snapshots,
            ledgers=self.ledgers,
            metrics=self.metrics,
            claims=claims,
            lock=lock,
            instance=self._instance,
            succession=succession,
            refresh=watch.refresh,
            inject=self._inject,
            host_ip=lambda: self._host_ip,
            order=self.order,
        )
        cores = maker.make_cores(self._driver) if settings.dynamic_vnpus else None
        return DeviceServing(
            watch, kubelet_pods, claims, lock, succession, maker.make(WHOLE_CHIPS), {}, maker.make, cores
        )

    def _inject(self, chips: tuple[int, ...], device_type: DeviceType) -> ContainerEdits:
        edits = self._injector.inject(chips, device_type)  # a reload of the settings may replace the injector
        return self._topology.add(edits, [device_type.chip(chip) for chip in chips] if device_type.suffix else chips)


def _stood_still(still_s: float) -> None:
    log.warning("the plugin stood still, that time counts for no chip", still_s=round(still_s, 1))


def _of(offer: DeviceService) -> str:
    """Return the name of what is offered, for the names of tasks; empty for whole chips."""
    return f" of {offer.device_type.name}" if offer.device_type != WHOLE_CHIPS else ""
