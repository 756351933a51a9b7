"""A node with a real kubelet and the device plugin, as in the reference's measurements: the bench binds the pods."""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from ascend.annotations import REAL, Grant
from ascend.chips import ChipSet
from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import InvalidReport
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, ConfigMap, Node, Pod
from tests.bench.observations import Observations, watching
from tests.bench.requests import AuditLog
from tests.cluster.cluster import Cluster
from tests.conformance.chips import Chips
from tests.conformance.node import PluginNode, ServiceAccount

ACCOUNT: Final = "device-plugin"
USER: Final = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"


@dataclass(frozen=True, slots=True)
class PluginRig:
    """The node, and watches of its objects.

    Attributes:
        node: kubelet, chips and plugin.
        client: a client of the API server.
        nodes: a watch of Nodes.
        reports: a watch of ConfigMaps.
        pods: a watch of pods.
        audit: the plugin's requests to the API server.
    """

    node: PluginNode
    client: KubeClient
    nodes: Observations[Node]
    reports: Observations[ConfigMap]
    pods: Observations[Pod]
    audit: AuditLog

    def allocatable(self, count: int) -> asyncio.Future[float]:
        """When the Node next has this number of allocatable chips."""
        return self.nodes.when(lambda each, _gone: each.name == self.node.node.name and each.allocatable_chips == count)

    def reported(self, expected: Callable[[ChipSet, ChipSet], bool]) -> asyncio.Future[float]:
        """When the ConfigMap next has free and unhealthy chips as expected."""
        name = config_map_name(self.node.node.name)

        def is_so(each: ConfigMap, gone: bool) -> bool:  # noqa: FBT001 - called by position
            if each.name != name or gone:
                return False
            try:
                report = decode_report(each.data)
            except InvalidReport:
                return False
            return expected(report.free, report.unhealthy)

        return self.reports.when(is_so)

    async def bind(self, name: str, *chips: int) -> None:
        """Bind a pod with its chips."""
        pod = await self.client.get(PODS, name, "default")
        grant = Grant(chips, time.time_ns()).annotations()
        await self.client.bind(namespace="default", name=name, uid=pod.uid, node=self.node.node.name, annotations=grant)

    def claimed(self, name: str) -> asyncio.Future[float]:
        """When the pod next has AscendReal."""
        return self.pods.when(lambda each, _gone: each.name == name and REAL in each.metadata.annotations)

    def runs(self, name: str) -> asyncio.Future[float]:
        """When the pod next is Running."""
        return self.pods.when(lambda each, _gone: each.name == name and each.status.phase == "Running")

    def registered_s(self, after_s: float) -> float | None:
        """When the plugin last registered according to its log; None if not after this time (both perf_counter)."""
        to_perf_counter = time.perf_counter() - time.time()
        for line in reversed(self.node.plugin.process.log.read_text().splitlines()):
            if '"event": "registered"' in line:
                entry: dict[str, Any] = json.loads(line)
                moment_s = datetime.fromisoformat(entry["timestamp"]).timestamp() + to_perf_counter
                return moment_s if moment_s > after_s else None
        return None


@asynccontextmanager
async def plugin_rig() -> AsyncIterator[PluginRig]:
    """A cluster of one node; its plugin is not started yet."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(1, audited=[USER])
        await asyncio.to_thread(cluster.start)
        stack.push_async_callback(asyncio.to_thread, cluster.stop)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        node = cluster.nodes[0]
        account = await asyncio.to_thread(_account, cluster, folder / "account")
        made = await asyncio.to_thread(PluginNode, cluster, node, Chips(folder), account)
        client = await stack.enter_async_context(await KubeClient.connect(str(cluster.kubeconfig_path)))
        yield PluginRig(
            made,
            client,
            await stack.enter_async_context(watching(client, NODES)),
            await stack.enter_async_context(watching(client, CONFIG_MAPS, NAMESPACE)),
            await stack.enter_async_context(watching(client, PODS, "default")),
            AuditLog(cluster.control_plane.audit_log),
        )


def _account(cluster: Cluster, folder: Path) -> ServiceAccount:
    """Create the plugin's ServiceAccount, as in its pod, so that its requests can be distinguished."""
    metadata = {"name": ACCOUNT, "namespace": NAMESPACE}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    cluster.api.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}],
        }
    )
    folder.mkdir()
    (folder / "token").write_text(cluster.service_account_token(ACCOUNT, namespace=NAMESPACE))
    (folder / "ca.crt").write_bytes(cluster.ca.read_bytes())
    return ServiceAccount(folder, cluster.url)
