"""The real cluster as a context manager, which blocks, needs no event loop and can be used from any thread."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

from tests.cluster import requirements
from tests.cluster.api import Server, close_idle_connections
from tests.cluster.control_plane import ControlPlane
from tests.cluster.errors import ClusterError
from tests.cluster.manifests import extender
from tests.cluster.namespace import Namespace
from tests.cluster.nodes import Node
from tests.cluster.pod_network import PodNetwork, ServiceProxy
from tests.cluster.processes import Process, wait_until

_POD_RUNNING_S: Final = 30.0


class Cluster:
    """A real Kubernetes cluster on this machine, for the duration of a `with` block.

    Its methods block; async tests call them with `asyncio.to_thread`.

    Args:
        nodes: the number of nodes, which are named n1, n2, ...
        authorization_mode: `RBAC` or `AlwaysAllow`.
        extenders: the scheduler's extenders, see `manifests.extender`; None for none.
        pod_backoff_s: initial and maximum backoff of unschedulable pods, in seconds.
        audited: users whose requests the API server writes to `control_plane.audit_log`.
        pod_network: pods have addresses and ServiceAccounts of their own, and Services work; `hostNetwork` works too.
        feature_gates: enabled in the API server besides those of all clusters.
        scheduler_gates: enabled in kube-scheduler.
        apis: versions of APIs that are served although they are off by default.
        detached: outlive this process, until `namespace.detached().close()`.
        say: called with a line when a component has started.

    Attributes:
        keep_logs: set it to keep the logs when the cluster stops, and to print their folder.
        nodes: the nodes in order; `node(name)` returns one by name.
        folder: all files of the cluster; `folder / "log"` has one log per program.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        authorization_mode: str = "RBAC",
        extenders: Sequence[Mapping[str, Any]] | None = None,
        pod_backoff_s: tuple[int, int] = (1, 2),
        audited: Sequence[str] = (),
        pod_network: bool = False,
        feature_gates: Sequence[str] = (),
        scheduler_gates: Sequence[str] = (),
        apis: Sequence[str] = (),
        detached: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.keep_logs = False
        self.nodes: list[Node] = []
        self._names = tuple(f"n{number}" for number in range(1, nodes + 1))
        self._authorization_mode = authorization_mode
        self._extenders = extenders
        self._pod_backoff_s = pod_backoff_s
        self._audited = audited
        self._gates = {"feature_gates": feature_gates, "scheduler_gates": scheduler_gates, "apis": apis}
        self._detached = detached
        self._has_pod_network = pod_network
        self._network: PodNetwork | None = None
        self._service_proxy: ServiceProxy | None = None
        self._say = say
        self._started = time.monotonic()
        self._namespace: Namespace | None = None
        self.control_plane: ControlPlane

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(keep_logs=self.keep_logs or _is_failure(error))

    def start(self) -> None:
        """Start the cluster; return when all nodes are ready. A failure stops what was started.

        Raises:
            ClusterError: this machine cannot run it, or a component did not start; the text shows the end of its log.
        """
        if sentences := requirements.missing():
            raise ClusterError("\n".join(("the real cluster cannot run here:", *sentences)))
        self._started = time.monotonic()
        self._namespace = Namespace.create(detached=self._detached, host_names=self._names)
        try:
            self._start_parts(self._namespace)
        except BaseException as error:
            self.stop(keep_logs=_is_failure(error))
            raise

    def stop(self, *, keep_logs: bool = False) -> None:
        """Kill all programs and clean up; no effect if it is not running."""
        if self._namespace is None:
            return
        folder = self.folder / "log"
        if self._service_proxy is not None:
            self._service_proxy.__exit__()
            self._service_proxy = None
        close_idle_connections()
        self._namespace.close(keep_logs=keep_logs)
        self._namespace = None
        if self._network is not None:
            self._network.close()
            self._network = None
        if keep_logs:
            sys.stderr.write(f"the real cluster's logs are kept in {folder}\n")

    def let_go(self) -> None:
        """Leave a detached cluster running after the end of the `with` block and of this process."""
        self.namespace.let_go()
        self._namespace = None

    @property
    def namespace(self) -> Namespace:
        """The namespaces and the folder of the cluster.

        Raises:
            ClusterError: it is not running.
        """
        if self._namespace is None:
            raise ClusterError("the cluster is not running")
        return self._namespace

    @property
    def folder(self) -> Path:
        return self.namespace.folder

    @property
    def url(self) -> str:
        """Base address of the API server."""
        return self.control_plane.url

    @property
    def ca(self) -> Path:
        """The file of the API server's certificate authority."""
        return self.control_plane.ca

    @property
    def admin_token(self) -> str:
        """The token of the administrator (group system:masters)."""
        return self.control_plane.admin_token

    @property
    def kubeconfig_path(self) -> Path:
        """The kubeconfig file of the administrator."""
        return self.control_plane.kubeconfig_path

    @property
    def api(self) -> Server:
        """The API server, as the administrator: `get`, `create`, `patch`, `delete`, `wait_for`."""
        return self.control_plane.api

    def server(self, token: str) -> Server:
        """Return the API server, as the user of a token."""
        return Server(self.url, token, self.ca)

    def node(self, name: str) -> Node:
        """Return a node by name."""
        return next(node for node in self.nodes if node.name == name)

    def process(self, name: str, command: Sequence[str], **environment: str) -> Process:
        """Return a program in the cluster's namespaces, not started yet; it ends with the cluster at the latest."""
        return self.namespace.process(name, command, environment=environment)

    def restart_scheduler(
        self, extender_url: str | None = None, *, extenders: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Restart the scheduler: with one extender in the default configuration, with `extenders`, or without any."""
        self.control_plane.start_scheduler([extender(extender_url)] if extender_url else extenders)

    def service_account_token(self, name: str, *, namespace: str = "default", pod: str = "", node: str = "") -> str:
        """Return a token of a ServiceAccount, which has the rights of that account.

        Args:
            name: the name of the ServiceAccount.
            namespace: its namespace.
            pod: a pod of the ServiceAccount to which the token is bound, as a kubelet gives it to the pod: the token
                then names the node of the pod too.
            node: a node to which the token is bound, which it then names.

        Raises:
            HTTPError: the ServiceAccount, the pod or the node does not exist.
        """
        spec: dict[str, Any] = {}
        if pod or node:
            kind, path = ("Pod", f"namespaces/{quote(namespace)}/pods/{pod}") if pod else ("Node", f"nodes/{node}")
            uid = self.api.get(f"/api/v1/{path}")["metadata"]["uid"]
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": kind, "name": pod or node, "uid": uid}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{quote(namespace)}/serviceaccounts/{quote(name)}/token"
        answer = json.loads(self.api.request("POST", path, request))
        return str(answer["status"]["token"])

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """Write a kubeconfig file for the user of a token."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(json.dumps(self.control_plane.kubeconfig(token)))
        return path

    def wait_for_pod(
        self, name: str, phase: str = "Running", *, namespace: str = "default", timeout_s: float = _POD_RUNNING_S
    ) -> dict[str, Any]:
        """Wait until a pod is in a phase; return the pod.

        Raises:
            ClusterError: it was not in time; the text shows the pod.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"
        pod: dict[str, Any] = self.api.wait_for(
            path,
            lambda pod: pod["status"].get("phase") == phase,
            timeout_s=timeout_s,
            what=f"pod {namespace}/{name} is {phase}",
        )
        return pod

    def delete_pod(self, name: str, *, namespace: str = "default", timeout_s: float = _POD_RUNNING_S) -> None:
        """Delete a pod, and wait until its kubelet has stopped it.

        Raises:
            ClusterError: it was not gone in time.
        """
        path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"
        self.api.delete(path)
        wait_until(lambda: not self.api.answers(path), timeout_s=timeout_s, what=f"pod {namespace}/{name} is gone")

    def _start_parts(self, namespace: Namespace) -> None:
        if self._has_pod_network:
            self._network = PodNetwork.create()
        self.control_plane = ControlPlane(
            namespace,
            network=self._network,
            authorization_mode=self._authorization_mode,
            pod_backoff_s=self._pod_backoff_s,
            audited=self._audited,
            **self._gates,
        )
        self.nodes = [Node(name, self.control_plane) for name in self._names]
        with ThreadPoolExecutor() as pool:
            try:
                self._start_in_parallel(pool)
            except BaseException as error:
                namespace.close(keep_logs=_is_failure(error))  # so that threads that wait for a program see it end
                raise

    def _start_in_parallel(self, pool: ThreadPoolExecutor) -> None:
        api = pool.submit(self.control_plane.start_api)
        runtimes = list(pool.map(lambda node: node.start_containerd(), self.nodes))
        self._say_up(f"{len(runtimes)} containerd")
        api.result()
        if self._network is not None:
            self._service_proxy = ServiceProxy(self._network, self.api).__enter__()
        self._say_up(f"etcd and kube-apiserver at {self.url}")
        scheduler = pool.submit(self.control_plane.start_scheduler, self._extenders)
        kubelets = list(pool.map(lambda node: node.start_kubelet(), self.nodes))
        self._say_up(f"{len(kubelets)} kubelet, nodes ready")
        scheduler.result()
        self._say_up("kube-scheduler")

    def _say_up(self, part: str) -> None:
        self._say(f"[{time.monotonic() - self._started:5.1f} s] up: {part}")


def _is_failure(error: BaseException | None) -> bool:
    """Whether to keep the logs; not after Ctrl-C. (The error of a failed test is a BaseException but no Exception.)"""
    return error is not None and not isinstance(error, KeyboardInterrupt | SystemExit)
