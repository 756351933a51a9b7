"""The chart is installed on a real cluster, and its identities do the main job: no right is missing, none is too many.

There are no controllers and no image here, so its DaemonSet and Deployment are carried out by hand: the same programs,
with the same arguments, environment, identity and lack of privileges.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from ascend.annotations import BASE_DEVICE_INFOS, SERVER_INDEX, SERVER_TYPE, SUPER_POD_ID
from ascend.chips import RESOURCE, parse_names
from ascend.deviceinfo import config_map_name
from ascend.kube.client import KubeClient
from device_plugin.rules.rights import rights
from tests.cluster import binaries
from tests.cluster.api import HTTPError, Server, free_ports
from tests.cluster.cluster import Cluster
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.nodes import Node
from tests.cluster.processes import Process
from tests.deploy import helm

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]

REAL = "huawei.com/AscendReal"
READY_S = 40.0
# As the chart's securityContext has it: root without any capability, and a root file system nobody can write to.
CONFINED = ("unshare", "--mount", "sh", "-ec", 'mount -o remount,bind,ro /; exec setpriv "$@"', "confined")
NO_CAPABILITIES = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")


@dataclass(frozen=True)
class Installed:
    """The chart, installed."""

    notes: str
    allocator: dict[str, Any]
    device_plugin: dict[str, Any]
    settings: str
    simulated: str


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[Installed]:
    where = (helm.RELEASE, "--namespace", helm.NAMESPACE)
    apps = f"/apis/apps/v1/namespaces/{helm.NAMESPACE}"
    chosen = ("--set", "devicePlugin.driver.type=simulated")  # there are no real chips here
    notes = helm.run("install", *where, str(helm.CHART), *chosen, kubeconfig=cluster.kubeconfig_path)
    try:
        maps = f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/ascend-affinity-device-plugin"
        yield Installed(
            notes=notes,
            allocator=cluster.api.get(f"{apps}/deployments/ascend-affinity-allocator"),
            device_plugin=cluster.api.get(f"{apps}/daemonsets/ascend-affinity-device-plugin"),
            settings=cluster.api.get(f"{maps}-settings")["data"]["settings.yaml"],
            simulated=cluster.api.get(f"{maps}-simulated")["data"]["simulated.json"],
        )
    finally:
        helm.run("uninstall", *where, kubeconfig=cluster.kubeconfig_path)


@dataclass(frozen=True)
class Running:
    """Both programs, running as the chart says."""

    allocator: Process
    device_plugins: Mapping[str, Process]
    plugin_token: str
    allocator_token: str


@pytest.fixture
def running(cluster: Cluster, installed: Installed, tmp_path: Path) -> Iterator[Running]:
    (tmp_path / "simulated.json").write_text(installed.simulated)
    (tmp_path / "settings.yaml").write_text(installed.settings)
    with ExitStack() as clean_up:
        clean_up.callback(_remove_traces, cluster)
        plugin_token, allocator_token = (
            cluster.service_account_token(_pod_spec(each)["serviceAccountName"], namespace=helm.NAMESPACE)
            for each in (installed.device_plugin, installed.allocator)
        )
        kubeconfig = cluster.write_kubeconfig("deployed-allocator", allocator_token)
        http, grpc = (f"127.0.0.1:{port}" for port in free_ports(2))
        command = _command(installed.allocator, kubeconfig=kubeconfig, extender_address=http, grpc_address=grpc)
        allocator = cluster.process("deployed-allocator", command, **_environment(installed.allocator, {}))
        clean_up.callback(allocator.stop)
        allocator.start()
        device_plugins = {}
        for node in cluster.nodes:
            plugin = _plugin(cluster, node, installed, plugin_token, tmp_path)
            clean_up.callback(plugin.stop)
            plugin.start()
            device_plugins[node.name] = plugin
        (extender,) = _scheduler_configuration()["extenders"]
        clean_up.callback(cluster.restart_scheduler)
        cluster.restart_scheduler(extenders=[{**extender, "urlPrefix": f"http://{http}/scheduler"}])
        for node in cluster.nodes:
            address = _flags(device_plugins[node.name].command)["--http-address"]
            device_plugins[node.name].wait_until(partial(_is_ready, address), timeout_s=READY_S)
            device_plugins[node.name].wait_until(partial(_offers_all, cluster, node), timeout_s=READY_S)
        allocator.wait_until(partial(_is_ready, http), timeout_s=READY_S)
        clean_up.callback(cluster.delete_pod, "two-chips")
        yield Running(allocator, device_plugins, plugin_token, allocator_token)


def test_the_example_gets_its_chips_under_the_charts_identities(cluster: Cluster, running: Running) -> None:
    pod = yaml.safe_load((helm.REPOSITORY / "deploy" / "examples" / "pod.yaml").read_text())
    _adapt_to_this_cluster(pod)
    cluster.api.create(pod)
    placed = cluster.wait_for_pod("two-chips")
    claimed = cluster.api.wait_for(
        "/api/v1/namespaces/default/pods/two-chips",
        lambda pod: REAL in pod["metadata"]["annotations"],
        timeout_s=READY_S,
        what="the pod is claimed",
    )
    annotations = claimed["metadata"]["annotations"]
    chips = parse_names(annotations[REAL])
    assert len(chips) == 2
    assert set(chips) == set(parse_names(annotations[RESOURCE]))
    node = cluster.node(placed["spec"]["nodeName"])
    assert node.container_logs("two-chips") == f"chips: {','.join(map(str, chips))}\n"
    for node in cluster.nodes:
        cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/{config_map_name(node.name)}")
        assert BASE_DEVICE_INFOS in cluster.api.get(f"/api/v1/nodes/{node.name}")["metadata"]["annotations"]
    for program in (running.allocator, *running.device_plugins.values()):
        assert "forbidden" not in program.log.read_text().lower()


def test_the_plugin_may_list_its_kubelets_pods_and_run_nothing_in_them(cluster: Cluster, running: Running) -> None:
    pod = yaml.safe_load((helm.REPOSITORY / "deploy" / "examples" / "pod.yaml").read_text())
    _adapt_to_this_cluster(pod)
    cluster.api.create(pod)
    node = cluster.node(cluster.wait_for_pod("two-chips")["spec"]["nodeName"])
    kubelet = Server(node.kubelet_url, running.plugin_token)
    assert "two-chips" in {item["metadata"]["name"] for item in kubelet.get("/pods")["items"]}
    for method, path in (
        ("POST", "/run/default/two-chips/main?cmd=ls"),
        ("GET", "/containerLogs/default/two-chips/main"),
    ):
        with pytest.raises(HTTPError) as refused:
            kubelet.request(method, path)
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("DELETE", "/api/v1/namespaces/kube-system/configmaps/mindx-dl-deviceinfo-n1"),
        ("DELETE", "/api/v1/namespaces/default/pods/two-chips"),
        ("POST", "/api/v1/namespaces/default/pods"),
        ("DELETE", "/api/v1/nodes/n1"),
    ],
)
def test_neither_identity_may_do_more(cluster: Cluster, installed: Installed, method: str, path: str) -> None:
    for workload in (installed.device_plugin, installed.allocator):
        name = _pod_spec(workload)["serviceAccountName"]
        server = cluster.server(cluster.service_account_token(name, namespace=helm.NAMESPACE))
        with pytest.raises(HTTPError) as refused:
            server.request(method, path, {} if method == "POST" else None)
        assert refused.value.status == 403


def test_the_server_itself_says_what_is_granted(cluster: Cluster, installed: Installed) -> None:
    token = cluster.service_account_token(
        _pod_spec(installed.device_plugin)["serviceAccountName"], namespace=helm.NAMESPACE
    )
    kubeconfig = cluster.write_kubeconfig("asking-device-plugin", token)

    async def ask() -> tuple[dict[str, bool], bool]:
        async with await KubeClient.connect(str(kubeconfig)) as client:
            granted = {
                str(right): await client.may(
                    right.verb,
                    right.resource,
                    group=right.group,
                    subresource=right.subresource,
                    namespace=right.namespace,
                )
                for right in rights(manual_readmission=True)
            }
            return granted, await client.may("patch", "configmaps", namespace="default")

    granted, elsewhere = asyncio.run(ask())
    # The two that only manual readmission needs were not asked for.
    assert [name for name, given in granted.items() if not given] == ["list nodes", "watch nodes"]
    assert not elsewhere


def test_what_the_notes_say_to_type_makes_a_configuration_the_scheduler_takes(
    cluster: Cluster, installed: Installed, tmp_path: Path
) -> None:
    lines = installed.notes.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.strip().startswith("address="))
    typed = lines[first : lines.index("", first)]
    assert typed[-1].split()[0] == "sed"
    told = subprocess.run(
        ["sh", "-euc", "\n".join(typed)],
        cwd=helm.REPOSITORY,
        env={
            "PATH": f"{binaries.folder()}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig_path),
            "KUBECACHEDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    address = cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/services/ascend-affinity-allocator")["spec"][
        "clusterIP"
    ]
    assert f"http://{address}:8080/scheduler" in told
    given, taken = tmp_path / "given.yaml", tmp_path / "taken.yaml"
    given.write_text(told.replace("/etc/kubernetes/scheduler.conf", str(cluster.kubeconfig_path)))
    # It checks its configuration strictly, writes it out with all defaults, and ends.
    scheduler = [str(binaries.path("kube-scheduler")), f"--config={given}", f"--write-config-to={taken}"]
    subprocess.run([*scheduler, "--secure-port=0"], capture_output=True, check=True)
    (extender,) = yaml.safe_load(taken.read_text())["extenders"]
    assert (extender["weight"], extender["bindVerb"], extender["nodeCacheCapable"]) == (200, "bind", True)
    assert "ignorable" not in extender  # false is left out


def test_one_point_of_the_allocators_outweighs_all_other_scores_of_this_scheduler_together(
    cluster: Cluster, tmp_path: Path
) -> None:
    given, taken = tmp_path / "given.yaml", tmp_path / "taken.yaml"
    configuration = _scheduler_configuration()
    configuration["clientConnection"]["kubeconfig"] = str(cluster.kubeconfig_path)
    given.write_text(yaml.safe_dump(configuration))
    scheduler = [str(binaries.path("kube-scheduler")), f"--config={given}", f"--write-config-to={taken}"]
    subprocess.run([*scheduler, "--secure-port=0"], capture_output=True, check=True)
    (profile,) = yaml.safe_load(taken.read_text())["profiles"]
    in_tree = 100 * sum(plugin.get("weight", 0) for plugin in profile["plugins"]["multiPoint"]["enabled"])
    assert in_tree == 1200
    assert configuration["extenders"][0]["weight"] * 10 > in_tree


def _plugin(cluster: Cluster, node: Node, installed: Installed, token: str, mounted: Path) -> Process:
    (port,) = free_ports(1)
    command = _command(
        installed.device_plugin,
        kubeconfig=cluster.write_kubeconfig("deployed-device-plugin", token),
        driver="simulated",
        config=mounted / "settings.yaml",
        simulated_state=mounted / "simulated.json",
        kubelet_pods_url=node.pods_url,
        http_address=f"127.0.0.1:{port}",
    )
    fields = {"spec.nodeName": node.name, "status.hostIP": "127.0.0.1"}
    return node.process("deployed-device-plugin", command, **_environment(installed.device_plugin, fields))


def _pod_spec(workload: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def _command(workload: Mapping[str, Any], **changed: object) -> list[str]:
    """The container's command line, but for what is another here."""
    (container,) = _pod_spec(workload)["containers"]
    (program,) = container["command"]
    flags = _flags(container.get("args", [])) | {
        f"--{name.replace('_', '-')}": str(value) for name, value in changed.items()
    }
    installed = Path(sys.executable).with_name(program)
    return [*CONFINED, *NO_CAPABILITIES, str(installed), *(f"{name}={value}" for name, value in flags.items())]


def _flags(arguments: list[str]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)


def _environment(workload: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    (container,) = _pod_spec(workload)["containers"]
    return {
        variable["name"]: variable["value"]
        if "value" in variable
        else fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        for variable in container.get("env", ())
    }


def _scheduler_configuration() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((helm.REPOSITORY / "deploy" / "kube-scheduler.yaml").read_text())
    return read


def _adapt_to_this_cluster(pod: dict[str, Any]) -> None:
    """Here is one image, no registry, no pod network and nobody who makes ServiceAccounts."""
    (container,) = pod["spec"]["containers"]
    container |= {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    container["name"] = "main"
    pod["spec"] |= {"hostNetwork": True, "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 0}


def _is_ready(address: str) -> bool:
    return Server(f"http://{address}").answers("/readyz")


def _offers_all(cluster: Cluster, node: Node) -> bool:
    return bool(cluster.api.get(f"/api/v1/nodes/{node.name}")["status"]["allocatable"].get(RESOURCE) == "8")


def _remove_traces(cluster: Cluster) -> None:
    """Leave the shared cluster as it was: what the programs wrote is nobody's once they have ended."""
    written = dict.fromkeys((BASE_DEVICE_INFOS, SUPER_POD_ID, SERVER_INDEX, SERVER_TYPE))
    for node in cluster.nodes:
        cluster.api.delete(f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/{config_map_name(node.name)}")
        cluster.api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"annotations": written}})
