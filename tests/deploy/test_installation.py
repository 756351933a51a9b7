"""The chart on a real cluster: with its identities both programs do their main job, and have no further rights.

The cluster has no controllers and no image, so the test starts the programs of the DaemonSet and the Deployment itself,
with the same arguments, environment, identity and restrictions (chart_programs.py).
"""

import asyncio
import base64
import json
import os
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from allocator.state.report import NODE_INFO, NODE_INFO_PREFIX
from ascend.annotations import MIN_AVAILABLE
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import RESOURCE, parse_names
from ascend.deviceinfo import LABELS, config_map_name
from ascend.kube.client import KubeClient
from device_plugin.kubelet.identity import KubeletIdentity, Unverified
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.publish.rights import rights
from tests.allocator.builders import noded_says
from tests.cluster import binaries
from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import pod as pod_manifest
from tests.cluster.nodes import Node
from tests.deploy import helm
from tests.deploy.chart_programs import (
    HEALTH_NAMESPACE,
    LEASE,
    READY_S,
    REAL,
    SERVER_NAME,
    Installed,
    Running,
    adapt_to_cluster,
    chart_in,
    pod_spec,
    programs_of_chart,
)

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Installed]:
    """The chart of all tests, which leave it as it is."""
    with chart_in(cluster) as installed:
        yield installed


@pytest.fixture(scope="module")
def running(cluster: Cluster, installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with programs_of_chart(cluster, installed, tmp_path_factory.mktemp("chart"), extender=True) as running:
        yield running


@pytest.fixture
def example(cluster: Cluster) -> Iterator[dict[str, Any]]:
    """The example, which is deleted at the end."""
    pod = yaml.safe_load((helm.REPOSITORY / "deploy" / "examples" / "pod.yaml").read_text())
    adapt_to_cluster(pod)
    yield pod
    cluster.delete_pod("two-chips")


def test_the_example_gets_its_chips_under_the_charts_identities(
    cluster: Cluster, running: Running, example: dict[str, Any]
) -> None:
    cluster.api.create(example)
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
    node.wait_for_output("two-chips", f"chips: {','.join(map(str, chips))}\n")
    for node in cluster.nodes:
        cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/configmaps/{config_map_name(node.name)}")
        assert BASE_DEVICE_INFOS in cluster.api.get(f"/api/v1/nodes/{node.name}")["metadata"]["annotations"]
    for program in (*(each.process for each in running.allocators), *running.device_plugins.values()):
        assert "forbidden" not in program.log.read_text().lower()


def test_the_held_bindings_of_a_gang_share_the_schedulers_connection(
    cluster: Cluster, running: Running, kube_namespace: str
) -> None:
    port = int(running.allocators[0].address.rpartition(":")[2])

    def connections() -> set[str]:
        """Those of clients, that are open, or were closed within the last minute."""
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        return {line[1] for line in lines if line[2].endswith(f":{port:04X}") and line[3] in {"01", "06"}}

    before = connections()
    names = [f"train-{number}" for number in range(len(cluster.nodes))]
    gang = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: str(len(names))}
    for name in names:
        cluster.api.create(pod_manifest(name, 8, namespace=kube_namespace, annotations=gang))
    for name in names:
        assert RESOURCE in cluster.wait_for_pod(name, namespace=kube_namespace)["metadata"]["annotations"]
    assert len(connections() - before) <= 1  # none if kube-scheduler is connected already
    for name in names:
        cluster.delete_pod(name, namespace=kube_namespace)


def test_a_stranger_on_the_network_gets_nothing_from_the_allocator(
    cluster: Cluster, installed: Installed, running: Running, kube_namespace: str, tmp_path: Path
) -> None:
    installed.write_certificates(tmp_path)
    victim = cluster.api.create(pod_manifest("victim", 1, namespace=kube_namespace, schedulerName="none"))
    args = {"PodName": "victim", "PodNamespace": kube_namespace, "PodUID": victim["metadata"]["uid"], "Node": "n1"}

    def call(name: str | None) -> str:
        """The answer to a call with the certificate in the files of this name."""
        context = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        context.check_hostname = False
        if name is not None:
            context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        url = f"https://{running.allocators[0].address}/scheduler/bind"
        request = urllib.request.Request(url, json.dumps(args).encode())
        with urllib.request.urlopen(request, context=context) as answer:
            return str(answer.read())

    # What the allocator itself presents does not verify as a client's.
    for stranger in (None, "tls"):
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof|closed"):
            call(stranger)
    unbound = cluster.api.get(f"/api/v1/namespaces/{kube_namespace}/pods/victim")
    assert not unbound["spec"].get("nodeName")
    # A scheduler that is known may not bind the pods of another one either.
    assert "SchedulerNotServed" in call("client")


@pytest.mark.usefixtures("running")
def test_a_node_that_noded_reports_is_avoided_under_the_charts_identities(
    cluster: Cluster, example: dict[str, Any]
) -> None:
    ill = cluster.nodes[0]
    told = {"apiVersion": "v1", "kind": "ConfigMap", "data": {NODE_INFO: noded_says({"NodeStatus": "UnHealthy"})}}
    meta = {"name": f"{NODE_INFO_PREFIX}{ill.name}", "namespace": HEALTH_NAMESPACE, "labels": LABELS}
    cluster.api.create({**told, "metadata": meta})
    try:
        example["spec"]["nodeSelector"] = {"kubernetes.io/hostname": ill.name}
        cluster.api.create(example)
        path = "/api/v1/namespaces/default/pods/two-chips"
        cluster.api.wait_for(path, _is_refused, timeout_s=READY_S, what="the pod is refused for what NodeD says")
    finally:
        cluster.api.delete(f"/api/v1/namespaces/{HEALTH_NAMESPACE}/configmaps/{meta['name']}")
    assert cluster.wait_for_pod("two-chips")["spec"]["nodeName"] == ill.name


def _is_refused(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any("NodeUnhealthy" in condition.get("message", "") for condition in conditions)


def test_the_plugins_token_lists_pods_and_no_more_and_only_the_real_kubelet_gets_it(
    cluster: Cluster, running: Running, example: dict[str, Any]
) -> None:
    cluster.api.create(example)
    node = cluster.node(cluster.wait_for_pod("two-chips")["spec"]["nodeName"])
    kubelet = Server(node.kubelet_url, running.plugin_tokens[node.name])
    assert "two-chips" in {item["metadata"]["name"] for item in kubelet.get("/pods")["items"]}
    assert b"kubelet_device_plugin_registration_total{" in kubelet.request("GET", "/metrics")
    beyond = (
        ("POST", "/run/default/two-chips/main?cmd=ls"),
        ("GET", "/containerLogs/default/two-chips/main"),
    )
    for method, path in beyond if binaries.MINOR >= 33 else ():  # before, a kubelet tells nothing apart: nodes/proxy
        with pytest.raises(HTTPError) as refused:
            kubelet.request(method, path)
        assert refused.value.status == 403

    async def token() -> Mapping[str, str]:
        return {"Authorization": f"Bearer {running.plugin_tokens[node.name]}"}

    async def listed(by: Node) -> int:
        async with KubeletPods(lambda: node.pods_url, token, KubeletIdentity(by.folder / "kubelet" / "pki")) as pods:
            return len(await pods.list())

    assert asyncio.run(listed(node))
    (other,) = (each for each in cluster.nodes if each is not node)
    with pytest.raises(Unverified, match="no token is sent"):
        asyncio.run(listed(other))
    for process in running.device_plugins.values():
        assert "can't be verified" not in process.log.read_text()


def test_the_api_server_confirms_the_granted_rights(cluster: Cluster, installed: Installed) -> None:
    token = cluster.service_account_token(
        pod_spec(installed.device_plugin)["serviceAccountName"], namespace=helm.NAMESPACE
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
                for right in rights(job_files=True)
            }
            return granted, await client.may("patch", "configmaps", namespace="default")

    granted, elsewhere = asyncio.run(ask())
    # Without those that only job files need.
    missing = ["list configmaps", "watch configmaps"]
    assert [name for name, given in granted.items() if not given] == missing
    assert not elsewhere


def test_the_commands_in_the_notes_make_a_valid_scheduler_configuration(
    cluster: Cluster, installed: Installed, tmp_path: Path
) -> None:
    lines = installed.notes.splitlines()
    (first,) = (number for number, line in enumerate(lines) if line.strip().startswith("address="))
    typed = lines[first : lines.index("", first)]
    assert typed[-1].split()[0] == "sed"
    # As an operator types them, in the folder of the chart: so they name no path of the result.
    (tmp_path / "kube-scheduler.yaml").symlink_to(helm.CHART / "kube-scheduler.yaml")
    subprocess.run(
        ["sh", "-euc", "\n".join(typed)],
        cwd=tmp_path,
        env={
            "PATH": f"{binaries.folder()}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig_path),
            "KUBECACHEDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    for part in ("crt", "key"):
        file = tmp_path / f"client.{part}"
        assert base64.b64decode(installed.client[f"tls.{part}"]) == file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0
    address = cluster.api.get(f"/api/v1/namespaces/{helm.NAMESPACE}/services/{LEASE}")["spec"]["clusterIP"]
    told = (tmp_path / "config.yaml").read_text()
    assert f"https://{address}:443/scheduler" in told
    given, taken = tmp_path / "given.yaml", tmp_path / "taken.yaml"
    given.write_text(
        told.replace("/etc/kubernetes/scheduler.conf", str(cluster.kubeconfig_path)).replace(
            "/etc/kubernetes/ascend-affinity", str(tmp_path)
        )
    )
    # kube-scheduler checks its configuration strictly, writes it with all defaults, and exits.
    scheduler = [str(binaries.path("kube-scheduler")), f"--config={given}", f"--write-config-to={taken}"]
    subprocess.run([*scheduler, "--secure-port=0"], capture_output=True, check=True)
    (extender,) = yaml.safe_load(taken.read_text())["extenders"]
    assert extender["enableHTTPS"]
    assert extender["tlsConfig"] | {"insecure": False} == {
        "insecure": False,
        "serverName": SERVER_NAME,
        "caData": installed.certificates["ca.crt"],
        "certFile": str(tmp_path / "client.crt"),
        "keyFile": str(tmp_path / "client.key"),
    }
    assert [extender[f"{verb}Verb"] for verb in ("filter", "preempt", "bind")] == ["filter", "preempt", "bind"]
    assert extender["nodeCacheCapable"]
    assert "weight" not in extender  # there is nothing to score
    assert "ignorable" not in extender  # false is omitted
