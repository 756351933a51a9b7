"""The parts of the device plugin that are put together at the start and used by each other."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from prometheus_client import CollectorRegistry

from ascend.daemon.observable import Observable
from ascend.kube.objects import Pod
from ascend.kube.reflector import Reflector
from ascend.observe.probes import Check, add_probes
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import Announce, HealthMonitor
from device_plugin.chips.scanner import Scanner
from device_plugin.chips.switch_monitor import SwitchMonitor
from device_plugin.device_types import DeviceType
from device_plugin.hang import HangDetector
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.offers import CoreOffer, DeviceService
from device_plugin.pods.claims import ClaimWriter
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_conditions import Lack
from device_plugin.publish.node_health import NodeHealthWriter
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.reporter import Reporter
from device_plugin.publish.rights import RefusedRights
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.succession import Succession
from device_plugin.telemetry.meter import Meter


@dataclass(frozen=True, slots=True)
class ChipMonitoring:
    """Reads, judges and reports the chips."""

    scanner: Scanner
    hangs: HangDetector
    announce: Announce
    health: HealthMonitor
    meter: Meter
    switches: SwitchMonitor
    fault_config: FaultConfig
    node_object: NodeWriter
    node_health: NodeHealthWriter
    config_map: DeviceInfoConfigMap
    reporter: Reporter


@dataclass(frozen=True, slots=True)
class DeviceServing:
    """Gives the chips to pods.

    Attributes:
        watch: of the node's pods.
        kubelet_pods: lists those that the kubelet knows.
        claims: writes what they were given.
        lock: of this node's instances.
        succession: hands the kubelet over to another instance.
        whole: offers whole chips.
        vnpus: offer vNPUs, by their type.
        make_offer: returns what offers a type.
        cores: offers AI cores, instead of all others; None if these are offered.
    """

    watch: Reflector[Pod]
    kubelet_pods: KubeletPods
    claims: ClaimWriter
    lock: InstanceLock
    succession: Succession
    whole: DeviceService
    vnpus: dict[DeviceType, DeviceService]
    make_offer: Callable[[DeviceType], DeviceService]
    cores: CoreOffer | None = None

    @property
    def offers(self) -> tuple[DeviceService, ...]:
        """What is offered to the kubelet."""
        return (self.cores,) if self.cores is not None else self.kept

    @property
    def kept(self) -> tuple[DeviceService, ...]:
        """What pods may have, offered now or before the settings were changed."""
        return (self.whole, *self.vnpus.values(), *((self.cores,) if self.cores is not None else ()))

    def close(self) -> None:
        """End what answers the kubelet's calls; until a successor is registered, that is this plugin."""
        if self.cores is not None:
            self.cores.cutter.close()

    def start_cores(self, start: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        """Begin to follow the number of AI cores and to destroy unused vNPUs, if AI cores are offered."""
        if self.cores is not None:
            self.cores.update()
            start("cores", self.cores.follow())
            start("unused vNPUs", self.cores.keeper.run())

    @property
    def problem(self) -> str | None:
        """Why the kubelet does not see our devices; None while it does."""
        first, *others = self.offers
        if (problem := first.registration.problem) is not None:
            return problem
        problems = ((offer, offer.registration.problem) for offer in others)
        return next((f"{part.device_type.resource}: {why}" for part, why in problems if why is not None), None)

    @property
    def other_plugin(self) -> str | None:
        """The sentence about another plugin of the same resource; None if none is known."""
        return next((why for offer in self.offers if (why := offer.registration.others.problem) is not None), None)


class Probes:
    """The checks of the program's probes, by name.

    Args:
        chips: reads, judges and reports the chips.
        pods: gives the chips to pods.
        snapshots: the chips as judged.
        unread: what the start waits for, and why it can't be read.
        refused: what the API server refuses.
    """

    def __init__(
        self,
        chips: ChipMonitoring,
        pods: DeviceServing,
        snapshots: Observable[Snapshot | None],
        *,
        unread: Mapping[str, str],
        refused: RefusedRights,
    ) -> None:
        def unless_on_standby(check: Check) -> Check:
            return lambda: None if pods.lock.stands_by else check()

        reads: dict[str, Check] = {
            Lack.NODE: lambda: chips.node_object.problem,
            Lack.START: lambda: next((f"{what} can't be read: {why}" for what, why in unread.items()), None),
            Lack.DRIVER: lambda: chips.scanner.problem,
            Lack.PODS: lambda: None if pods.watch.synced.is_set() else "the node's pods are not listed yet",
        }
        # Only the instance that has the lock does this.
        works: dict[str, Check] = {
            Lack.LOCK: lambda: pods.lock.problem,
            Lack.KUBELET: lambda: pods.problem,
            Lack.REPORT: lambda: chips.reporter.problem,
            Lack.CLAIMS: lambda: pods.claims.problem,
        }
        self._lock, self._reads = pods.lock, reads
        # Without these the plugin works, but guesses which pod is admitted, or leaves out what it has no right to.
        self._works = works | {
            Lack.KUBELETS_PODS: lambda: pods.kubelet_pods.problem,
            Lack.RIGHTS: lambda: refused.problem,
        }
        self.ready = reads | self._works
        self.standby = reads | {name: unless_on_standby(check) for name, check in works.items()}
        self.started: dict[str, Check] = {
            "node": lambda: chips.node_object.problem,
            "chips": lambda: None if snapshots.value is not None else "no chip has been judged yet",
            "lock": self.standby[Lack.LOCK],
            "kubelet": lambda: None if pods.other_plugin else self.standby[Lack.KUBELET](),
        }

    def lacks(self) -> Mapping[Lack, str] | None:
        """What the plugin lacks, each with a sentence; None if another instance works on the node.

        The first that it waits for explains why the rest does not work yet.
        """
        if self._lock.is_anothers:
            return None
        first = ({Lack(name): why} for name, check in self._reads.items() if (why := check()) is not None)
        works = {Lack(name): why for name, check in self._works.items() if (why := check()) is not None}
        return next(first, works)

    def add(
        self,
        page: web.Application,
        live: Mapping[str, Check],
        registry: CollectorRegistry,
        refresh: Callable[[], Awaitable[None]] | None,
    ) -> None:
        """Add the probes, and the page of metrics, to an application; see ``add_probes``."""
        add_probes(
            page,
            registry=registry,
            ready=self.ready,
            live=live,
            started=self.started,
            standby=self.standby,
            refresh=refresh,
        )
