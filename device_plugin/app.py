"""Wires the device plugin together and runs it.

The order matters once, at the start: pods seen, chips judged, ledger rebuilt, and only then registration, because from
then on the kubelet may ask.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import structlog
from aiohttp import web

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.daemon.reload import Outcome, SettingsReload
from ascend.daemon.settings import SettingsSource
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.objects import PODS, Node, Pod
from ascend.kube.reflector import Reflector
from ascend.observe.liveness import alive, beats
from ascend.observe.probes import Check, add_probes, serve_http
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.chips.scanner import Scanner
from device_plugin.health.fault_rules import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pods_api import KubeletPods, pods_url
from device_plugin.ledger.handovers import HandOver, HandOvers
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.cdi_file import Injector
from device_plugin.pods.claims import ClaimWriter, claim_annotations
from device_plugin.pods.container_edits import ContainerEdits, detect
from device_plugin.pods.reconciler import Reconciler
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.readmission_labels import CHIPS, PORTS, Readmission
from device_plugin.publish.reporter import Reporter
from device_plugin.publish.restore import restore
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.registration import Registration
from device_plugin.serving.servicer import DevicePluginServicer
from device_plugin.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

COMPONENT = "ascend-device-plugin"


@dataclass(frozen=True, slots=True)
class _ChipSide:
    """What reads, judges and reports the chips."""

    scanner: Scanner
    health: HealthMonitor
    fault_config: FaultConfig
    board: DeviceInfoConfigMap
    reporter: Reporter


@dataclass(frozen=True, slots=True)
class _KubeletSide:
    """What hands the chips to pods."""

    watch: Reflector[Pod]
    claims: ClaimWriter
    reconciler: Reconciler
    lock: InstanceLock
    registration: Registration


class Plugin:
    """One node's device plugin.

    Args:
        settings: as read.
        source: where the settings are read again while it runs; None where they stay as they are.
    """

    def __init__(
        self,
        settings: Settings,
        source: SettingsSource[Settings] | None = None,
    ) -> None:
        self._settings = settings
        self._source = source
        self._host_ip = settings.host_ip
        self.metrics = Metrics()
        self._driver = settings.make_driver(
            lambda call, took_s: self.metrics.driver_calls.labels(call=call).observe(took_s)
        )
        self._giver = self._make_giver()
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.kubelet_healthy: Observable[ChipSet] = Observable(0)
        self.handovers = HandOvers()
        self.pods = NodePods(on_gone=self.handovers.drop)
        self._live: dict[str, Check] = {}
        self.http_address = ""

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            AscendError: it can't start; says why.
        """
        settings = self._settings
        page = web.Application()
        async with await KubeClient.connect(settings.kubeconfig) as client:
            url = self._kubelet_pods_url
            async with KubeletPods(url, client.identity_headers, ca_file=settings.kubelet_ca_file) as kubelet_pods:
                waits = settings.readmission == "manual"
                node_object = NodeWriter(client, settings.node_name, () if waits else (CHIPS, PORTS))
                events = EventRecorder(client, COMPONENT, settings.node_name)
                chips = self._chip_side(client, node_object, events)
                kubelet = self._kubelet_side(client, kubelet_pods, events, chips.reporter)
                # The page is there from the first moment on; it says what is missing as long as something is.
                started: dict[str, Check] = {
                    "node": lambda: node_object.problem,
                    "chips": lambda: None if self.snapshots.value is not None else "no chip has been judged yet",
                    "lock": lambda: kubelet.lock.problem,
                    "kubelet": lambda: kubelet.registration.problem,
                }
                ready: dict[str, Check] = {
                    "node": lambda: node_object.problem,
                    "driver": lambda: chips.scanner.problem,
                    "pods": lambda: None if kubelet.watch.synced.is_set() else "the node's pods are not listed yet",
                    "lock": lambda: kubelet.lock.problem,
                    "kubelet": lambda: kubelet.registration.problem,
                    "report": lambda: chips.reporter.problem,
                }
                add_probes(page, registry=self.metrics.registry, ready=ready, live=self._live, started=started)
                async with serve_http(page, settings.http_address) as self.http_address:
                    log.info("started", node=settings.node_name, http=self.http_address)
                    try:
                        await self._work(client, events, chips, kubelet, node_object)
                    finally:
                        await kubelet.claims.close()

    def _kubelet_pods_url(self) -> str:
        return self._settings.kubelet_pods_url or pods_url(self._host_ip)

    async def _work(
        self,
        client: KubeClient,
        events: EventRecorder,
        chips: _ChipSide,
        kubelet: _KubeletSide,
        node_object: NodeWriter,
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            start = self._starter(tasks)
            # All that is waited for at the start is read side by side: the driver, the pods, and what restore() takes.
            restored = asyncio.Event()
            start("scanner", chips.scanner.run(restored))
            self._live["scanner's loop"] = beats(lambda: chips.scanner.turned_s, lambda: chips.scanner.period_s)
            start("pods", kubelet.watch.run())
            start("events", events.run())
            node = await restore(client, node_object, chips.fault_config, chips.board, chips.health)
            # What was so before has to be known before the first reading says what of it is still so.
            restored.set()
            if not self._host_ip:
                self._host_ip = node.internal_ip
                log.info("learned this node's address", address=self._host_ip)
            start("settings", self._follow_settings(chips))
            start("fault rules", chips.fault_config.follow(client))
            # A chip that a pod runs with may be kept where an idle one is not: the pods come before the judgement.
            await kubelet.watch.synced.wait()
            start("health", chips.health.run())
            await self.snapshots.newer_than(0)
            async with kubelet.lock.held():
                try:
                    await self._serve(client, chips, kubelet, node)
                finally:
                    # Nothing of ours writes any more, and nobody else yet: the next plugin's report must come after.
                    if kubelet.lock.is_still_ours():
                        await chips.reporter.sign_off()

    async def _serve(self, client: KubeClient, chips: _ChipSide, kubelet: _KubeletSide, node: Node) -> None:
        """What only one plugin of a node may do at a time."""
        async with asyncio.TaskGroup() as tasks:
            start = self._starter(tasks)
            self._prepare()
            await kubelet.reconciler.restore()
            start("board", chips.board.watch().run())
            start("reconciler", kubelet.reconciler.run())
            start("report", chips.reporter.run())
            if self._settings.readmission == "manual":
                readmission = Readmission(client, node, snapshots=self.snapshots, on_readmit=chips.health.readmit)
                start("labels", readmission.watch().run())
                start("readmission", readmission.run())
            await kubelet.registration.run()

    def _starter(self, tasks: asyncio.TaskGroup) -> Callable[[str, Coroutine[Any, Any, None]], None]:
        def start(what: str, work: Coroutine[Any, Any, None]) -> None:
            self._live[what] = alive(tasks.create_task(work))

        return start

    async def _follow_settings(self, chips: _ChipSide) -> None:
        if self._source is None:
            await asyncio.Event().wait()
            return

        def apply(settings: Settings) -> None:
            self._settings = settings
            self._giver = self._make_giver()
            self._prepare()
            chips.scanner.period_s = settings.scan_period_s
            chips.health.tune(hold_s=settings.recovery_hold_s, stale_s=settings.stale_s)

        def count(outcome: Outcome) -> None:
            self.metrics.settings_reloads.labels(result=outcome).inc()
            self.metrics.settings_awaiting_restart.set(len(reload.awaiting_restart))

        reload = SettingsReload(self._source, self._settings, apply, count=count)
        await reload.run()

    def _give(self, chips: tuple[int, ...]) -> ContainerEdits:
        return self._giver.give(chips)

    def _make_giver(self) -> Injector:
        settings = self._settings
        return Injector(detect(settings.injection, os.environ), settings.device_root, settings.cdi_dir)

    def _chip_side(self, client: KubeClient, node_object: NodeWriter, events: EventRecorder) -> _ChipSide:
        settings = self._settings

        def announce(reason: str, sentence: str, warning: bool) -> None:  # noqa: FBT001 - a callback's plain word
            # The kubelet's own Events about a Node have its name as uid, and so `kubectl describe node` looks for it.
            regarding = Regarding("Node", settings.node_name, uid=settings.node_name)
            events.publish(regarding, reason, sentence, action="WatchHealth", warning=warning)

        book = HealthBook(
            default_rules(),
            hold_s=settings.recovery_hold_s,
            stale_s=settings.stale_s,
            readmission=settings.readmission,
        )
        health = HealthMonitor(
            book,
            self.snapshots,
            pods=self.pods,
            handovers=self.handovers,
            metrics=self.metrics,
            announce=announce,
        )
        board = DeviceInfoConfigMap(client, settings.node_name, health.edited, health.misnamed)
        reporter = Reporter(
            board,
            node_object,
            snapshots=self.snapshots,
            kubelet_healthy=self.kubelet_healthy,
            metrics=self.metrics,
        )
        scanner = Scanner(self._driver, health, period_s=settings.scan_period_s)
        return _ChipSide(scanner, health, FaultConfig(health.configure, announce), board, reporter)

    def _kubelet_side(
        self, client: KubeClient, kubelet_pods: KubeletPods, events: EventRecorder, reporter: Reporter
    ) -> _KubeletSide:
        settings = self._settings
        own = f"spec.nodeName={settings.node_name}"
        claims = ClaimWriter(client)
        self.metrics.claims_pending.set_function(lambda: claims.pending)

        def claim(handover: HandOver) -> None:
            namespace, _, name = handover.pod.partition("/")
            annotations = claim_annotations(handover, self.snapshots.value, pod_name=name, host_ip=self._host_ip)
            claims.write(uid=handover.uid, namespace=namespace, name=name, annotations=annotations)

        def announce(pod: NodePod, reason: str, sentence: str) -> None:
            regarding = Regarding("Pod", pod.name, pod.namespace, pod.uid)
            events.publish(regarding, reason, sentence, action="HandOver")

        async def api_pods() -> list[Pod]:
            return await client.list_objects(PODS, field_selector=own)

        watch = Reflector(client, PODS, self.pods, field_selector=own)

        desk = AdmissionMatcher(
            snapshots=self.snapshots,
            pods=self.pods,
            handovers=self.handovers,
            admission=AdmittedPodFinder(self.pods, self.handovers, kubelet_pods=kubelet_pods.list, api_pods=api_pods),
            refresh=watch.refresh,
            give=self._give,
            on_handover=claim,
        )
        reconciler = Reconciler(
            settings.pod_resources_socket,
            pods=self.pods,
            handovers=self.handovers,
            claim=claim,
            metrics=self.metrics,
            announce=announce,
        )

        def make_servicer() -> DevicePluginServicer:
            return DevicePluginServicer(
                snapshots=self.snapshots,
                desk=desk,
                reported_unhealthy=reporter.unhealthy,
                told_healthy=self.kubelet_healthy,
                metrics=self.metrics,
            )

        lock = InstanceLock(settings.device_plugin_dir)

        async def meet_another_kubelet() -> None:
            lock.renew()  # its folder may be another one
            await reconciler.forget_lost()

        registration = Registration(
            settings.device_plugin_dir, make_servicer, self.metrics, on_new_kubelet=meet_another_kubelet
        )
        return _KubeletSide(watch, claims, reconciler, lock, registration)

    def _prepare(self) -> None:
        snapshot = self.snapshots.value
        try:
            self._giver.prepare(chip.chip_id for chip in (snapshot.chips if snapshot is not None else ()))
        except Refusal as refusal:
            # Every container is refused with this sentence until it can be.
            log.warning("chips can't be given to containers yet", reason=refusal.reason, error=refusal.message)
