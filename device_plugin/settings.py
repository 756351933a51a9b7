"""The device plugin's settings."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from ascend.daemon.settings import Address, DaemonSettings
from device_plugin.rules.injection import Injection


class Settings(DaemonSettings):
    """The Ascend device plugin: hands the kubelet exactly the chips the allocator wrote on each pod."""

    model_config = SettingsConfigDict(env_prefix="ASCEND_DP_", extra="forbid")

    node_name: str = Field(
        min_length=1,
        description="this node's name; a DaemonSet takes it from spec.nodeName",
    )
    host_ip: str = Field(
        default="",
        description="this node's address; the Node's InternalIP if not given",
    )
    device_plugin_dir: Path = Field(
        default=Path("/var/lib/kubelet/device-plugins"), description="the folder of kubelet.sock"
    )
    pod_resources_socket: Path = Field(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"), description="the kubelet's pod-resources socket"
    )
    kubelet_pods_url: str | None = Field(
        default=None, description="where the kubelet lists its pods; https://<host-ip>:10250/pods if not given"
    )
    kubelet_ca_file: str | None = Field(
        default=None, description="verifies the kubelet's certificate; kubelets sign their own unless told otherwise"
    )
    driver: Literal["simulated"] = Field(default="simulated", description="which driver to read")
    simulated_state: Path = Field(
        default=Path("/etc/ascend-affinity/simulated.json"), description="the simulated driver's file of chips"
    )
    scan_period_s: float = Field(default=0.5, gt=0, le=60, description="seconds between readings of the driver")
    injection: Injection = Field(
        default="both", description="what a container gets: runtime (environment), devices (device nodes), or both"
    )
    device_root: Path = Field(default=Path("/dev"), description="the folder of the device nodes on this node")
    http_address: Address = Field(default="0.0.0.0:11251", description="where /livez, /readyz and /metrics are served")
