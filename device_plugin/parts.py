"""The parts of the device plugin that are put together at the start and used by each other."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry

from ascend.daemon.observable import Observable
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.objects import Pod
from ascend.kube.reflector import Reflector
from ascend.observe.probes import Check, add_probes
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import Announce, HealthMonitor
from device_plugin.chips.scanner import Scanner
from device_plugin.chips.switch_monitor import SwitchMonitor
from device_plugin.hang.detector import HangDetector
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.node_pods import NodePod
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.claims import ClaimWriter
from device_plugin.pods.fault_notices import FaultNotices
from device_plugin.pods.reconciler import Reconciler
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.reporter import Reporter
from device_plugin.reset.muting import Muting
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.registration import Registration
from device_plugin.serving.succession import Succession
from device_plugin.telemetry.meter import Meter


@dataclass(frozen=True, slots=True)
class ChipSide:
    """Reads, judges and reports the chips."""

    scanner: Scanner
    muting: Muting
    hangs: HangDetector
    announce: Announce
    health: HealthMonitor
    meter: Meter
    switches: SwitchMonitor
    fault_config: FaultConfig
    node_object: NodeWriter
    config_map: DeviceInfoConfigMap
    reporter: Reporter


@dataclass(frozen=True, slots=True)
class PodSide:
    """Gives the chips to pods."""

    watch: Reflector[Pod]
    claims: ClaimWriter
    matcher: AdmissionMatcher
    reconciler: Reconciler
    fault_notices: FaultNotices
    lock: InstanceLock
    registration: Registration
    succession: Succession


def pod_announcer(events: EventRecorder, action: str, *, once: bool = False) -> Callable[[NodePod, str, str], None]:
    """Return a callback that publishes Events about a pod: the pod, a reason and a sentence.

    Args:
        events: posts them.
        action: what is being done, a CamelCase word.
        once: whether one that an earlier process posted is enough.
    """

    def announce(pod: NodePod, reason: str, sentence: str) -> None:
        regarding = Regarding("Pod", pod.name, pod.namespace, pod.uid)
        events.publish(regarding, reason, sentence, action=action, once=once)

    return announce


class Probes:
    """The checks of the program's probes, by name.

    Args:
        chips: reads, judges and reports the chips.
        pods: gives the chips to pods.
        snapshots: the chips as judged.
    """

    def __init__(self, chips: ChipSide, pods: PodSide, snapshots: Observable[Snapshot | None]) -> None:
        def unless_on_standby(check: Check) -> Check:
            return lambda: None if pods.lock.stands_by else check()

        reads: dict[str, Check] = {
            "node": lambda: chips.node_object.problem,
            "driver": lambda: chips.scanner.problem,
            "pods": lambda: None if pods.watch.synced.is_set() else "the node's pods are not listed yet",
        }
        # Only the instance that has the lock does this.
        works: dict[str, Check] = {
            "lock": lambda: pods.lock.problem,
            "kubelet": lambda: pods.registration.problem,
            "report": lambda: chips.reporter.problem,
        }
        self.ready = reads | works
        self.standby = reads | {name: unless_on_standby(check) for name, check in works.items()}
        self.started: dict[str, Check] = {
            "node": lambda: chips.node_object.problem,
            "chips": lambda: None if snapshots.value is not None else "no chip has been judged yet",
            "lock": self.standby["lock"],
            "kubelet": lambda: None if pods.registration.others.problem else self.standby["kubelet"](),
        }

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
