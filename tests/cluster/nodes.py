"""A node: a mount namespace with containerd and a kubelet, and access to its containers."""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.cluster import binaries, images
from tests.cluster.api import Server, free_ports
from tests.cluster.control_plane import FEATURE_GATES, ControlPlane
from tests.cluster.processes import Process, wait_until

KUBELET_FOLDER: Final = Path("/var/lib/kubelet")

_READY_S: Final = 60.0
_KUBELET_PORT: Final = 10250
_NULL_DEVICE: Final = os.makedev(1, 3)
# The path of the device-plugin folder is compiled into the kubelet, so every node mounts its own folder there.
_HOLD_NODE: Final = """
mount --make-rprivate /
mount --bind "$1/kubelet" /var/lib/kubelet
# Images of many files are unpacked into memory, and are gone with the namespace.
if [ "$2" = overlayfs ]; then mkdir -p "$1/containerd/root" && mount -t tmpfs tmpfs "$1/containerd/root"; fi
: > "$1/mounted"
sleep infinity & wait
"""
_CONTAINERD: Final = """
version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"

[grpc]
address = "{folder}/containerd.sock"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Without the right to lower oom_score_adj, runc fails with "can't get final child's PID from pipe: EOF".
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"""


class Node:
    """A node of the cluster.

    Args:
        name: the name of the Node object.
        control_plane: the control plane.

    Attributes:
        folder: all files of this node.
        containerd: containerd; containers survive it and the kubelet.
        kubelet: the kubelet; `start_kubelet` starts it and waits until it is ready.
    """

    def __init__(self, name: str, control_plane: ControlPlane) -> None:
        self.name = name
        self.status_period_s = 1
        """How often the kubelet updates its Node; it takes effect when the kubelet is started. Its default is 10."""
        self.pod_cgroups = ""
        """The cgroup below which the kubelet makes one for each pod from its next start on; empty for none."""
        self.folder = control_plane.namespace.folder / name
        self._control_plane = control_plane
        self._address = "127.0.0.1"
        if control_plane.network is None:
            (self._port,) = free_ports(1)
        else:
            self._address, self._port = control_plane.network.node_address(name), _KUBELET_PORT
        # Copying one small layer is faster than mounting it, and works on any file system; pods with a network have
        # larger images.
        self._snapshotter = "native" if control_plane.network is None else "overlayfs"
        command = ["unshare", "--mount", "sh", "-ec", _HOLD_NODE, "node", str(self.folder), self._snapshotter]
        self._holder = control_plane.namespace.process(f"{name}-mounts", command)
        self.containerd: Process
        self.kubelet: Process

    @property
    def device_plugin_dir(self) -> Path:
        """The folder of `kubelet.sock` and the plugin's socket; in the node's namespace it has the usual path."""
        return self.folder / "kubelet" / "device-plugins"

    @property
    def static_pod_dir(self) -> Path:
        """The folder of the manifests of static pods."""
        return self.folder / "static-pods"

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's pod-resources socket."""
        return self.folder / "kubelet" / "pod-resources" / "kubelet.sock"

    @property
    def kubelet_url(self) -> str:
        """The base address of the kubelet's HTTPS server."""
        return f"https://{self._address}:{self._port}"

    @property
    def pods_url(self) -> str:
        """The address of the kubelet's own list of pods."""
        return f"{self.kubelet_url}/pods"

    @property
    def server(self) -> Server:
        """The kubelet's HTTPS server, as the administrator; other users need rights on `nodes/...`."""
        return Server(self.kubelet_url, self._control_plane.admin_token)

    def start_containerd(self) -> None:
        """Create the mount namespace, start containerd in it, and import the images."""
        for name in ("static-pods", "kubelet/device-plugins", "kubelet/pod-resources", "containerd", "cni", "pods"):
            (self.folder / name).mkdir(parents=True)
        values = {"folder": self.folder, "pause": images.PAUSE, "snapshotter": self._snapshotter}
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(**values))
        # A loopback network is enough for readiness, if pods use the host network.
        network: dict[str, Any] = {"cniVersion": "0.3.1", "name": "test", "type": "loopback"}
        if self._control_plane.network is not None:
            network = self._control_plane.network.configuration(self.name, self.folder)
        (self.folder / "cni" / "10-network.conf").write_text(json.dumps(network))
        images.write_archive(self.folder / "images.tar")
        self._holder.start()
        self._holder.wait_until((self.folder / "mounted").exists, timeout_s=_READY_S)
        config = str(self.folder / "containerd.toml")
        self.containerd = self.process("containerd", ["containerd", "--config", config, "--log-level", "warn"])
        self.kubelet = self.process("kubelet", self._kubelet_command())
        self.containerd.start()
        self.containerd.wait_until((self.folder / "containerd.sock").exists, timeout_s=_READY_S)
        self.import_images(self.folder / "images.tar")

    def start_kubelet(self) -> None:
        """Start the kubelet, first or again; containers keep running.

        Returns when this kubelet has reported its node as ready and knows the pods that are bound to it.
        """
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet_configuration()))
        reported_before, _ = self._reported()
        logged_before = self.kubelet.log.stat().st_size if self.kubelet.log.exists() else 0
        self.kubelet.start()

        def is_ready() -> bool:
            reported, status = self._reported()
            return (
                reported != reported_before
                and status == "True"
                and self._has_read_its_pods(logged_before)
                and self._knows_its_pods()
            )

        self.kubelet.wait_until(is_ready, timeout_s=_READY_S)

    def _reported(self) -> tuple[str, str]:
        """Return time and status of the last report of the condition Ready; empty without Node or condition."""
        nodes = self._control_plane.api.get(f"/api/v1/nodes?fieldSelector=metadata.name%3D{self.name}")["items"]
        for condition in (condition for node in nodes for condition in node["status"].get("conditions", ())):
            if condition["type"] == "Ready":
                return condition["lastHeartbeatTime"], condition["status"]
        return "", ""

    def _has_read_its_pods(self, logged_before: int) -> bool:
        """Whether it has received its first list; until then, devices of deleted pods count as in use."""
        with self.kubelet.log.open("rb") as log:
            log.seek(logged_before)
            return b'"SyncLoop ADD" source="api"' in log.read()

    def _knows_its_pods(self) -> bool:
        if not self.server.answers("/healthz"):
            return False
        bound = self._control_plane.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{self.name}")["items"]
        return {pod["metadata"]["uid"] for pod in bound} <= {pod["metadata"]["uid"] for pod in self.pods()}

    def process(self, name: str, command: Sequence[str], **environment: str) -> Process:
        """Return a program in this node's mount namespace, with its `/var/lib/kubelet`; not started yet."""
        namespace, inside = self._control_plane.namespace, self._holder.pid
        return namespace.process(f"{self.name}-{name}", command, inside=inside, environment=environment)

    def pods(self) -> list[dict[str, Any]]:
        """Return the kubelet's own list of pods."""
        return list(self.server.get("/pods").get("items") or ())

    def exec(self, pod: str, command: Sequence[str], *, namespace: str = "default", container: str = "main") -> str:
        """Run a command in a container, and return its output (standard output and error).

        Raises:
            HTTPError: the container does not exist, or the command failed.
            ValueError: an argument contains a space, which this API of the kubelet does not support.
        """
        if any(" " in argument for argument in command):
            raise ValueError(f"arguments must not contain spaces: {command!r}")
        path = f"/run/{quote(namespace)}/{quote(pod)}/{quote(container)}?cmd={quote(' '.join(command))}"
        return self.server.request("POST", path).decode()

    def container_logs(self, pod: str, *, namespace: str = "default", container: str = "main") -> str:
        """Return the output of a container so far.

        Raises:
            HTTPError: the container does not exist.
        """
        return self.server.request("GET", f"/containerLogs/{namespace}/{pod}/{container}").decode()

    def wait_for_output(self, pod: str, text: str, *, namespace: str = "default") -> None:
        """Wait until a container has printed exactly `text`: a pod is Running before its program's first line.

        Raises:
            ClusterError: the output is another one when time is up; the error shows it.
        """
        wait_until(
            lambda: self.container_logs(pod, namespace=namespace) == text,
            timeout_s=_READY_S,
            what=f"{pod} has printed {text!r}",
            tail=lambda: f"; printed so far: {self.container_logs(pod, namespace=namespace)!r}",
        )

    def make_device_nodes(self, names: Iterable[str]) -> Path:
        """Create device nodes in `<folder>/dev`, and return that folder."""
        return make_device_nodes(self.folder / "dev", names)

    def import_images(self, archive: Path) -> None:
        """Import the images of a docker-archive.

        Raises:
            ClusterError: it failed; the text shows the end of its output.
        """
        options = ["--address", str(self.folder / "containerd.sock"), "--namespace", "k8s.io"]
        command = ["ctr", *options, "images", "import", "--snapshotter", self._snapshotter, str(archive)]
        importing = self.process("import", command)
        importing.start()
        if importing.wait(timeout_s=_READY_S):
            self.containerd.wait_until(
                lambda: False, timeout_s=0, what=f"provided with the images{importing.log_tail()}"
            )

    def _kubelet_command(self) -> list[str]:
        return [
            str(binaries.path("kubelet")),
            f"--config={self.folder / 'kubelet.json'}",
            f"--kubeconfig={self._control_plane.kubeconfig_path}",
            f"--hostname-override={self.name}",
            f"--root-dir={KUBELET_FOLDER}",
            *([] if self._control_plane.network is None else [f"--node-ip={self._address}"]),
            "--v=2",
        ]

    def _kubelet_configuration(self) -> dict[str, Any]:
        nothing = "0%"
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Its clients can run commands as root, so it listens on this machine's own networks only and checks tokens.
            "address": self._address,
            "port": self._port,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._control_plane.kubelet_client)},
            },
            "authorization": {"mode": "Webhook", "webhook": {"cacheUnauthorizedTTL": "1s"}},
            "containerRuntimeEndpoint": f"unix://{self.folder / 'containerd.sock'}",
            "podLogsDir": str(self.folder / "pods"),
            "featureGates": dict.fromkeys(FEATURE_GATES, True),
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": bool(self.pod_cgroups),
            "cgroupRoot": self.pod_cgroups,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "evictionHard": dict.fromkeys(
                ("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"), nothing
            ),
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "nodeStatusUpdateFrequency": f"{self.status_period_s}s",
            "syncFrequency": "1s",
            "staticPodPath": str(self.static_pod_dir),
            "fileCheckFrequency": "1s",
            "registryPullQPS": 0,
            "eventRecordQPS": 0,
            "kubeAPIQPS": 500,
            "kubeAPIBurst": 500,
        }


def make_device_nodes(folder: Path, names: Iterable[str]) -> Path:
    """Create character devices that behave as /dev/null, outside the host's /dev; keep existing ones.

    Args:
        folder: the folder, created if necessary; a device's host path is `folder / name`.
        names: names such as `davinci0`.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (folder / name).exists():
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, _NULL_DEVICE)
    return folder
