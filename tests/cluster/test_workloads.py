"""The real cluster runs real containers with devices, a real device manager and a real scheduler."""

import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as messages
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from tests.cluster.api import HTTPError, Server
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import STAY, pod
from tests.cluster.nodes import KUBELET_FOLDER, Node

pytestmark = [pytest.mark.real, pytest.mark.long]

RESOURCE = "huawei.com/TestChip"


def test_environment_output_and_devices_of_a_running_pod_can_be_read(cluster: Cluster, kube_namespace: str) -> None:
    command = ["sh", "-c", f"echo hello from $0; {STAY}", "inside"]
    cluster.api.create(pod("p", command=command, namespace=kube_namespace))
    node = cluster.node(cluster.wait_for_pod("p", namespace=kube_namespace)["spec"]["nodeName"])
    node.wait_for_output("p", "hello from inside\n", namespace=kube_namespace)
    assert "PATH=/bin" in node.exec("p", ["env"], namespace=kube_namespace).splitlines()
    assert "null" in node.exec("p", ["ls", "/dev"], namespace=kube_namespace).split()


def test_a_command_that_fails_inside_a_container_is_an_error(cluster: Cluster, kube_namespace: str) -> None:
    cluster.api.create(pod("p", namespace=kube_namespace, node="n1"))
    cluster.wait_for_pod("p", namespace=kube_namespace)
    with pytest.raises(HTTPError, match="exited with 1: ls: /nowhere"):
        cluster.node("n1").exec("p", ["ls", "/nowhere"], namespace=kube_namespace)


def test_a_device_plugin_serves_its_node_only_and_containers_get_devices(cluster: Cluster, kube_namespace: str) -> None:
    first, second = cluster.nodes
    devices = first.make_device_nodes(["davinci0", "davinci1"])
    with _plugin(first, devices):
        cluster.api.wait_for(
            "/api/v1/nodes/n1",
            lambda node: node["status"]["allocatable"].get(RESOURCE) == "2",
            timeout_s=20,
            what="n1 has two allocatable chips",
        )
        assert RESOURCE not in cluster.api.get("/api/v1/nodes/n2")["status"]["allocatable"]
        cluster.api.create(pod("p", 2, resource=RESOURCE, namespace=kube_namespace))
        assert cluster.wait_for_pod("p", namespace=kube_namespace)["spec"]["nodeName"] == "n1"
        assert {"davinci0", "davinci1"} <= set(first.exec("p", ["ls", "/dev"], namespace=kube_namespace).split())
        assert "GRANTED=davinci0,davinci1" in first.exec("p", ["env"], namespace=kube_namespace).split()
    assert not Path("/dev/davinci0").exists()
    assert first.pod_resources_socket.is_socket()
    assert second.pod_resources_socket.is_socket()
    assert not (KUBELET_FOLDER / "device-plugins" / "test.sock").exists()  # the host has its own folder


def test_a_container_survives_the_end_of_its_kubelet(cluster: Cluster, kube_namespace: str) -> None:
    cluster.api.create(pod("p", namespace=kube_namespace, node="n1"))
    before = cluster.wait_for_pod("p", namespace=kube_namespace)
    node = cluster.node("n1")
    kubelet_before = node.kubelet.pid
    node.kubelet.kill()
    assert not node.kubelet.alive
    node.start_kubelet()
    assert node.kubelet.pid != kubelet_before
    after = cluster.wait_for_pod("p", namespace=kube_namespace)
    assert _container(after)["containerID"] == _container(before)["containerID"]
    assert _container(after)["restartCount"] == 0
    assert node.exec("p", ["echo", "alive"], namespace=kube_namespace) == "alive\n"


def test_a_paused_kubelet_answers_after_it_is_resumed(cluster: Cluster) -> None:
    node = cluster.node("n2")
    with node.kubelet.paused():
        assert "\nState:\tT" in Path(f"/proc/{node.kubelet.pid}/status").read_text()
        assert node.kubelet.alive
    node.kubelet.wait_until(lambda: node.server.answers("/healthz"), timeout_s=10)


def test_the_scheduler_uses_the_extender_it_is_restarted_with(cluster: Cluster, kube_namespace: str) -> None:
    with _extender_that_allows("n2") as url:
        cluster.restart_scheduler(
            extenders=[{"urlPrefix": url, "filterVerb": "filter", "nodeCacheCapable": True}],
        )
        try:
            cluster.api.create(pod("p", namespace=kube_namespace))
            assert cluster.wait_for_pod("p", namespace=kube_namespace)["spec"]["nodeName"] == "n2"
        finally:
            cluster.restart_scheduler()


def test_a_service_account_has_no_rights_by_default(cluster: Cluster, kube_namespace: str) -> None:
    token = _service_account(cluster, kube_namespace)
    with pytest.raises(HTTPError, match=f"system:serviceaccount:{kube_namespace}:a") as refused:
        cluster.server(token).get("/api/v1/nodes")
    assert refused.value.status == 403


def test_a_kubelet_lists_its_pods_only_to_authorized_users(cluster: Cluster, kube_namespace: str) -> None:
    kubelet = Server(cluster.node("n1").kubelet_url, _service_account(cluster, kube_namespace))
    with pytest.raises(HTTPError, match="403"):
        kubelet.get("/pods")
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": kube_namespace}}
    rules = [{"apiGroups": [""], "resources": ["nodes/pods"], "verbs": ["get"]}]
    cluster.api.create(rbac | {"kind": "ClusterRole", "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": kube_namespace}
    subject = {"kind": "ServiceAccount", "name": "a", "namespace": kube_namespace}
    cluster.api.create(rbac | {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})
    kubelet.wait_for("/pods", lambda pods: pods["kind"] == "PodList", timeout_s=10, what="the kubelet lists its pods")


def test_output_can_be_read_through_the_api_server(cluster: Cluster, kube_namespace: str) -> None:
    cluster.api.create(pod("p", command=["echo", "done"], namespace=kube_namespace))
    cluster.wait_for_pod("p", "Succeeded", namespace=kube_namespace)
    assert cluster.api.request("GET", f"/api/v1/namespaces/{kube_namespace}/pods/p/log") == b"done\n"


def _service_account(cluster: Cluster, namespace: str) -> str:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": namespace}}
    cluster.api.create(account)
    return cluster.service_account_token("a", namespace=namespace)


def _container(item: dict[str, Any]) -> dict[str, Any]:
    (container,) = item["status"]["containerStatuses"]
    return dict(container)


# ruff: noqa: N802, ARG002 - gRPC and http.server prescribe the names and arguments of the methods below


class _Plugin(services.DevicePluginServicer):
    """A plugin with healthy devices, which it allocates as device nodes and an environment variable."""

    def __init__(self, devices: Path) -> None:
        self._devices = devices
        self._done = threading.Event()

    def end_streams(self) -> None:
        self._done.set()

    def GetDevicePluginOptions(self, request: messages.Empty, context: Any) -> messages.DevicePluginOptions:
        return messages.DevicePluginOptions()

    def ListAndWatch(self, request: messages.Empty, context: Any) -> Iterator[messages.ListAndWatchResponse]:
        names = sorted(path.name for path in self._devices.iterdir())
        yield messages.ListAndWatchResponse(devices=[messages.Device(ID=name, health="Healthy") for name in names])
        self._done.wait()

    def GetPreferredAllocation(self, request: Any, context: Any) -> messages.PreferredAllocationResponse:
        return messages.PreferredAllocationResponse()

    def Allocate(self, request: messages.AllocateRequest, context: Any) -> messages.AllocateResponse:
        return messages.AllocateResponse(
            container_responses=[
                messages.ContainerAllocateResponse(
                    envs={"GRANTED": ",".join(sorted(one.devices_ids))},
                    devices=[
                        messages.DeviceSpec(
                            container_path=f"/dev/{name}", host_path=str(self._devices / name), permissions="rw"
                        )
                        for name in one.devices_ids
                    ],
                )
                for one in request.container_requests
            ]
        )

    def PreStartContainer(self, request: Any, context: Any) -> messages.PreStartContainerResponse:
        return messages.PreStartContainerResponse()


@contextlib.contextmanager
def _plugin(node: Node, devices: Path) -> Iterator[None]:
    plugin = _Plugin(devices)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix:{node.device_plugin_dir / 'test.sock'}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{node.device_plugin_dir / 'kubelet.sock'}") as channel:
            request = messages.RegisterRequest(version="v1beta1", endpoint="test.sock", resource_name=RESOURCE)
            services.RegistrationStub(channel).Register(request, timeout=10)
        yield
    finally:
        plugin.end_streams()
        server.stop(grace=None).wait()


@contextlib.contextmanager
def _extender_that_allows(node: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            args = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"NodeNames": [name for name in args["NodeNames"] if name == node], "FailedNodes": {}}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
