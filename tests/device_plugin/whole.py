"""A node of the sandbox with the whole plugin in this process."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, ChipSet, chip_set, parse_chip_name, parse_names
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from device_plugin.app import Plugin
from device_plugin.settings import Settings
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest
from tests.device_plugin.api import NODE, running, until


class Whole:
    """A cluster of one node; the test is the allocator."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.watch = Reflector(self.client, PODS)

    @property
    def node(self) -> SandboxNode:
        return self.cluster.nodes[0]

    @property
    def pods(self) -> Iterable[Pod]:
        """The pods there are now."""
        return self.watch.objects.values()

    def find(self, name: str) -> Pod | None:
        return self.watch.objects.get(f"default/{name}")

    def settings(self, **changes: Any) -> Settings:
        return Settings(
            **{
                "node_name": NODE,
                "kubeconfig": str(self.cluster.write_kubeconfig("plugin")),
                "device_plugin_dir": self.node.kubelet.socket_dir,
                "pod_resources_socket": self.node.kubelet.pod_resources_socket,
                "kubelet_pods_url": self.node.kubelet.pods_url,
                "driver": "simulated",
                "simulated_state": self.node.state_file,
                "device_root": self.node.device_root,
                "scan_period_s": 0.05,
                "injection": "both",
                "http_address": "127.0.0.1:0",
                **changes,
            }
        )

    @asynccontextmanager
    async def plugin(self, **changes: Any) -> AsyncIterator[Plugin]:
        """A plugin that runs, registered with the kubelet."""
        plugin = Plugin(self.settings(**changes))
        async with running(plugin.run()) as task:
            async with asyncio.timeout(20.0):
                await until(lambda: task.done() or (_is_watched(plugin) and self._offers_chips()))
            if not task.done():
                yield plugin

    def _offers_chips(self) -> bool:
        kubelet = self.node.kubelet
        return set(kubelet.devices(RESOURCE).values()) == {"Healthy"} and kubelet.allocatable(RESOURCE) == 8

    async def bind(self, name: str, *chips: int, predicate_time: int = 1, grace_s: int = 0) -> Pod:
        """Create a pod and bind it with its chips in one step."""
        body = pod_manifest(name, len(chips), terminationGracePeriodSeconds=grace_s)
        pod = await self.client.create(PODS, body, "default")
        annotations = Grant(chips, predicate_time).annotations()
        await self.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=annotations)
        return pod

    async def claimed(self, name: str) -> Pod:
        """Wait until a pod runs and carries its claim."""

        def there() -> bool:
            pod = self.find(name)
            return pod is not None and pod.status.phase == "Running" and REAL in pod.metadata.annotations

        await until(there)
        pod = self.find(name)
        assert pod is not None
        return pod

    def ledger(self, name: str) -> ChipSet:
        """What the kubelet's ledger has for a pod."""
        return chip_set(map(parse_chip_name, self.node.kubelet.ledger().get((f"default/{name}", "main"), ())))

    def visible(self, name: str) -> tuple[int, ...]:
        """What the container's environment shows it, in order."""
        text = self.node.kubelet.container(f"default/{name}", "main").env["ASCEND_VISIBLE_DEVICES"]
        return tuple(map(int, text.split(",")))


def _is_watched(plugin: Plugin) -> bool:
    # What the kubelet offers may still be what an earlier plugin told it.
    return bool(plugin.metrics.registry.get_sample_value("ascend_dp_last_list_sent_timestamp_seconds"))


def written(pod: Pod, key: str) -> ChipSet:
    """The chips of an annotation."""
    return chip_set(parse_names(pod.metadata.annotations[key]))


def check_hand_over(whole: Whole, pod: Pod) -> ChipSet:
    """Annotation, claim, kubelet and container say the same of a running pod's chips."""
    chips = written(pod, ALLOCATED)
    assert written(pod, REAL) == written(pod, KUBELET_IDS) == chips, pod.metadata.annotations
    assert pod.metadata.annotations[PREDICATE_TIME] == str(CLAIMED)
    assert whole.ledger(pod.name) == chips
    assert whole.visible(pod.name) == parse_names(pod.metadata.annotations[ALLOCATED])
    return chips


@asynccontextmanager
async def whole_node(folder: Path, *, seed: int = 1) -> AsyncIterator[Whole]:
    """A cluster with one node, without a plugin."""
    async with SandboxCluster(folder, (NODE,), seed=seed) as cluster:
        whole = Whole(cluster)
        async with running(whole.watch.run()):
            await whole.watch.synced.wait()
            yield whole
