"""A real node with the device plugin; the test acts as the allocator, and compares all records of chips."""

import contextlib
import http
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from ascend.annotations import ALLOCATED, CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from device_plugin.serving.succession import distinguishes_plugins
from tests.cluster.api import HTTPError, Server, free_ports
from tests.cluster.binaries import KUBERNETES_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.manifests import pod as pod_manifest
from tests.cluster.nodes import Node, make_device_nodes
from tests.cluster.processes import Process, wait_until
from tests.conformance.chips import Chips
from tests.conformance.threaded_proxy import ThreadedProxy
from tests.conformance.wire import read_ledger
from tests.e2e.programs import BIN, DEVICE_NODES

PATIENCE_S: Final = 30.0
ALL: Final = 0xFF
PODS: Final = "/api/v1/namespaces/default/pods"
DISTINGUISHES_PLUGINS: Final = distinguishes_plugins(f"v{KUBERNETES_VERSION}")
"""Whether the kubelet knows two plugins of a resource apart."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container's view of its chips.

    Attributes:
        visible: ``ASCEND_VISIBLE_DEVICES`` as ids; None if it is not set.
        devices: ids of the davinci device nodes below /dev.
        env: its environment.
    """

    visible: tuple[int, ...] | None
    devices: tuple[int, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Credentials of a program outside of a pod: a kubeconfig.

    Attributes:
        path: the file.
    """

    path: Path

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command with these credentials."""
        return [*command, "--kubeconfig", str(self.path)]


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Credentials of a program in a pod: a service account.

    Attributes:
        folder: contains token and ca.crt.
        url: the API server's address.
    """

    folder: Path
    url: str

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command with these credentials: folder and variables are as in a pod."""
        server = urlsplit(self.url)
        variables = (f"KUBERNETES_SERVICE_HOST={server.hostname}", f"KUBERNETES_SERVICE_PORT={server.port}")
        return ["unshare", "--mount", "sh", "-ec", _IN_POD, str(self.folder), "env", *variables, *command]


_IN_POD: Final = """
mount -t tmpfs -o mode=755 none /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
cp "$0"/* /run/secrets/kubernetes.io/serviceaccount
exec "$@"
"""
"""Puts the token where the command expects it; /var/run is /run."""


@dataclass(slots=True)
class PluginProcess:
    """A plugin process, and the address of its HTTP pages."""

    process: Process
    page: Server

    @property
    def is_ready(self) -> bool:
        return self.process.alive and self.page.answers("/readyz")

    def problems(self) -> str:
        """The text of its readiness page."""
        try:
            return self.page.request("GET", "/readyz").decode()
        except (HTTPError, OSError) as error:
            return str(error)

    def metric(self, name: str, **labels: str) -> float:
        """A sample of its metrics page; 0 if there is none or it does not answer."""
        try:
            text = self.page.request("GET", "/metrics").decode()
        except (HTTPError, OSError):
            return 0.0
        return sample(text, name, **labels)


@dataclass(slots=True)
class PluginNode:
    """The node.

    Attributes:
        cluster: the cluster it belongs to.
        node: its kubelet and containerd.
        chips: its chips.
        access: the plugin's credentials for the API server.
        plugin: the plugin.
    """

    cluster: Cluster
    node: Node
    chips: Chips
    access: "Kubeconfig | ServiceAccount"
    plugin: PluginProcess = field(init=False)

    def __post_init__(self) -> None:
        self.plugin = self.new_plugin("device-plugin")

    # Programs.

    def new_plugin(self, name: str, *flags: str, environment: Mapping[str, str] | None = None) -> PluginProcess:
        """Return another instance of the plugin, not started, with the default settings except for the test machine."""
        devices = make_device_nodes(self.node.folder / "chips", DEVICE_NODES)
        (port,) = free_ports(1)
        command = [
            *(str(BIN / "ascend-device-plugin"), "--node-name", self.node.name),
            *("--device-root", str(devices), "--kubelet-pods-url", self.node.pods_url),
            *("--http-address", f"127.0.0.1:{port}", "--injection", "both"),
            *self.chips.flags,
            *flags,
        ]
        process = self.node.process(
            name, self.access.command(command), **{**self.chips.environment, **(environment or {})}
        )
        return PluginProcess(process, Server(f"http://127.0.0.1:{port}"))

    def start_plugin(self) -> None:
        """Start the plugin and wait until all chips are allocatable."""
        self.plugin.process.start()
        self.wait_until_allocatable()

    @contextlib.contextmanager
    def plugin_instead(
        self, name: str, *flags: str, environment: Mapping[str, str] | None = None
    ) -> Iterator[PluginProcess]:
        """Run another plugin instead of the usual one until the block ends."""
        usual, self.plugin = self.plugin, self.new_plugin(name, *flags, environment=environment)
        usual.process.stop()
        try:
            self.plugin.process.start()
            yield self.plugin
        finally:
            self.plugin.process.stop()
            self.plugin = usual

    def restart_kubelet(self) -> None:
        """Restart the kubelet; containers keep running."""
        self.node.kubelet.kill()
        self.node.start_kubelet()

    def end_all_containers(self) -> None:
        """End all containers as a reboot does; kubelet and plugin must not run."""
        ctr = f"ctr --address {self.node.folder / 'containerd.sock'} --namespace k8s.io tasks"
        ending = self.node.process("reboot", ["sh", "-ec", f"for id in $({ctr} ls -q); do {ctr} kill -s 9 $id; done"])
        ending.start()
        assert ending.wait(timeout_s=PATIENCE_S) == 0, ending.log_tail()

    def restore(self) -> None:
        """Restore the node: healthy, without pods, all chips allocatable."""
        kubelet, control = self.node.kubelet, self.cluster.control_plane
        for each in (control.apiserver, kubelet, self.plugin.process):
            if each.alive:
                each.resume()
        if self.chips.changed:
            self.chips.repair_all()
        if not kubelet.alive:
            self.node.start_kubelet()
        if not self.plugin.process.alive:
            self.plugin.process.start()
        self.clear()
        self.wait_until_allocatable()
        self.wait_until(lambda: self.report().free == ALL, "all chips are reported free")

    def wait_until_allocatable(self) -> None:
        """Wait until the plugin is ready and eight chips are allocatable."""
        self.wait_until(lambda: self.plugin.is_ready and self.counts() == (8, 8), "all chips are allocatable")

    def wait_until(self, condition: Any, what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait for a condition; the error has the end of the plugin's log."""
        wait_until(condition, timeout_s=timeout_s, what=what, tail=self.plugin.process.log_tail)

    # The allocator.

    def create(self, name: str, chips: int = 0, *, image: str = BUSYBOX_IMAGE, **spec: Any) -> dict[str, Any]:
        """Create a pod that no scheduler binds."""
        manifest = pod_manifest(name, chips, schedulerName="none", **spec)
        for container in manifest["spec"]["containers"]:
            container["image"] = image
        return dict(self.cluster.api.create(manifest))

    def bind(self, name: str, *chips: int, predicate_time: int | None = None) -> None:
        """Bind a pod with its chips in one step, as the allocator does."""
        self.cluster.api.request("POST", f"{PODS}/{name}/binding", self.binding(name, *chips, at=predicate_time))

    def binding(self, name: str, *chips: int, at: int | None = None) -> dict[str, Any]:
        """The body of a Binding."""
        annotations = Grant(chips, time.time_ns() if at is None else at).annotations() if chips else {}
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.node.name},
        }

    def place(self, name: str, *chips: int, **spec: Any) -> None:
        """Create a pod with one container that requests these chips, and bind it."""
        self.create(name, len(chips), **spec)
        self.bind(name, *chips)

    def bind_together(self, gap_s: float, *bindings: tuple[str, tuple[int, ...], int]) -> None:
        """Send several Bindings (name, chips, predicate-time) shortly after each other, before any is answered."""
        connections = [self.cluster.api.connection() for _ in bindings]
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.cluster.admin_token}"}
        for connection in connections:
            connection.connect()
        for connection, (name, chips, at) in zip(connections, bindings, strict=True):
            body = json.dumps(self.binding(name, *chips, at=at))
            connection.request("POST", f"{PODS}/{name}/binding", body, headers)
            time.sleep(gap_s)
        for connection in connections:
            answer = connection.getresponse()
            assert answer.status == http.HTTPStatus.CREATED, answer.read()
            answer.read()
            connection.close()

    def delete(self, *names: str) -> None:
        """Delete pods, and wait until the kubelet has ended them."""
        self.begin_deleting(*names)
        self.wait_until_gone(*names)

    def begin_deleting(self, *names: str) -> None:
        """Delete pods."""
        for name in names:
            self.cluster.api.delete(f"{PODS}/{name}")

    def clear(self) -> None:
        """Delete all pods without grace: they and their chips are released at once.

        Their containers may take another second.
        """
        self.cluster.api.delete(PODS, grace_s=0)
        self.wait_until(lambda: not self.ledger(), "the kubelet has freed all chips")

    def wait_until_gone(self, *names: str) -> None:
        """Wait until the API server no longer has pods."""
        for name in names:
            self.wait_until(lambda name=name: not self.cluster.api.answers(f"{PODS}/{name}"), f"pod {name} is gone")

    # Records of chips.

    def pod(self, name: str) -> dict[str, Any]:
        return dict(self.cluster.api.get(f"{PODS}/{name}"))

    def annotations(self, name: str) -> dict[str, str]:
        return dict(self.pod(name)["metadata"].get("annotations") or {})

    def phase(self, name: str) -> str:
        return str(self.pod(name)["status"].get("phase"))

    def running(self, name: str) -> dict[str, Any]:
        """Wait until the pod runs with its claim; return it."""
        found: dict[str, Any] = {}

        def runs() -> bool:
            nonlocal found
            found = self.pod(name)
            status = found["status"]
            assert status["phase"] != "Failed", f"{name}: {status.get('reason')}: {status.get('message')}"
            return status["phase"] == "Running" and REAL in found["metadata"]["annotations"]

        self.wait_until(runs, f"pod {name} runs and is claimed")
        return found

    def failed(self, name: str) -> str:
        """Wait until the kubelet has refused the pod; return the reason."""
        self.wait_until(lambda: self.phase(name) == "Failed", f"pod {name} has failed")
        status = self.pod(name)["status"]
        return f"{status['reason']}: {status['message']}"

    def ledger(self) -> dict[tuple[str, str], ChipSet]:
        """The kubelet's ledger: chips by (pod, container); containers without chips are left out."""
        return read_ledger(self.node.pod_resources_socket)

    def listed(self) -> set[str]:
        """The names of the pods in the kubelet's own list."""
        return {each["metadata"]["name"] for each in self.node.pods()}

    def container(self, pod: str, name: str = "main") -> Container:
        """A container's view of its chips."""
        printed = self.node.exec(pod, ["env"], container=name)
        env = dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
        below = self.node.exec(pod, ["ls", "/dev"], container=name).split()
        ids = sorted(int(each.removeprefix("davinci")) for each in below if each.removeprefix("davinci").isdigit())
        visible = env.get("ASCEND_VISIBLE_DEVICES")
        return Container(None if visible is None else tuple(map(int, visible.split(","))), tuple(ids), env)

    def check(self, name: str, *chips: int) -> None:
        """Check that annotations, kubelet and container of a running pod have these chips."""
        pod = self.running(name)
        annotations = pod["metadata"]["annotations"]
        expected = chip_set(chips)
        written = {key: written_set(annotations, key) for key in (ALLOCATED, REAL, KUBELET_IDS)}
        assert set(written.values()) == {expected}, annotations
        assert annotations[PREDICATE_TIME] == str(CLAIMED)
        configuration = json.loads(annotations[CONFIGURATION])
        assert chip_set(int(each["device_id"]) for each in configuration["devices"]) == expected
        assert self.ledger()[name, "main"] == expected
        container = self.container(name)
        assert container.visible == parse_names(annotations[ALLOCATED])
        assert container.devices == chip_ids(expected)

    def report(self) -> DeviceReport:
        """The node's report; a wrong CheckCode raises."""
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{config_map_name(self.node.name)}"
        return decode_report(self.cluster.api.get(path)["data"])

    def counts(self) -> tuple[int, int]:
        """Capacity and allocatable of the Node; (-1, -1) if the resource is absent."""
        status = self.cluster.api.get(f"/api/v1/nodes/{self.node.name}")["status"]
        return int(status["capacity"].get(RESOURCE, -1)), int(status["allocatable"].get(RESOURCE, -1))

    def notes(self, pod: str, reason: str) -> list[str]:
        """What the Events about a pod with a reason say."""
        events = self.cluster.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [each["note"] for each in events if (each["regarding"]["name"], each["reason"]) == (pod, reason)]

    def kubelet_metric(self, name: str, **labels: str) -> float:
        """A sample of the kubelet's metrics; 0 if there is none."""
        return sample(self.node.server.request("GET", "/metrics").decode(), name, **labels)

    def lapses(self) -> int:
        """How often the kubelet has lost all plugins of a resource."""
        return self.node.kubelet.log.read_text(errors="replace").count("Mark all resources Unhealthy for resource")

    def plugin_sockets(self) -> list[Path]:
        """The plugin's sockets in the kubelet's folder."""
        return sorted(self.node.device_plugin_dir.glob("ascend910-*.sock"))

    def signal_main(self, pod: str, container: str = "main") -> None:
        """Terminate a container's first process."""
        with contextlib.suppress(HTTPError):  # the shell that sends the signal may be killed as well
            self.node.exec(pod, ["sh", "-c", "kill${IFS}-TERM${IFS}1"], container=container)


@dataclass(slots=True)
class GatedNode(PluginNode):
    """A node whose plugin reaches the API server through a proxy with gates.

    Attributes:
        proxy: the proxy.
    """

    proxy: ThreadedProxy


def written_set(annotations: Mapping[str, str], key: str) -> ChipSet:
    """The chips in an annotation."""
    return chip_set(parse_names(annotations[key]))


def sample(text: str, name: str, **labels: str) -> float:
    """A sample of a metrics page; 0 if there is none."""
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            if each.name == name and labels.items() <= each.labels.items():
                return float(each.value)
    return 0.0


def restarts(pod: Mapping[str, Any]) -> Sequence[int]:
    """The number of restarts of each container."""
    return [each["restartCount"] for each in pod["status"].get("containerStatuses", ())]
