"""Helm installs the chart on a real cluster with the built image, and its DaemonSet and Deployment run as pods.

Other tests of the chart start the programs themselves. Here everything is what operators get: the image, the
ServiceAccounts and RBAC, the security contexts, probes, the Service, an upgrade from the previous commit, the removal.
"""

import base64
import contextlib
import http.client
import json
import logging
import re
import ssl
import subprocess
import sys
import textwrap
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ascend.chips import RESOURCE, parse_names
from npuctl.cli import app
from tests.allocator.authority import Pair
from tests.cluster import binaries
from tests.cluster import images as archives
from tests.cluster.api import HTTPError
from tests.cluster.cluster import Cluster
from tests.cluster.controller_manager import PODS, start_controller_manager
from tests.cluster.errors import ClusterError
from tests.cluster.manifests import pod
from tests.cluster.nodes import Node
from tests.cluster.processes import wait_until
from tests.deploy import helm, image
from tests.deploy.chart_programs import REAL, scheduler_configuration
from tests.deploy.workloads import Deployment

log = logging.getLogger(__name__)

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(900)]

NAMESPACE = "ascend-affinity"
WHERE = (helm.RELEASE, "--namespace", NAMESPACE)
ALLOCATOR, PLUGIN = "ascend-affinity-allocator", "ascend-affinity-device-plugin"
SCHEDULER, SCHEDULER_IMAGE = "ascend-affinity-scheduler", "docker.io/local/kube-scheduler"
CORE = f"/api/v1/namespaces/{NAMESPACE}"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{ALLOCATOR}"
INSTALL_S = 180.0
PLACED_S = 60.0


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, built_image: image.Image) -> Iterator[Cluster]:
    """The cluster of all tests: the chart was installed and removed before."""
    with with_pods(built_image) as cluster:
        yield cluster
        cluster.keep_logs = request.session.testsfailed > 0


@contextlib.contextmanager
def with_pods(built_image: image.Image) -> Iterator[Cluster]:
    """A cluster with pod network, controllers, and the image on both nodes."""
    with Cluster(2, pod_network=True) as cluster:
        start_controller_manager(cluster, PODS)
        provide(cluster, built_image)
        label_nodes(cluster, "huawei-Ascend910")
        cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield cluster


def label_nodes(cluster: Cluster, value: str | None) -> None:
    """Let the device plugin run on the nodes, or not."""
    for node in cluster.nodes:
        cluster.api.patch(f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"accelerator": value}}})


def offering(cluster: Cluster) -> list[str]:
    """The nodes that offer chips."""
    nodes = cluster.api.get("/api/v1/nodes")["items"]
    return [each["metadata"]["name"] for each in nodes if each["status"]["allocatable"].get(RESOURCE, "0") != "0"]


def provide(cluster: Cluster, built: image.Image) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda node: node.import_images(built.archive), cluster.nodes))


@contextlib.contextmanager
def installed(cluster: Cluster, built: image.Image, *options: str, connected: bool = True) -> Iterator[None]:
    """The chart of the image's commit, with kube-scheduler connected as the notes say, unless that is done later."""
    values = ["devicePlugin.driver.type=simulated", f"image.repository={image.NAME}", f"image.tag={built.tag}"]
    values += ["allocator.leaseDurationSeconds=5"]
    chart = str(built.source / helm.CHART.relative_to(helm.REPOSITORY))
    try:
        helm.run(
            "install", *WHERE, chart, *waiting("--set", ",".join(values), *options), kubeconfig=cluster.kubeconfig_path
        )
        if connected:
            connect_scheduler(cluster)
        yield
    finally:
        cluster.restart_scheduler()
        helm.run("uninstall", *WHERE, *waiting(), kubeconfig=cluster.kubeconfig_path)
        for made in kubectl(cluster, "get", "pods", "--output=name").split():
            kubectl(cluster, "delete", made)
        remove_as_documented(cluster)
        wait_until(lambda: not cluster.api.get(f"{CORE}/pods")["items"], timeout_s=60, what="the programs have ended")


def waiting(*options: str) -> list[str]:
    return [*options, "--wait", f"--timeout={INSTALL_S:.0f}s"]


CLOSED = "allocator.tls.insecureAnyoneMayBindPods=false,allocator.networkPolicy.from=everyone-with-a-certificate"
OPEN = "allocator.tls.insecureAnyoneMayBindPods=true,allocator.networkPolicy.from=everyone"
"""The values of the step in docs/install.md#upgrade."""


def connect_scheduler(cluster: Cluster, *, certificate: bool = True) -> None:
    address = cluster.api.get(f"{CORE}/services/{ALLOCATOR}")["spec"]["clusterIP"]
    authority = cluster.api.get(f"{CORE}/secrets/{ALLOCATOR}-tls")["data"]["ca.crt"]
    (extender,) = scheduler_configuration()["extenders"]
    tls = {"serverName": f"{ALLOCATOR}.{NAMESPACE}.svc", "caData": authority}
    if certificate:
        pair = client_certificate(cluster)
        tls |= {"certFile": str(pair.cert), "keyFile": str(pair.key)}
    url = f"https://{address}:443/scheduler"
    cluster.restart_scheduler(extenders=[{**extender, "urlPrefix": url, "tlsConfig": tls}])


def client_certificate(cluster: Cluster) -> Pair:
    """Write what kube-scheduler presents."""
    content = cluster.api.get(f"{CORE}/secrets/{ALLOCATOR}-scheduler")["data"]
    pair = Pair(cluster.folder / "client.crt", cluster.folder / "client.key")
    pair.cert.write_bytes(base64.b64decode(content["tls.crt"]))
    pair.key.write_bytes(base64.b64decode(content["tls.key"]))
    return pair


def call_allocator(cluster: Cluster, path: str, body: dict[str, Any], pair: Pair | None) -> Any:
    """Call the leader by the Service; raises OSError if it is not answered."""
    address = cluster.api.get(f"{CORE}/services/{ALLOCATOR}")["spec"]["clusterIP"]
    authority = cluster.api.get(f"{CORE}/secrets/{ALLOCATOR}-tls")["data"]["ca.crt"]
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    context.check_hostname = False  # the address is not in the certificate
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    request = urllib.request.Request(f"https://{address}:443{path}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10, context=context) as response:
        return json.load(response)


def task(made: dict[str, Any]) -> dict[str, Any]:
    """A pod as Volcano sends it."""
    return {"UID": made["metadata"]["uid"], "Pod": made}


def ask_as_volcano(cluster: Cluster, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call the leader as a proxy beside Volcano's scheduler does, with the certificate that the chart made.

    Just after a change of leaders the Service may still lead to the one that ends; Volcano asks again as well.
    """
    pair = client_certificate(cluster)
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        try:
            answers.append(call_allocator(cluster, f"/volcano/{verb}", body, pair))
        except (OSError, http.client.HTTPException):
            return False
        return True

    wait_until(is_answered, timeout_s=PLACED_S, what=f"Volcano's call {verb} is answered")
    return answers[0]


def kubectl(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [str(binaries.path("kubectl")), "--kubeconfig", str(cluster.kubeconfig_path), *arguments],
        env={"HOME": str(cluster.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return done.stdout


def pods_of(cluster: Cluster, component: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.api.get(
        f"{CORE}/pods?labelSelector=app.kubernetes.io/component%3D{component}"
    )["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


def node_of(cluster: Cluster, item: dict[str, Any]) -> Node:
    return cluster.node(item["spec"]["nodeName"])


def run_in(cluster: Cluster, item: dict[str, Any], *command: str) -> str:
    (container,) = item["spec"]["containers"]
    where = {"namespace": NAMESPACE, "container": container["name"]}
    return node_of(cluster, item).exec(item["metadata"]["name"], command, **where)


def place(cluster: Cluster, name: str, chips: int = 2, **spec: Any) -> tuple[str, set[int]]:
    """Create a pod with chips; return its node, and the chips it was handed."""
    cluster.api.create(pod(name, chips, **spec))
    path = f"/api/v1/namespaces/default/pods/{name}"
    held = cluster.api.wait_for(
        path,
        lambda pod: (
            pod["status"].get("phase") == "Failed"
            or (pod["status"].get("phase") == "Running" and REAL in pod["metadata"]["annotations"])
        ),
        timeout_s=PLACED_S,
        what=f"pod {name} runs with its chips",
    )
    if held["status"]["phase"] == "Failed":
        raise ClusterError(f"{name}: {held['status'].get('reason')}: {held['status'].get('message')}")
    annotations = held["metadata"]["annotations"]
    chips_held = set(parse_names(annotations[REAL]))
    assert chips_held == set(parse_names(annotations[RESOURCE]))
    assert len(chips_held) == chips
    return held["spec"]["nodeName"], chips_held


def diagnose(cluster: Cluster) -> dict[str, Any]:
    """What ``npuctl doctor --cluster`` finds."""
    arguments = ["doctor", "--cluster", "--kubeconfig", str(cluster.kubeconfig_path), "-o", "json"]
    found: dict[str, Any] = json.loads(CliRunner().invoke(app, arguments).stdout)
    return found


def holder(cluster: Cluster) -> str:
    return str(cluster.api.get(LEASE)["spec"].get("holderIdentity") or "")


def everything(cluster: Cluster) -> set[str]:
    """Return the names of all objects but Events, node heartbeats, and what is documented to stay."""
    kinds = kubectl(cluster, "api-resources", "--verbs=list", "--output=name").split()
    chosen = ",".join(kind for kind in kinds if not kind.startswith("events"))
    names = set(kubectl(cluster, "get", chosen, "--all-namespaces", "--ignore-not-found", "--output=name").split())
    heartbeats = {f"lease.coordination.k8s.io/{node.name}" for node in cluster.nodes}
    return {name for name in names - heartbeats if not name.startswith("configmap/mindx-dl-deviceinfo-")}


@pytest.mark.shows("image", "910A")
def test_the_chart_runs_as_pods_and_leaves_nothing_behind(cluster: Cluster, built_image: image.Image) -> None:
    before = everything(cluster)
    with installed(cluster, built_image, "--set", "allocator.volcano.enabled=true"):
        allocators, plugins = pods_of(cluster, "allocator"), pods_of(cluster, "device-plugin")
        assert {each["spec"]["nodeName"] for each in plugins} == {"n1", "n2"}
        assert len({each["spec"]["nodeName"] for each in allocators}) == 2
        for each in (*allocators, *plugins):
            assert each["status"]["containerStatuses"][0]["restartCount"] == 0
            has_no_rights_on_its_node(cluster, each)
        node, chips = place(cluster, "first")
        assert place(cluster, "whole", 8)[0] != node
        diagnosis = diagnose(cluster)
        assert (diagnosis["problems"], diagnosis["warnings"]) == (0, 0), diagnosis
        # The API server reaches the webhooks, at their own port, by the Service.
        with pytest.raises(HTTPError, match="denied the request: InvalidRequest"):
            cluster.api.create(pod("invalid", 17))
        (leader,) = (each for each in allocators if holder(cluster).startswith(each["metadata"]["name"]))
        cluster.api.delete(f"{CORE}/pods/{leader['metadata']['name']}", grace_s=0)
        assert not place(cluster, "second")[1] & chips
        # Its pod is gone at once, but its containers run until the kubelet has stopped them.
        wait_until(
            lambda: not holder(cluster).startswith(leader["metadata"]["name"]),
            timeout_s=PLACED_S,
            what="the other allocator leads",
        )
        asking = {"task": task(cluster.api.create(pod("asks", 8, schedulerName="volcano"))), "node": {"Name": node}}
        wait_until(
            lambda: ask_as_volcano(cluster, "predicate", asking)["status"].startswith("NotEnoughChips: "),
            timeout_s=PLACED_S,
            what="the pod that Volcano asks about is known and judged",
        )
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof|closed"):
            call_allocator(cluster, "/volcano/predicate", asking, None)
        for each in plugins:
            assert ": 0 problems" in run_in(cluster, each, "npuctl", "doctor")
        for each in (*pods_of(cluster, "allocator"), *plugins):
            (container,) = each["spec"]["containers"]
            where = {"namespace": NAMESPACE, "container": container["name"]}
            log = node_of(cluster, each).container_logs(each["metadata"]["name"], **where)
            assert "forbidden" not in log.lower()
        for name in ("asks", "first", "whole", "second"):
            cluster.delete_pod(name)
    wait_until(
        lambda: everything(cluster) == before, timeout_s=30, what="nothing is left", tail=lambda: left(cluster, before)
    )


@pytest.mark.shows("image", "910A")
@pytest.mark.parametrize("order", ["label deployment chart", "deployment chart label", "chart label deployment"])
def test_until_the_scheduler_is_connected_one_pod_fails_in_any_order_of_steps(
    cluster: Cluster, built_image: image.Image, order: str
) -> None:
    label_nodes(cluster, None)
    cluster.api.delete("/apis/events.k8s.io/v1/namespaces/default/events")
    # A kubelet tells the API server up to ten seconds later that the plugin of an earlier test has ended.
    wait_until(lambda: not offering(cluster), timeout_s=60, what="no node offers chips")
    with contextlib.ExitStack() as stack:
        stack.callback(label_nodes, cluster, "huawei-Ascend910")
        web = None
        for step in order.split():
            if step == "label":
                label_nodes(cluster, "huawei-Ascend910")
            elif step == "chart":
                stack.enter_context(installed(cluster, built_image, connected=False))
            else:
                web = Deployment(cluster, "default", "web")
        assert web is not None
        web.wait_until_denied()
        assert len(web.pods("Failed")) == 1
        connect_scheduler(cluster)
        place(cluster, "alone")
        web.delete("Failed")
        web.wait_until_running()
        assert not web.pods("Failed")
        web.end()
        cluster.delete_pod("alone")


def test_the_hardened_values_run_as_pods(cluster: Cluster, built_image: image.Image) -> None:
    hardened = str(built_image.source / helm.HARDENED.relative_to(helm.REPOSITORY))
    # There is no cert-manager here, and simulated chips have no device nodes.
    here = "allocator.tls.source=generated,devicePlugin.injection=auto"
    with installed(cluster, built_image, "--values", hardened, "--set", here):
        node, chips = place(cluster, "first")
        assert place(cluster, "whole", 8)[0] != node
        # The API server reaches the webhooks, at their own port, by the Service.
        with pytest.raises(HTTPError, match="denied the request: InvalidRequest"):
            cluster.api.create(pod("invalid", 17))
        assert len(chips) == 2
        for name in ("first", "whole"):
            cluster.delete_pod(name)


@pytest.mark.shows("image", "910A")
def test_the_charts_kube_scheduler_places_pods_and_the_clusters_own_stays_as_it_is(
    cluster: Cluster, built_image: image.Image
) -> None:
    version = provide_scheduler(cluster)
    before = everything(cluster)
    chosen = f"scheduler.enabled=true,scheduler.image.repository={SCHEDULER_IMAGE}"
    with installed(cluster, built_image, "--set", chosen, connected=False):
        resolve_service(cluster)
        schedulers = pods_of(cluster, "scheduler")
        assert len(schedulers) == 2
        assert {each["spec"]["containers"][0]["image"] for each in schedulers} == {f"{SCHEDULER_IMAGE}:{version}"}
        ours: dict[str, Any] = {"schedulerName": "ascend-scheduler"}
        where, chips = place(cluster, "ours", **ours)
        assert place(cluster, "whole-ours", 8, **ours)[0] != where
        # The cluster's own schedules pods without chips, and knows nothing of the allocator.
        cluster.api.create(pod("theirs"))
        cluster.wait_for_pod("theirs")
        events = cluster.api.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        scheduled = [each for each in events if each["reason"] == "Scheduled"]
        by = {each["regarding"]["name"]: each["reportingController"] for each in scheduled}
        who = {"ours": "ascend-scheduler", "whole-ours": "ascend-scheduler", "theirs": "default-scheduler"}
        assert who.items() <= by.items()
        cluster.api.create(pod("waits-ours", 8, **ours))
        cluster.api.wait_for(
            "/api/v1/namespaces/default/pods/waits-ours",
            is_unschedulable,
            timeout_s=PLACED_S,
            what="it waits for chips",
        )
        cluster.delete_pod("waits-ours")  # the free chips are kept for it
        label = {"ascend-affinity.io/scheduler": "ascend-scheduler"}
        cluster.api.patch("/api/v1/namespaces/default", {"metadata": {"labels": label}})

        def is_taken_over() -> bool:
            tried = cluster.api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", pod("tried", 1))
            return bool(json.loads(tried)["spec"]["schedulerName"] == "ascend-scheduler")

        wait_until(is_taken_over, timeout_s=PLACED_S, what="the API server has seen the label")
        place(cluster, "labelled", 1)
        for name, scheduler in (("labelled", "ascend-scheduler"), ("theirs", "default-scheduler")):
            created = cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")
            assert created["spec"]["schedulerName"] == scheduler
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{SCHEDULER}"
        leader = str(cluster.api.get(lease)["spec"]["holderIdentity"]).partition("_")[0]
        cluster.api.delete(f"{CORE}/pods/{leader}", grace_s=0)
        assert not place(cluster, "later", **ours)[1] & chips
        wait_for_schedulers(cluster)
        for each in pods_of(cluster, "scheduler"):
            name = each["metadata"]["name"]
            log = node_of(cluster, each).container_logs(name, namespace=NAMESPACE, container="kube-scheduler")
            assert "forbidden" not in log.lower()
        for name in ("labelled", "theirs", "ours", "whole-ours", "later"):
            cluster.delete_pod(name)
    wait_until(
        lambda: everything(cluster) == before, timeout_s=30, what="nothing is left", tail=lambda: left(cluster, before)
    )


def provide_scheduler(cluster: Cluster) -> str:
    """Give the nodes the image of kube-scheduler; return its tag."""
    version = f"v{binaries.KUBERNETES_VERSION}"
    archive = cluster.folder / "kube-scheduler.tar"
    archives.write_program_archive(archive, f"{SCHEDULER_IMAGE}:{version}", binaries.path("kube-scheduler"))
    for node in cluster.nodes:
        node.import_images(archive)
    return version


def resolve_service(cluster: Cluster) -> None:
    """Let the chart's kube-scheduler resolve the name of the allocator's Service: there is no DNS server here."""
    address = cluster.api.get(f"{CORE}/services/{ALLOCATOR}")["spec"]["clusterIP"]
    alias = {"ip": address, "hostnames": [f"{ALLOCATOR}.{NAMESPACE}.svc"]}
    deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    cluster.api.patch(deployment, {"spec": {"template": {"spec": {"hostAliases": [alias]}}}})
    wait_for_schedulers(cluster)


def wait_for_schedulers(cluster: Cluster) -> None:
    where = (f"--namespace={NAMESPACE}", f"--timeout={INSTALL_S:.0f}s")
    kubectl(cluster, "rollout", "status", f"deployment/{SCHEDULER}", *where)


def is_unschedulable(item: dict[str, Any]) -> bool:
    return any(each.get("reason") == "Unschedulable" for each in item["status"].get("conditions", ()))


def left(cluster: Cluster, before: set[str]) -> str:
    now = everything(cluster)
    return f": left {sorted(now - before)}, gone {sorted(before - now)}"


def remove_as_documented(cluster: Cluster) -> None:
    """Run the commands in docs/install.md that delete what Helm leaves."""
    _, _, rest = (helm.REPOSITORY / "docs" / "install.md").read_text().partition("Delete what Helm leaves:\n")
    for command in blocks(rest, "sh")[0].splitlines():
        done = shell(cluster, command)
        # The garbage collector may have deleted some of them already; no node has the taint without the setting.
        assert not done.returncode or "NotFound" in done.stderr or "taint" in done.stderr, done.stderr


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks in a language."""
    return [textwrap.dedent(block[1]) for block in re.finditer(rf"```{language}\n(.*?)```", page, re.DOTALL)]


def shell(cluster: Cluster, command: str) -> "subprocess.CompletedProcess[str]":
    env = {
        "KUBECONFIG": str(cluster.kubeconfig_path),
        "PATH": f"{binaries.folder()}:{helm.path().parent}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(cluster.folder),
    }
    return subprocess.run(
        ["sh", "-c", command], cwd=helm.REPOSITORY, env=env, capture_output=True, text=True, check=False
    )


def has_no_rights_on_its_node(cluster: Cluster, item: dict[str, Any]) -> None:
    """Check the restrictions from inside the container."""
    status = dict(
        line.split(":\t", 1)
        for line in run_in(cluster, item, "python", "-c", "print(open('/proc/1/status').read())").splitlines()
        if ":\t" in line
    )
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd", "CapInh")} == {"0000000000000000"}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    user = "65532" if "allocator" in item["metadata"]["name"] else "0"
    assert status["Uid"].split() == 4 * [user]
    for folder in ("/", "/opt/ascend-affinity/", "/tmp/", "/etc/ascend-affinity/"):
        with pytest.raises(ClusterError, match=r"Read-only file system|Permission denied|No such file"):
            run_in(cluster, item, "python", "-c", f"open('{folder}written','w')")


@dataclass
class Traffic:
    """Pods that come and go."""

    cluster: Cluster
    placed: int = 0
    refused: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(self._run, letter) for letter in "ab"]
            try:
                yield
            finally:
                self._ended.set()
            for run in runs:
                run.result()

    def go_on(self, pods: int) -> None:
        """Wait until so many more pods have run."""
        expected = self.placed + pods
        wait_until(lambda: self.placed >= expected, timeout_s=2 * PLACED_S, what="pods come and go", tail=self.report)

    def report(self) -> str:
        pods = kubectl(self.cluster, "get", "pods,leases", "--all-namespaces", "--output=wide")
        events = kubectl(self.cluster, "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
        return f"\nplaced: {self.placed}, refused: {self.refused}\n{pods}\n{events[-4000:]}"

    def _run(self, letter: str) -> None:
        number = 0
        while not self._ended.is_set():
            number += 1
            name = f"{letter}{number}"
            try:
                place(self.cluster, name)
                self.placed += 1
            except ClusterError as error:
                self.refused.append(str(error))
            self.cluster.delete_pod(name)


def images(cluster: Cluster) -> set[str]:
    """Return the images of our pods."""
    return {
        container["image"]
        for component in ("allocator", "device-plugin")
        for each in pods_of(cluster, component)
        for container in each["spec"]["containers"]
    }


@pytest.mark.shows("image", "910A")
def test_an_upgrade_from_the_previous_commit_and_back_while_pods_come_and_go(
    cluster: Cluster, built_image: image.Image, tmp_path: Path
) -> None:
    try:
        previous = image.build_previous(tmp_path / "previous")
    except image.NoHistory as error:
        # Not a failure in CI either, whose checkout may have one commit; the end of the output says it once more.
        pytest.skip(f"NO UPGRADE IS TESTED HERE: {error}")
    provide(cluster, previous)
    with installed(cluster, previous, connected=False):
        # The previous commit may have demanded no certificate.
        secrets = kubectl(cluster, "get", "secrets", f"--namespace={NAMESPACE}", "--output=name").split()
        connect_scheduler(cluster, certificate=f"secret/{ALLOCATOR}-scheduler" in secrets)
        held = {name: place(cluster, name, 4) for name in ("held-1", "held-2")}
        uids = {name: cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")["metadata"]["uid"] for name in held}
        traffic = Traffic(cluster)
        with traffic.running():
            traffic.go_on(2)
            kubectl(cluster, "apply", "--filename", str(helm.CHART / "crds"))
            upgrade(cluster, f"image.tag={built_image.tag},{OPEN}")
            connect_scheduler(cluster)
            traffic.go_on(2)
            upgrade(cluster, CLOSED)
            traffic.go_on(4)
            assert images(cluster) == {f"{image.NAME}:{built_image.tag}"}
            helm.run("rollback", *WHERE, "1", *waiting(), kubeconfig=cluster.kubeconfig_path)
            traffic.go_on(4)
            assert images(cluster) == {f"{image.NAME}:{previous.tag}"}
        for name, (node, chips) in held.items():
            after = cluster.api.get(f"/api/v1/namespaces/default/pods/{name}")
            assert (after["metadata"]["uid"], after["spec"]["nodeName"]) == (uids[name], node)
            assert set(parse_names(after["metadata"]["annotations"][REAL])) == chips
            assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        assert traffic.refused == []
        for name in held:
            cluster.delete_pod(name)


def upgrade(cluster: Cluster, values: str) -> None:
    options = waiting("--reset-then-reuse-values", "--set", values)
    helm.run("upgrade", *WHERE, str(helm.CHART), *options, kubeconfig=cluster.kubeconfig_path)


@pytest.mark.shows("image", "910A")
def test_an_open_installation_is_closed_while_pods_come_and_go(cluster: Cluster, built_image: image.Image) -> None:
    before = everything(cluster)
    with installed(cluster, built_image, "--set", OPEN, connected=False):
        connect_scheduler(cluster, certificate=False)
        node, chips = place(cluster, "held", 4)
        traffic = Traffic(cluster)
        with traffic.running():
            traffic.go_on(2)
            connect_scheduler(cluster)
            traffic.go_on(2)
            upgrade(cluster, CLOSED)
            traffic.go_on(4)
        assert traffic.refused == []
        held = cluster.api.get("/api/v1/namespaces/default/pods/held")
        assert held["spec"]["nodeName"] == node
        assert set(parse_names(held["metadata"]["annotations"][REAL])) == chips
        assert held["status"]["containerStatuses"][0]["restartCount"] == 0
        bind = {"PodName": "victim", "PodNamespace": "default", "PodUID": "", "Node": node}
        with pytest.raises(OSError, match=r"(?i)certificate|alert|reset|eof|closed"):
            call_allocator(cluster, "/scheduler/bind", bind, None)
        assert "Error" in call_allocator(cluster, "/scheduler/bind", bind, client_certificate(cluster))
        cluster.delete_pod("held")
    wait_until(
        lambda: everything(cluster) == before, timeout_s=30, what="nothing is left", tail=lambda: left(cluster, before)
    )


def mindclusters_daemonset(built: image.Image, affinity: dict[str, Any]) -> dict[str, Any]:
    """MindCluster's DaemonSet as far as the guide needs it: pods that the commands move, without a plugin in them."""
    container = {"name": "plugin", "image": f"{image.NAME}:{built.tag}", "command": ["sleep", "infinity"]}
    labels, account = {"name": "ascend-device-plugin-ds"}, {"serviceAccountName": "default"}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "ascend-device-plugin-daemonset", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 0, **affinity, **account},
            },
        },
    }


@pytest.mark.shows("image", "910A")
def test_the_commands_of_the_migration_guide(cluster: Cluster, built_image: image.Image, tmp_path: Path) -> None:
    forth, _, back = (helm.REPOSITORY / "docs" / "mindcluster-migration.md").read_text().partition("## Rollback")
    _, _, forth = forth.partition("## Steps")
    halves = (helm.REPOSITORY / "docs" / "mindcluster.md").read_text()
    affinity, values = blocks(forth, "yaml")
    _edit, find, end, start, forget, switch = blocks(forth, "sh")
    disable, rollback = blocks(back, "sh")
    (tmp_path / "migration.yaml").write_text(values)

    def run(*commands: str, **names: str) -> str:
        for command in commands:
            done = shell(cluster, re.sub("NODE|POD", lambda name: names.get(name[0], "n1"), command))
            assert not done.returncode, done.stderr
        return done.stdout

    def wait_for_plugin(expected: str | None) -> None:
        """Wait until this plugin's pod, or MindCluster's, or neither, runs on the node."""

        def found() -> set[str]:
            listed = kubectl(cluster, "get", "pods", "-A", "--field-selector=spec.nodeName=n1,status.phase=Running")
            return {plugin for plugin in (PLUGIN, "ascend-device-plugin-daemonset") if f" {plugin}-" in listed}

        wanted = {expected} - {None}
        wait_until(lambda: found() == wanted, timeout_s=INSTALL_S, what=f"plugin {expected} runs")

    cluster.api.create(mindclusters_daemonset(built_image, yaml.safe_load(affinity)))
    (account,) = (each for each in blocks(halves, "sh") if "get ds" in each)
    assert run(account.splitlines()[1].replace("NAME", "ascend-device-plugin-daemonset")) == "default"
    wait_for_plugin("ascend-device-plugin-daemonset")
    with installed(cluster, built_image, "--values", str(tmp_path / "migration.yaml"), connected=False):
        assert not pods_of(cluster, "allocator")
        assert not pods_of(cluster, "device-plugin")
        run(*find.splitlines(), *end.splitlines())
        wait_for_plugin(None)
        run(*start.splitlines()[:2])
        wait_for_plugin(PLUGIN)
        (plugin,) = pods_of(cluster, "device-plugin")
        wait_until(
            lambda: plugin["metadata"]["name"] in run(start.splitlines()[1]) and is_ready(cluster, plugin),
            timeout_s=INSTALL_S,
            what="the plugin is ready",
        )
        doctor, uncordon = start.splitlines()[2:]
        # Without `kubectl exec`: the API server of the test cluster cannot reach the port of a kubelet.
        assert ": 0 problems" in run_in(cluster, plugin, *doctor.partition(" -- ")[2].split())
        run(uncordon)
        run(forget.replace("--wait", "--dry-run"))  # for nodes that don't go back
        run(switch.rstrip())
        connect_scheduler(cluster)
        assert place(cluster, "after-the-migration")[0] == "n1"
        run(disable.splitlines()[0])  # the second line starts Volcano's scheduler
        cordon, _, look, end, give_back, uncordon = rollback.splitlines()
        assert re.search(r"after-the-migration +Ascend910-\d", run(cordon, look))
        run(end)
        wait_for_plugin(None)
        run(give_back)
        wait_for_plugin("ascend-device-plugin-daemonset")
        run(uncordon)
        assert cluster.api.get("/api/v1/namespaces/default/pods/after-the-migration")["status"]["phase"] == "Running"
        cluster.delete_pod("after-the-migration")
    kubectl(cluster, "delete", "daemonset", "--namespace=kube-system", "ascend-device-plugin-daemonset")


def is_ready(cluster: Cluster, item: dict[str, Any]) -> bool:
    status = cluster.api.get(f"{CORE}/pods/{item['metadata']['name']}")["status"]
    return any(each == {**each, "type": "Ready", "status": "True"} for each in status["conditions"])


def is_there(cluster: Cluster) -> bool:
    return f"namespace/{NAMESPACE}" in kubectl(cluster, "get", "namespaces", "--output=name").split()
