"""The device plugin's settings."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from ascend.daemon.setting import setting
from ascend.daemon.settings import DaemonSettings, ProgramSettings, checked_address
from ascend.errors import InvalidValue
from device_plugin.chips.switch_monitor import SwitchDriver
from device_plugin.driver import DividingDriver
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.driver.simulated_switches import SimulatedSwitches
from device_plugin.driver.telemetry import MeasuringDriver
from device_plugin.health.levels import FaultLevel
from device_plugin.kubelet.identity import KubeletIdentity
from device_plugin.pods.container_edits import InjectionSetting
from device_plugin.publish.node_conditions import TaintEffect, TaintRule
from device_plugin.reset.steps import ResetOptions


class FullDriver(MeasuringDriver, ResettingDriver, DividingDriver, Protocol):
    """A driver that does all the plugin needs."""


@dataclass(frozen=True, kw_only=True)
class DriverSettings(ProgramSettings):
    """The settings for reading the driver, and as what its chips are offered."""

    prefix: ClassVar[str] = "ASCEND_DP_"
    ignores_unknown: ClassVar[bool] = True

    driver: Literal["dcmi", "simulated"] = setting(default="dcmi", description="the driver to read")
    dcmi_library: Path | None = setting(
        default=None,
        description="path of libdcmi.so; by default it is searched in LD_LIBRARY_PATH and the cache of ldconfig",
    )
    link_tool: Path = setting(
        default=Path("/usr/local/Ascend/driver/tools/hccn_tool"),
        description="the driver's program that reads the link state and the counters of network ports; "
        "it may be missing",
    )
    die_policy: Literal["unchanged", "union", "independent"] = setting(
        default="unchanged",
        description="on A3, whether the driver gives containers only all dies of a card (union) or single dies "
        "(independent); it is set at the start",
    )
    simulated_state: Path = setting(
        default=Path("/etc/ascend-affinity/simulated.json"), description="the simulated driver's file of chips"
    )
    simulated_cuts: Path | None = setting(
        default=None,
        description="the file in which the simulated driver keeps the vNPUs that it has cut; by default beside that "
        "of the chips",
    )
    dynamic_vnpus: bool = setting(
        default=False,
        description="whether pods request AI cores (huawei.com/npu-core) instead of chips, and chips are cut into "
        "vNPUs when pods start; 910B and A3 only. Drain the node before you change it",
    )

    def make_driver(
        self,
        observe: Callable[[str, float], None] = lambda _call, _took_s: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> FullDriver:
        """Return the driver these settings name; it has not been called yet.

        Args:
            observe: receives the name and duration in seconds of each library call, on the thread that made it.
            now_s: the monotonic clock by which chips are judged.
        """
        if self.driver == "simulated":
            return SimulatedDriver(self.simulated_state, self.simulated_cuts)
        from device_plugin.driver.dcmi import DcmiDriver
        from device_plugin.driver.dcmi.port_tool import LinkTool, PortCounters

        return DcmiDriver(
            self.dcmi_library,
            observe=observe,
            links=LinkTool(self.link_tool, now_s=now_s),
            counters=PortCounters(self.link_tool),
            die_policy=None if self.die_policy == "unchanged" else self.die_policy,
        )

    def make_switch_driver(self) -> SwitchDriver:
        """Return the driver of the switches, for the driver these settings name; it has not been called yet."""
        if self.driver == "simulated":
            return SimulatedSwitches(self.simulated_state)
        from device_plugin.driver.dcmi.lingqu import LingquDriver

        return LingquDriver()


@dataclass(frozen=True, kw_only=True)
class Settings(DriverSettings, DaemonSettings):
    """The Ascend device plugin: makes the kubelet allocate exactly the chips the allocator wrote on each pod.

    `ascend-device-plugin run` is the same as `ascend-device-plugin` without a command. `npuctl doctor --chips` prints
    one scan of the driver.
    """

    ignores_unknown: ClassVar[bool] = False

    node_name: str = setting(
        min_length=1,
        description="this node's name; a DaemonSet takes it from spec.nodeName",
    )
    host_ip: str = setting(
        default="",
        description="this node's address; by default the Node's InternalIP",
    )
    device_plugin_dir: Path = setting(
        default=Path("/var/lib/kubelet/device-plugins"), description="the folder of kubelet.sock"
    )
    pod_resources_socket: Path = setting(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"), description="the kubelet's pod-resources socket"
    )
    plugins_registry_dir: Path = setting(
        default=Path("/var/lib/kubelet/plugins_registry"),
        description="the folder in which the kubelet looks for plugins; it may be missing",
    )
    kubelet_pods_url: str | None = setting(
        default=None,
        description="the URL at which the kubelet lists its pods; by default https://<host-ip>:10250/pods",
    )
    kubelet_cert_dir: Path = setting(
        default=Path("/var/lib/kubelet/pki"),
        description="the kubelet's folder of certificates (its --cert-dir): it is verified by its own certificate for "
        "serving there, or where there is none, by the cluster's CA; no token is sent to it otherwise",
    )
    kubelet_ca_file: str | None = setting(
        default=None,
        description="the CA that must have signed the kubelet's certificate for its address, instead of these",
    )
    kubelet_insecure_skip_tls_verify: bool = setting(
        default=False,
        description="whether the plugin's token is sent to whoever listens at the kubelet's port: nothing is verified",
    )
    scan_period_s: float = setting(
        default=1.0,
        gt=0,
        le=60,
        description="seconds between two readings of each chip; at most half of stale_s",
        reloaded=True,
    )
    stale_s: float = setting(
        default=10.0,
        gt=0,
        le=600,
        description="a chip that could not be read for this many seconds is unhealthy",
        reloaded=True,
    )
    recovery_hold_s: float = setting(
        default=1.0,
        ge=0,
        le=3600,
        description="seconds a chip must be without faults before it is healthy again; doubles with each relapse",
        reloaded=True,
    )
    readmission: Literal["automatic", "manual"] = setting(
        default="automatic",
        description="whether recovered chips are used again automatically, or once an operator edits the Node's labels",
    )
    faults_in_use: Literal["unhealthy", "healthy"] = setting(
        default="unhealthy",
        description="what a chip with a fault is for the kubelet while a pod runs with it: unhealthy, which the status "
        "of the pod shows from Kubernetes 1.36 on, and for which the Node is short of one more chip until the pod has "
        "ended; or healthy until then, for Volcano with MindCluster's plugin, which otherwise refuses the node as long",
    )
    taint_from: Literal[
        "off",
        "SubHealthFault",
        "RestartRequest",
        "RestartBusiness",
        "FreeRestartNPU",
        "RestartNPU",
        "PreSeparateNPU",
        "SeparateNPU",
        "ManuallySeparateNPU",
    ] = setting(
        default="off",
        description="the lowest level of a fault of a chip for which the Node gets the taint "
        "ascend-affinity.io/npu-fault with the level as its value, "
        "until no chip has such a fault any more or the plugin ends; off: no taint",
    )
    taint_effect: TaintEffect = setting(
        default="NoSchedule",
        description="the effect of this taint; NoExecute also ends the pods that run there and do not tolerate it",
    )
    injection: InjectionSetting = setting(
        default="auto",
        description="what containers get: runtime (environment variables for ascend-docker-runtime), devices (device "
        "nodes), both, cdi (names of CDI devices), or auto: runtime if ascend-docker-runtime runs this program, else "
        "cdi where the node's kubelet and container runtime support it by default, else devices",
        reloaded=True,
    )
    choose_chips: bool = setting(
        default=False,
        description="whether a pod that no allocator has placed gets chips that are chosen here by the rule of the "
        "server's product; such a pod is refused otherwise",
    )
    cdi_dir: Path = setting(
        default=Path("/var/run/cdi"), description="the folder in which container runtimes look for CDI files"
    )
    topology_dir: Path = setting(
        default=Path("/var/lib/ascend-affinity/topology"),
        description="the folder on this node for the file that tells containers where their chips are; without it they "
        "have the variables only",
    )
    device_root: Path = setting(default=Path("/dev"), description="the folder of the device nodes on this node")
    hang_detection: bool = setting(
        default=False,
        description="whether chips whose processes run without doing anything get the fault 200001002; the plugin must "
        "see the processes of the node (hostPID)",
    )
    hang_minutes: int = setting(
        default=5, ge=1, le=1440, description="minutes without activity after which a chip counts as hanging"
    )
    job_files: bool = setting(
        default=False,
        description="whether the ConfigMaps reset-config-<job> and data-trace-<job> of the node's jobs are mirrored to "
        "folders of the node",
    )
    hot_reset: Literal["off", "dry-run", "on"] = setting(
        default="off",
        description="whether chips whose faults end with a reset are reset while nobody uses them, or the chips that "
        "are reset with them; dry-run only announces it",
    )
    hot_reset_idle_s: float = setting(
        default=60.0, ge=0, le=86400, description="seconds for which nobody must have used the chips before a reset"
    )
    hot_resets_per_hour: int = setting(
        default=2, ge=1, le=60, description="how often the same chips are reset within an hour, at most"
    )
    reset_config_dir: Path = setting(
        default=Path("/user/restore/reset"), description="the folder to which reset-config-<job> is mirrored"
    )
    data_trace_dir: Path = setting(
        default=Path("/user/cluster-info/datatrace-config"),
        description="the folder to which data-trace-<job> is mirrored",
    )
    telemetry: bool = setting(
        default=False,
        description="whether /metrics has what the chips do (utilization, memory, temperature, power, …) and which "
        "containers use them, with the names of MindCluster's npu-exporter",
    )
    telemetry_interval_s: float = setting(
        default=5.0,
        ge=0.5,
        le=300,
        description="seconds for which a measured value of a chip is kept; scrapes in this time read the driver once",
        reloaded=True,
    )
    http_address: str = setting(
        default=":11251",
        parse=checked_address,
        description="the address of the probes and /metrics; without a host: every address, IPv6 included",
    )

    @property
    def kubelet_identity(self) -> KubeletIdentity:
        """By what the kubelet is verified."""
        return KubeletIdentity(
            self.kubelet_cert_dir, self.kubelet_ca_file, insecure=self.kubelet_insecure_skip_tls_verify
        )

    @property
    def taint_rule(self) -> TaintRule | None:
        """Which faults taint the Node; None if none does."""
        if self.taint_from == "off":
            return None
        return TaintRule(FaultLevel.of_wire(self.taint_from), self.taint_effect)

    @property
    def hot_reset_options(self) -> ResetOptions | None:
        """How chips are reset; None if they are not."""
        if self.hot_reset == "off":
            return None
        return ResetOptions(
            self.hot_reset == "dry-run", self.hot_reset_idle_s, self.hot_resets_per_hour, self.pod_resources_socket
        )

    def __post_init__(self) -> None:
        if self.dynamic_vnpus and self.choose_chips:
            raise InvalidValue("choose_chips: with dynamic_vnpus only an allocator chooses which chip is cut")
        if self.kubelet_ca_file is not None and self.kubelet_insecure_skip_tls_verify:
            raise InvalidValue("kubelet_ca_file: has no effect with kubelet_insecure_skip_tls_verify")
        if self.scan_period_s > self.stale_s / 2:
            raise InvalidValue(
                f"scan_period_s: {self.scan_period_s:g} is more than half of stale_s ({self.stale_s:g}): healthy chips "
                "would count as unhealthy between two readings"
            )
