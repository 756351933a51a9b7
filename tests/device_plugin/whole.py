"""A sandbox node with the whole plugin in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ascend.annotations import ALLOCATED, CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, ChipSet, chip_set, parse_chip_name, parse_names
from ascend.daemon.settings import fixed_settings
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.kube.objects import CONFIG_MAPS, EVENTS, PODS, Pod
from ascend.kube.reflector import Reflector
from ascend.slices import ContainerKind, ContainerRequest
from device_plugin.app import Plugin
from device_plugin.settings import Settings
from sandbox.cluster import SandboxCluster, SandboxNode, pod_manifest
from tests.device_plugin.api import NODE, running, sample, until


def as_given(settings: Settings) -> dict[str, object]:
    """Return settings as a file has them."""
    found = asdict(settings).items()
    return {name: str(value) if isinstance(value, Path) else value for name, value in found if value is not None}


class Whole:
    """A cluster of one node; the test plays the allocator."""

    def __init__(self, cluster: SandboxCluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self.watch = Reflector(self.client, PODS)

    @property
    def node(self) -> SandboxNode:
        return self.cluster.nodes[0]

    @property
    def pods(self) -> Iterable[Pod]:
        """The pods of the cluster."""
        return self.watch.objects.values()

    def find(self, name: str) -> Pod | None:
        return self.watch.objects.get(f"default/{name}")

    def settings(self, **changes: Any) -> Settings:
        return fixed_settings(
            Settings,
            None,
            {
                "node_name": NODE,
                "kubeconfig": str(self.cluster.write_kubeconfig("plugin")),
                "device_plugin_dir": self.node.kubelet.socket_dir,
                "pod_resources_socket": self.node.kubelet.pod_resources_socket,
                "kubelet_pods_url": self.node.kubelet.pods_url,
                "driver": "simulated",
                "simulated_state": self.node.state_file,
                "device_root": self.node.device_root,
                "scan_period_s": 0.2,
                "injection": "both",
                "http_address": "127.0.0.1:0",
                **changes,
            },
        )

    @asynccontextmanager
    async def plugin(self, offers: ChipSet = 0xFF, /, **changes: Any) -> AsyncIterator[Plugin]:
        """A running plugin, registered with the kubelet, that offers these chips."""
        plugin = Plugin(self.settings(**changes))
        async with running(plugin.run()) as task:
            async with asyncio.timeout(20.0):
                await until(lambda: task.done() or (_is_watched(plugin) and self.offers_chips(offers)))
            if not task.done():
                yield plugin

    def offers_chips(self, chips: ChipSet = 0xFF) -> bool:
        """Whether the kubelet shows exactly these chips as healthy, and its Node as many; by default all."""
        kubelet = self.node.kubelet
        healthy = chip_set(
            parse_chip_name(each) for each, health in kubelet.devices(RESOURCE).items() if health == "Healthy"
        )
        return healthy == chips and kubelet.allocatable(RESOURCE) == chips.bit_count()

    async def bind(
        self, name: str, *chips: int, predicate_time: int = 1, grace_s: int = 0, asks: Sequence[ContainerRequest] = ()
    ) -> Pod:
        """Create a pod and bind it with its chips in one step; by default one container requests all of them."""
        body = pod_manifest(name, len(chips), terminationGracePeriodSeconds=grace_s)
        if asks:
            body["spec"] |= containers(asks)
        pod = await self.client.create(PODS, body, "default")
        annotations = Grant(chips, predicate_time).annotations()
        await self.client.bind(namespace="default", name=name, uid=pod.uid, node=NODE, annotations=annotations)
        return pod

    async def claimed(self, name: str) -> Pod:
        """Wait until a pod runs and has its claim."""

        def there() -> bool:
            pod = self.find(name)
            return pod is not None and pod.status.phase == "Running" and REAL in pod.metadata.annotations

        await until(there)
        pod = self.find(name)
        assert pod is not None
        return pod

    async def failure(self, name: str) -> str:
        """Wait until a pod is refused; return the sentence."""
        await until(lambda: (found := self.find(name)) is not None and found.status.phase == "Failed")
        pod = self.find(name)
        assert pod is not None
        return pod.status.message

    async def report(self) -> DeviceReport:
        """What the plugin reports of its node."""
        return decode_report((await self.client.get(CONFIG_MAPS, config_map_name(NODE), NAMESPACE)).data)

    async def notes(self, reason: str) -> list[str]:
        """What the Events with a reason say."""
        answer = await self.client.request("GET", EVENTS.path())
        return [each["note"] for each in json.loads(answer)["items"] if each["reason"] == reason]

    async def annotations(self, name: str) -> dict[str, str]:
        """All annotations of a pod; the programs keep only those that they read."""
        answer = await self.client.request("GET", PODS.path(namespace="default", name=name))
        return dict(json.loads(answer)["metadata"]["annotations"])

    def devices(self, name: str) -> set[str]:
        """The devices of a pod in the kubelet's ledger, of any resource."""
        return set(self.node.kubelet.ledger().get((f"default/{name}", "main"), ()))

    def ledger(self, name: str, container: str = "main") -> ChipSet:
        """The chips of a container in the kubelet's ledger."""
        return chip_set(map(parse_chip_name, self.node.kubelet.ledger().get((f"default/{name}", container), ())))

    def visible(self, name: str, container: str = "main") -> tuple[int, ...]:
        """The chips in the container's environment, in order."""
        text = self.node.kubelet.container(f"default/{name}", container).env["ASCEND_VISIBLE_DEVICES"]
        return tuple(map(int, text.split(",")))


def _is_watched(plugin: Plugin) -> bool:
    # The kubelet may still offer what an earlier plugin sent.
    return bool(sample(plugin.metrics, "ascend_dp_last_list_sent_timestamp_seconds"))


def written(pod: Pod, key: str) -> ChipSet:
    """The chips in an annotation."""
    return chip_set(parse_names(pod.metadata.annotations[key]))


def check_hand_over(whole: Whole, pod: Pod) -> ChipSet:
    """Check that annotation, claim, kubelet and containers of a running pod have the same chips."""
    chips = parse_names(pod.metadata.annotations[ALLOCATED])
    assert written(pod, REAL) == written(pod, KUBELET_IDS) == chip_set(chips), pod.metadata.annotations
    assert pod.metadata.annotations[PREDICATE_TIME] == str(CLAIMED)
    kept = given = 0
    for ask in pod.container_requests:
        held = whole.ledger(pod.name, ask.container)
        assert held.bit_count() == ask.count
        assert whole.visible(pod.name, ask.container) == tuple(chip for chip in chips if held >> chip & 1)
        assert not held & kept
        kept |= held if ask.keeps else 0
        given |= held
    assert given == chip_set(chips)
    return given


def containers(asks: Sequence[ContainerRequest]) -> dict[str, Any]:
    """The part of a pod's spec with these requests."""

    def container(ask: ContainerRequest) -> dict[str, Any]:
        policy = {"restartPolicy": "Always"} if ask.kind == "sidecar" else {}
        return {"name": ask.container, "image": "busybox", "resources": {"limits": {RESOURCE: str(ask.count)}}} | policy

    spec = {"containers": [container(ask) for ask in asks if ask.kind == "app"]}
    if first := [container(ask) for ask in asks if ask.kind != "app"]:
        spec["initContainers"] = first
    if not spec["containers"]:
        spec["containers"] = [{"name": "idle", "image": "busybox"}]
    return spec


def asking(text: str) -> tuple[ContainerRequest, ...]:
    """Parse requests: ``i4 s1 a2`` is an init container with 4 chips, a sidecar with 1 and an app container with 2."""
    kinds: dict[str, ContainerKind] = {"i": "init", "s": "sidecar", "a": "app"}
    return tuple(
        ContainerRequest(f"{kinds[each[0]]}-{number}", kinds[each[0]], int(each[1:]))
        for number, each in enumerate(text.split())
    )


@asynccontextmanager
async def whole_node(folder: Path, *, seed: int = 1, reregistration_race: bool = True) -> AsyncIterator[Whole]:
    """A cluster of one node, without a plugin."""
    async with SandboxCluster(folder, (NODE,), seed=seed, reregistration_race=reregistration_race) as cluster:
        whole = Whole(cluster)
        async with running(whole.watch.run()):
            await whole.watch.synced.wait()
            yield whole
