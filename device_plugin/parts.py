"""The parts of the device plugin that are put together at the start and used by each other."""

from dataclasses import dataclass

from ascend.kube.objects import Pod
from ascend.kube.reflector import Reflector
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import Announce, HealthMonitor
from device_plugin.chips.scanner import Scanner
from device_plugin.chips.switch_monitor import SwitchMonitor
from device_plugin.hang.detector import HangDetector
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.pods.claims import ClaimWriter
from device_plugin.pods.reconciler import Reconciler
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.reporter import Reporter
from device_plugin.reset.muting import Muting
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.serving.registration import Registration
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
    lock: InstanceLock
    registration: Registration
