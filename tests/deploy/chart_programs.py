"""Installs the chart on the real cluster, and runs its programs.

The cluster has no controllers and no image, so the test starts the programs of the DaemonSet and the Deployment itself,
with the same arguments, environment, identity and restrictions. There is no
Service network either, so the allocators are called directly.
"""

import base64
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascend.chips import RESOURCE
from ascend.deviceinfo import config_map_name
from tests.cluster.api import HTTPError, Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.nodes import Node
from tests.cluster.processes import Process
from tests.deploy import helm
from tests.written_nodes import removal

REAL = "huawei.com/AscendReal"
READY_S = 40.0
LEASE = "ascend-affinity-allocator"
HOLDER = f"/apis/coordination.k8s.io/v1/namespaces/{helm.NAMESPACE}/leases/{LEASE}"
SLICE = f"/apis/discovery.k8s.io/v1/namespaces/{helm.NAMESPACE}/endpointslices/{LEASE}-leader"
LEFT = (
    HOLDER,
    SLICE,
    f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/{LEASE}-scheduler",
    f"/apis/ascend-affinity.io/v1alpha1/namespaces/{helm.NAMESPACE}/leaders/{LEASE}",
)
"""Objects that the allocators create, and the Secret that Helm keeps; the cluster has no garbage collector."""
HEALTH_NAMESPACE = "kube-public"
"""The namespace for NodeD's ConfigMaps: one that exists."""
SERVER_NAME = f"{LEASE}.{helm.NAMESPACE}.svc"
WEBHOOKS = {
    "bindings": f"mutatingwebhookconfigurations/{LEASE}",
    "pods": f"validatingwebhookconfigurations/{LEASE}",
    "gates": f"mutatingwebhookconfigurations/{LEASE}-gates",
    "explanations": f"mutatingwebhookconfigurations/{LEASE}-explanations",
}
# As the chart's securityContext has it: root without any capability, and a read-only root file system.
CONFINED = ("unshare", "--mount", "sh", "-ec", 'mount -o remount,bind,ro /; exec setpriv "$@"', "confined")
NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@dataclass(frozen=True)
class Installed:
    """The objects of the installed chart."""

    notes: str
    allocator: dict[str, Any]
    device_plugin: dict[str, Any]
    settings: str
    simulated: str
    certificates: dict[str, str]
    client: dict[str, str]
    """The certificate that kube-scheduler presents."""

    def write_certificates(self, folder: Path) -> None:
        """Write the files that pods and kube-scheduler would have."""
        files = {"ca.crt": self.certificates, "tls.crt": self.certificates, "tls.key": self.certificates}
        for name, content in files.items():
            (folder / name).write_bytes(base64.b64decode(content[name]))
        for name, key in (("clients.crt", "ca.crt"), ("client.crt", "tls.crt"), ("client.key", "tls.key")):
            (folder / name).write_bytes(base64.b64decode(self.client[key]))


@pytest.fixture
def installed(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Installed]:
    """The chart; a test can set further values with an indirect parameter."""
    with chart_in(cluster, *(("--set", request.param) if hasattr(request, "param") else ())) as installed:
        yield installed


@contextmanager
def chart_in(cluster: Cluster, *options: str) -> Iterator[Installed]:
    """Install the chart with these options, and remove it at the end."""
    where = (helm.RELEASE, "--namespace", helm.NAMESPACE)
    apps = f"/apis/apps/v1/namespaces/{helm.NAMESPACE}"
    chosen = (
        *helm.IMAGE,
        *("--set", "devicePlugin.driver.type=simulated"),  # there are no real chips
        *("--set", f"allocator.leaseDurationSeconds=5,allocator.nodeHealthNamespace={HEALTH_NAMESPACE}"),
        *options,
    )
    notes = helm.run("install", *where, str(helm.CHART), *chosen, kubeconfig=cluster.kubeconfig_path)
    try:
        core = f"/api/v1/namespaces/{helm.NAMESPACE}"
        maps = f"{core}/configmaps/ascend-affinity-device-plugin"
        yield Installed(
            notes=notes,
            allocator=cluster.api.get(f"{apps}/deployments/ascend-affinity-allocator"),
            device_plugin=cluster.api.get(f"{apps}/daemonsets/ascend-affinity-device-plugin"),
            settings=cluster.api.get(f"{maps}-settings")["data"]["settings.yaml"],
            simulated=cluster.api.get(f"{maps}-simulated")["data"]["simulated.json"],
            certificates=cluster.api.get(f"{core}/secrets/{LEASE}-tls")["data"],
            client=cluster.api.get(f"{core}/secrets/{LEASE}-scheduler")["data"],
        )
    finally:
        helm.run("uninstall", *where, kubeconfig=cluster.kubeconfig_path)
        for made in LEFT:
            cluster.api.delete(made)


@dataclass(frozen=True)
class Allocator:
    """A running allocator of the chart."""

    process: Process
    address: str
    """Where kube-scheduler calls it."""
    webhooks: str
    probes: str

    def answers(self, path: str) -> bool:
        return Server(f"https://{self.probes}").answers(path)

    def wait_until_ready(self, timeout_s: float = READY_S) -> None:
        self.process.wait_until(partial(self.answers, "/readyz"), timeout_s=timeout_s)


@dataclass(frozen=True)
class Running:
    """The running programs of the chart; the first allocator is the leader.

    Attributes:
        allocators: the allocators.
        device_plugins: the plugin of each node.
        plugin_tokens: their tokens, each of which names its node.
        allocator_token: the token of both allocators.
    """

    allocators: tuple[Allocator, Allocator]
    device_plugins: Mapping[str, Process]
    plugin_tokens: Mapping[str, str]
    allocator_token: str

    @property
    def allocator(self) -> Process:
        return self.allocators[0].process


@pytest.fixture
def running(cluster: Cluster, installed: Installed, tmp_path: Path) -> Iterator[Running]:
    with programs_of_chart(cluster, installed, tmp_path, extender=True) as running:
        yield running


@pytest.fixture
def running_without_extender(cluster: Cluster, installed: Installed, tmp_path: Path) -> Iterator[Running]:
    with programs_of_chart(cluster, installed, tmp_path, extender=False) as running:
        yield running


@contextmanager
def programs_of_chart(cluster: Cluster, installed: Installed, folder: Path, *, extender: bool) -> Iterator[Running]:
    """Run both programs as the chart does.

    Args:
        cluster: the cluster.
        installed: the chart.
        folder: for the files that a pod would mount.
        extender: kube-scheduler uses the allocator as its extender; otherwise it is unmodified.
    """
    (folder / "simulated.json").write_text(installed.simulated)
    (folder / "settings.yaml").write_text(installed.settings)
    installed.write_certificates(folder)
    with ExitStack() as clean_up:
        clean_up.callback(_restore_cluster, cluster)
        accounts = (pod_spec(each)["serviceAccountName"] for each in (installed.device_plugin, installed.allocator))
        plugin_account, allocator_account = accounts
        allocator_token = cluster.service_account_token(allocator_account, namespace=helm.NAMESPACE)
        # As a kubelet gives them to pods of the DaemonSet: each names its node, and is admitted for that only.
        plugin_tokens = {
            node.name: cluster.service_account_token(plugin_account, namespace=helm.NAMESPACE, node=node.name)
            for node in cluster.nodes
        }
        first, second = (_allocator(cluster, installed, folder, allocator_token, number) for number in (1, 2))
        clean_up.callback(first.process.stop)
        first.process.start()
        device_plugins = {}
        for node in cluster.nodes:
            plugin = _plugin(cluster, node, installed, plugin_tokens[node.name], folder)
            clean_up.callback(plugin.stop)
            plugin.start()
            device_plugins[node.name] = plugin
        clean_up.callback(cluster.restart_scheduler)
        cluster.restart_scheduler(extenders=[extender_of(first.address, installed, folder)] if extender else [])
        for node in cluster.nodes:
            address = flags(device_plugins[node.name].command)["--http-address"]
            device_plugins[node.name].wait_until(partial(_is_ready, address), timeout_s=READY_S)
            device_plugins[node.name].wait_until(partial(_offers_all, cluster, node), timeout_s=READY_S)
        first.wait_until_ready()
        clean_up.callback(second.process.stop)
        second.process.start()
        second.process.wait_until(partial(second.answers, "/standbyz"), timeout_s=READY_S)
        point_webhooks_to(cluster, first)
        clean_up.callback(cluster.delete_pod, "two-chips")
        yield Running((first, second), device_plugins, plugin_tokens, allocator_token)


def point_webhooks_to(cluster: Cluster, allocator: Allocator) -> None:
    """Make the webhooks call an allocator, as the Service would."""
    for kind, name in WEBHOOKS.items():
        path = f"/apis/admissionregistration.k8s.io/v1/{name}"
        try:
            (webhook,) = cluster.api.get(path)["webhooks"]
        except HTTPError as error:
            if error.status == HTTPStatus.NOT_FOUND and kind == "gates":  # pods are not gated
                continue
            raise
        called = webhook["clientConfig"].pop("service", {}).get("path") or f"/webhook/{kind}"
        webhook["clientConfig"]["url"] = f"https://{allocator.webhooks}{called}"
        cluster.api.patch(path, {"webhooks": [webhook]})


def extender_of(address: str, installed: Installed, folder: Path) -> dict[str, Any]:
    (extender,) = scheduler_configuration()["extenders"]
    pair = {"certFile": str(folder / "client.crt"), "keyFile": str(folder / "client.key")}
    tls = {**extender["tlsConfig"], "serverName": SERVER_NAME, "caData": installed.certificates["ca.crt"], **pair}
    return {**extender, "urlPrefix": f"https://{address}/scheduler", "tlsConfig": tls}


def _allocator(cluster: Cluster, installed: Installed, mounted: Path, token: str, number: int) -> Allocator:
    name = f"deployed-allocator-{number}"
    http, webhooks, probes, grpc = (f"127.0.0.1:{port}" for port in free_ports(4))
    command = command_of(
        installed.allocator,
        kubeconfig=cluster.write_kubeconfig(name, token),
        extender_address=http,
        webhook_address=webhooks,
        probe_address=probes,
        grpc_address=grpc,
        tls_cert_file=mounted / "tls.crt",
        tls_key_file=mounted / "tls.key",
        client_ca_file=mounted / "clients.crt",
    )
    fields = {"status.podIP": f"10.1.0.{number}"}
    return Allocator(
        cluster.process(name, command, **_environment(installed.allocator, fields)), http, webhooks, probes
    )


def _plugin(cluster: Cluster, node: Node, installed: Installed, token: str, mounted: Path) -> Process:
    (port,) = free_ports(1)
    command = command_of(
        installed.device_plugin,
        kubeconfig=cluster.write_kubeconfig(f"deployed-device-plugin-{node.name}", token),
        driver="simulated",
        config=mounted / "settings.yaml",
        simulated_state=mounted / "simulated.json",
        kubelet_pods_url=node.pods_url,
        http_address=f"127.0.0.1:{port}",
    )
    fields = {"spec.nodeName": node.name, "status.hostIP": "127.0.0.1"}
    return node.process("deployed-device-plugin", command, **_environment(installed.device_plugin, fields))


def pod_spec(workload: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def command_of(workload: Mapping[str, Any], **changed: object) -> list[str]:
    """Return the container's command line, with these options changed."""
    (container,) = pod_spec(workload)["containers"]
    (program,) = container["command"]
    given = flags(container.get("args", []))
    given |= {f"--{name.replace('_', '-')}": str(value) for name, value in changed.items()}
    installed = Path(sys.executable).with_name(program)
    return [*CONFINED, *NO_CAPABILITIES, str(installed), *(f"{name}={value}" for name, value in given.items())]


def flags(arguments: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)


def _environment(workload: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    (container,) = pod_spec(workload)["containers"]
    return {
        variable["name"]: variable["value"]
        if "value" in variable
        else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in container.get("env", ())
    }


def scheduler_configuration() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((helm.CHART / "kube-scheduler.yaml").read_text())
    return read


def adapt_to_cluster(pod: dict[str, Any]) -> None:
    """Use the only image; the cluster has no registry, no pod network and no ServiceAccount controller."""
    (container,) = pod["spec"]["containers"]
    container |= {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    container["name"] = "main"
    pod["spec"] |= {"hostNetwork": True, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}


def _is_ready(address: str) -> bool:
    return Server(f"http://{address}").answers("/readyz")


def _offers_all(cluster: Cluster, node: Node) -> bool:
    """Whether the kubelet offers all chips, and no longer what the plugin of an earlier test has offered."""
    offered = cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"]
    devices = {name: count for name, count in offered.items() if name.startswith("huawei.com/") and count != "0"}
    return bool(devices == {RESOURCE: "8"})


def _restore_cluster(cluster: Cluster) -> None:
    """Remove what the programs wrote: other tests share the cluster."""
    for node in cluster.nodes:
        cluster.api.delete(f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/{config_map_name(node.name)}")
        cluster.api.patch(f"/api/v1/nodes/{node.name}", removal())
