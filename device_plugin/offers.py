"""Offers the devices of each type to the kubelet, and gives them to pods: the same parts for each.

Whole chips are offered always, the vNPUs of a size once there is one.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ascend.annotations import REAL
from ascend.chips import chip_ids
from ascend.daemon.observable import Observable, wait_for_change
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder
from ascend.kube.objects import PODS, Pod
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType
from device_plugin.driver import ChipFacts, DividingDriver
from device_plugin.health.offers import OfferedDevices
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.ledger.allocations import Allocation, DeviceLedger
from device_plugin.ledger.cores import kind_of, offered_cores
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.metrics import Metrics
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.admitted_pod import AdmittedPodFinder
from device_plugin.pods.claims import ClaimWriter, claim_annotations
from device_plugin.pods.core_devices import CoreDevices
from device_plugin.pods.core_keeper import CoreKeeper
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.cutter import Cutter
from device_plugin.pods.devices import ChipDevices, Devices, Inject
from device_plugin.pods.notices import FaultNotices, PodNotices, pod_announcer
from device_plugin.pods.reconciler import Reconciler
from device_plugin.publish.node_object import node_announcer
from device_plugin.publish.order import CoreOrder, PublishingOrder
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.registration import Registration
from device_plugin.serving.servicer import DevicePluginServicer
from device_plugin.serving.succession import Succession
from device_plugin.serving.unknown_plugin import OtherPlugins
from device_plugin.settings import Settings


@dataclass(frozen=True, slots=True)
class DeviceService:
    """Offers the devices of one type.

    Attributes:
        device_type: the type.
        matcher: answers the kubelet's calls.
        reconciler: keeps the ledger as the kubelet has it.
        fault_notices: tells pods of faults.
        registration: registers the resource.
    """

    device_type: DeviceType
    matcher: AdmissionMatcher
    reconciler: Reconciler
    fault_notices: FaultNotices
    registration: Registration


@dataclass(frozen=True, slots=True)
class CoreOffer(DeviceService):
    """Offers AI cores.

    Attributes:
        cores: those that are offered, in the form of a snapshot.
        cutter: cuts the chips.
        keeper: gives back what nobody uses.
        node: has the chips and what pods hold.
    """

    cores: Observable[Snapshot | None]
    cutter: Cutter
    keeper: CoreKeeper
    node: "OfferMaker"

    def update(self) -> None:
        """Take over the present state of chips and pods."""
        node, snapshot = self.node, self.node.snapshots.value
        if snapshot is None or (kind := kind_of(snapshot.server)) is None:
            return  # what was offered stays until the driver says more
        now = offered_cores(snapshot, kind, node.ledgers.cores, node.ledgers.without_cores)
        if now != self.cores.value:
            self.cores.set(now)

    async def follow(self) -> None:
        """Follow chips and pods until cancelled."""
        ledgers = self.node.ledgers
        whole = ledgers.whole
        sources = (self.node.snapshots, ledgers.vnpu_changes, whole.pods.changes, whole.allocations.changes)
        while True:
            versions = [source.version for source in sources]
            self.update()
            await wait_for_change(sources, versions)


@dataclass(slots=True)
class OfferMaker:
    """Makes the offer of each type, of what all offers have in common.

    Attributes:
        settings: of the plugin.
        client: the API server.
        events: posts Events.
        kubelet_pods: lists the kubelet's pods.
        snapshots: the node's chips.
        ledgers: what pods hold.
        metrics: of the plugin.
        claims: writes what pods were given.
        lock: of this node's instances.
        instance: distinguishes the sockets of this process from those of others.
        succession: hands the kubelet over to another instance.
        refresh: waits until the watch of the node's pods has caught up with the API server.
        inject: returns what a container with devices of a type gets, or raises Refusal.
        host_ip: returns this node's address.
        order: decides whether the report or the kubelet comes first, for whole chips.
    """

    settings: Settings
    client: KubeClient
    events: EventRecorder
    kubelet_pods: KubeletPods
    snapshots: Observable[Snapshot | None]
    ledgers: Ledgers
    metrics: Metrics
    claims: ClaimWriter
    lock: InstanceLock
    instance: str
    succession: Succession
    refresh: Callable[[], Awaitable[None]]
    inject: Inject
    host_ip: Callable[[], str]
    order: PublishingOrder
    _unwatched: set[DeviceType] = field(default_factory=set, init=False)

    def facts(self, chip: int) -> ChipFacts | None:
        """Return a chip by its physical id."""
        chips = self.snapshots.value.chips if self.snapshots.value is not None else ()
        return next((candidate.facts for candidate in chips if candidate.chip_id == chip), None)

    def answering_chips(self) -> list[int]:
        """Return the physical ids of the chips that the driver can be asked about."""
        if (snapshot := self.snapshots.value) is None:
            return []
        chips = (chip for chip in snapshot.chips if chip.facts.is_listed)
        return [chip.chip_id for chip in chips if not snapshot.recovering >> chip.chip_id & 1]

    def static_vnpus(self) -> set[tuple[int, int]]:
        """Return the vNPUs of pods that do not request AI cores, as pairs of chip and id."""
        used = ((kind, number) for kind, ledger in self.ledgers.vnpus.items() for number in chip_ids(ledger.used))
        return {(vnpu.chip, vnpu.vdev_id) for vnpu in (kind.vnpu(number) for kind, number in used)}

    def make(self, device_type: DeviceType) -> DeviceService:
        """Return the offer of a type."""
        ledger = self.ledgers.serve(device_type)
        snapshots = OfferedDevices(self.snapshots, device_type)
        order = PublishingOrder(reported=-1) if device_type.suffix else self.order
        return self._service(ChipDevices(ledger, self.inject), self._notices(ledger), snapshots, snapshots, order)

    def make_cores(self, driver: DividingDriver) -> CoreOffer:
        """Return the offer of AI cores."""
        ledger = self.ledgers.cores
        cutter, notices = Cutter(driver, self.facts), self._notices(ledger)
        vnpus = CutVnpus(cutter, self.answering_chips)
        keeper = CoreKeeper(
            ledger,
            vnpus,
            settle=lambda: made.reconciler.settle(),  # noqa: PLW0108 - made below
            others=self.static_vnpus,
            notices=notices,
            announce_node=node_announcer(self.events, self.settings.node_name),
        )
        devices = CoreDevices(
            ledger,
            vnpus,
            keeper,
            others=self.static_vnpus,
            whole=lambda: self.ledgers.without_cores,
            inject=self.inject,
            notices=notices,
        )
        cores: Observable[Snapshot | None] = Observable(None)
        made = self._service(devices, notices, self.snapshots, cores, CoreOrder(self.snapshots, self.order))
        return CoreOffer(
            CORES, made.matcher, made.reconciler, made.fault_notices, made.registration, cores, cutter, keeper, self
        )

    def _notices(self, ledger: DeviceLedger) -> PodNotices:
        return PodNotices(ledger.pods, pod_announcer(self.events, "Allocation"), self.metrics)

    def _service(
        self,
        devices: Devices,
        notices: PodNotices,
        judged: Observable[Snapshot | None],
        listed: Observable[Snapshot | None],
        order: PublishingOrder,
    ) -> DeviceService:
        """Return what serves a type of devices.

        Args:
            devices: the type.
            notices: tells pods what does not match.
            judged: the devices whose health decides what a pod gets; for AI cores the chips.
            listed: the devices in the kubelet's list.
            order: decides whether that or the report comes first.
        """
        ledger, kubelet_pods = devices.ledger, self.kubelet_pods.list
        pods, allocations, device_type = ledger.pods, ledger.allocations, ledger.device_type
        matcher = AdmissionMatcher(
            snapshots=judged,
            devices=devices,
            finder=AdmittedPodFinder(pods, allocations, kubelet_pods=kubelet_pods, api_pods=self._api_pods),
            refresh=self.refresh,
            on_allocation=self._claim,
        )
        reconciler = Reconciler(
            self.settings.pod_resources_socket,
            devices,
            kubelet_pods=kubelet_pods,
            claim=self._claim,
            metrics=self.metrics,
            notices=notices,
        )
        tell = pod_announcer(self.events, "WatchHealth", once=True)
        named = WHOLE_CHIPS if device_type == CORES else device_type
        fault_notices = FaultNotices(judged, pods, allocations, tell, named)
        registration = self._registration(device_type, listed, matcher, reconciler, order)
        return DeviceService(device_type, matcher, reconciler, fault_notices, registration)

    def _claim(self, allocation: Allocation, others: Mapping[str, str | None] = MappingProxyType({})) -> None:
        namespace, _, name = allocation.pod.partition("/")
        annotations = claim_annotations(allocation, self.snapshots.value, pod_name=name, host_ip=self.host_ip())
        if not annotations[REAL]:
            del annotations[REAL]  # which vNPU it has is unknown
        self.claims.write(uid=allocation.uid, namespace=namespace, name=name, annotations={**annotations, **others})

    def _registration(
        self,
        device_type: DeviceType,
        snapshots: Observable[Snapshot | None],
        matcher: AdmissionMatcher,
        reconciler: Reconciler,
        order: PublishingOrder,
    ) -> Registration:
        settings = self.settings
        if settings.dynamic_vnpus == (device_type == CORES):
            self._unwatched.add(device_type)

        def make_servicer() -> DevicePluginServicer:
            return DevicePluginServicer(
                snapshots=snapshots,
                matcher=matcher,
                order=order,
                metrics=self.metrics,
                on_watched=lambda: self._watch_succession(device_type),
                before_first_call=reconciler.catch_up,
                device_type=device_type,
            )

        async def meet_new_kubelet() -> None:
            self.lock.renew()  # its folder may have been recreated
            await reconciler.forget_lost()

        folder = settings.device_plugin_dir
        others = OtherPlugins(
            folder,
            settings.pod_resources_socket,
            settings.plugins_registry_dir,
            self.kubelet_pods.registrations,
            node_announcer(self.events, settings.node_name),
            device_type=device_type,
        )
        return Registration(
            folder,
            make_servicer,
            self.metrics,
            on_new_kubelet=meet_new_kubelet,
            succession=self.succession,
            others=others,
            device_type=device_type,
            instance=self.instance,
        )

    def _watch_succession(self, device_type: DeviceType) -> None:
        """Let the instance before this one end once the kubelet has the devices of all types from this one."""
        self._unwatched.discard(device_type)
        if not self._unwatched:
            self.lock.settle()

    async def _api_pods(self) -> Sequence[Pod]:
        own = f"spec.nodeName={self.settings.node_name}"
        return await self.client.list_objects(PODS, field_selector=own)
