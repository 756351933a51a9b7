"""Wires the device plugin together and runs it.

The order matters once, at the start: chips read, pods seen, ledger rebuilt, and only then registration, because from
then on the kubelet may ask.
"""

import asyncio
from pathlib import Path

import structlog
from aiohttp import web

from ascend.annotations import UNKNOWN, ChipAddress, write_claim, write_configuration
from ascend.errors import ApiError, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, PODS, Pod
from ascend.kube.reflector import Reflector
from ascend.observe.probes import Check, add_probes, serve_http
from device_plugin.claims import ClaimWriter
from device_plugin.driver import Driver
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.handover import HandOverDesk
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.kubelet.registration import Registration
from device_plugin.kubelet.servicer import DevicePluginServicer
from device_plugin.lock import InstanceLock
from device_plugin.metrics import Metrics
from device_plugin.reconcile import Reconciler
from device_plugin.report import Reporter
from device_plugin.rules.injection import gift
from device_plugin.rules.snapshot import Snapshot
from device_plugin.scan import Scanner
from device_plugin.settings import Settings
from device_plugin.state.grants import HandOver, HandOvers
from device_plugin.state.observable import Observable
from device_plugin.state.pods import NodePods

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Plugin:
    """One node's device plugin.

    Args:
        settings: as read.
        driver: another driver than the settings name; tests use it.
    """

    def __init__(self, settings: Settings, driver: Driver | None = None) -> None:
        self._settings = settings
        self._driver = driver or SimulatedDriver(settings.simulated_state)
        self._host_ip = settings.host_ip
        self.metrics = Metrics()
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.handovers = HandOvers()
        self.pods = NodePods(on_gone=self.handovers.drop)
        self.http_address = ""

    async def run(self) -> None:
        """Run until cancelled.

        Raises:
            AscendError: it can't start; says why.
        """
        page = web.Application()
        # The page is there from the first moment on; it says what is missing as long as something is.
        ready: dict[str, Check] = {"start": lambda: "waiting for this node's address"}
        add_probes(page, registry=self.metrics.registry, ready=ready)
        async with (
            await KubeClient.connect(self._settings.kubeconfig) as client,
            serve_http(page, self._settings.http_address) as self.http_address,
        ):
            log.info("started", node=self._settings.node_name, http=self.http_address)
            await self._learn_host_ip(client)
            url = self._settings.kubelet_pods_url or f"https://{self._host_ip}:10250/pods"
            ca_file = self._settings.kubelet_ca_file
            async with KubeletPods(url, client.identity_headers, ca_file=ca_file) as kubelet_pods:
                await self._work(client, kubelet_pods, ready)

    async def _work(self, client: KubeClient, kubelet_pods: KubeletPods, ready: dict[str, Check]) -> None:
        settings = self._settings
        claims = ClaimWriter(client)
        self.metrics.claims_pending.set_function(lambda: claims.pending)

        def claim(handover: HandOver) -> None:
            namespace, _, name = handover.pod.partition("/")
            annotations = self._claim(handover, name)
            claims.write(uid=handover.uid, namespace=namespace, name=name, annotations=annotations)

        async def api_pods() -> list[Pod]:
            return await client.list_objects(PODS, field_selector=f"spec.nodeName={settings.node_name}")

        desk = HandOverDesk(
            snapshots=self.snapshots,
            pods=self.pods,
            handovers=self.handovers,
            kubelet_pods=kubelet_pods.list,
            api_pods=api_pods,
            on_handover=claim,
        )

        scanner = Scanner(self._driver, self.snapshots, period_s=settings.scan_period_s)
        watch = Reflector(client, PODS, self.pods, field_selector=f"spec.nodeName={settings.node_name}")
        reconciler = Reconciler(settings.pod_resources_socket, pods=self.pods, handovers=self.handovers, claim=claim)
        reporter = Reporter(
            client,
            settings.node_name,
            snapshots=self.snapshots,
            pods=self.pods,
            handovers=self.handovers,
            metrics=self.metrics,
        )

        def make_servicer() -> DevicePluginServicer:
            return DevicePluginServicer(
                snapshots=self.snapshots,
                desk=desk,
                give=lambda chips: gift(chips, settings.injection, settings.device_root, Path.exists),
                reported_unhealthy=reporter.unhealthy,
                metrics=self.metrics,
            )

        lock = InstanceLock(settings.device_plugin_dir)
        registration = Registration(
            settings.device_plugin_dir, make_servicer, self.metrics, on_new_kubelet=reconciler.forget_lost
        )
        ready.clear()
        ready |= {
            "driver": lambda: scanner.problem,
            "pods": lambda: None if watch.synced.is_set() else "the node's pods are not listed yet",
            "lock": lambda: lock.problem,
            "kubelet": lambda: registration.problem,
            "report": lambda: reporter.problem,
        }
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(scanner.run())
                tasks.create_task(watch.run())
                await self.snapshots.newer_than(0)
                await watch.synced.wait()
                async with lock.held():
                    await reconciler.restore()
                    tasks.create_task(reconciler.run())
                    tasks.create_task(reporter.run())
                    await registration.run()
        finally:
            await claims.close()

    async def _learn_host_ip(self, client: KubeClient) -> None:
        backoff = Backoff(limit_s=5.0)
        while not self._host_ip:
            try:
                self._host_ip = (await client.get(NODES, self._settings.node_name)).internal_ip
            except (ApiError, Unreachable) as error:
                log.warning("waiting for this node's Node object", node=self._settings.node_name, error=str(error))
            if self._host_ip:
                log.info("learned this node's address", address=self._host_ip)
            else:
                await asyncio.sleep(backoff.next_s())

    def _claim(self, handover: HandOver, name: str) -> dict[str, str]:
        snapshot = self.snapshots.value
        chips = {chip.chip_id: chip.address for chip in snapshot.chips} if snapshot is not None else {}
        configuration = write_configuration(
            pod_name=name,
            pod_uid=handover.uid,
            host_ip=self._host_ip,
            devices={chip_id: chips.get(chip_id, ChipAddress()) for chip_id in handover.chips},
            super_pod_id=snapshot.super_pod_id if snapshot is not None else UNKNOWN,
            server_index=snapshot.server_index if snapshot is not None else UNKNOWN,
        )
        return write_claim(chips=handover.chips, kubelet_ids=handover.kubelet_ids, configuration=configuration)
