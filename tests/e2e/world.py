"""A cluster with both programs in it, as the scenarios see it: the sandbox and the real one look alike.

The programs are the installed console scripts, as processes of their own, so that they can be killed.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from ascend.annotations import KUBELET_IDS
from ascend.chips import RESOURCE, chip_set, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.errors import Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, EVENTS, NODES, PODS, Node, Pod
from device_plugin.driver.simulated import SimulatedServer
from device_plugin.kubelet.pod_resources import read_ledger
from tests.e2e.proxy import ApiProxy

R = TypeVar("R")

PATIENCE_S = 40.0
DEVICE_NODES = ("davinci_manager", *(f"davinci{chip_id}" for chip_id in range(8)))


@dataclass(frozen=True, slots=True)
class ContainerView:
    """What a container sees: its environment, and the davinci nodes below /dev."""

    env: Mapping[str, str]
    devices: frozenset[str]


class Program(ABC):
    """One of our programs."""

    @abstractmethod
    async def start(self) -> None:
        """Start it."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it at once (SIGKILL)."""

    @abstractmethod
    async def stop(self) -> None:
        """Ask it to end, and wait."""


class WorldNode(ABC):
    """A node: its kubelet, its device plugin, its simulated chips."""

    name: str
    plugin: Program
    plugin_url: str
    state_file: Path
    pod_resources_socket: Path

    @abstractmethod
    async def restart_kubelet(self) -> None:
        """Restart the kubelet; its containers stay."""

    @abstractmethod
    async def container(self, pod: Pod) -> ContainerView:
        """What the pod's container sees."""

    async def ledger(self) -> dict[str, tuple[int, ...]]:
        """The kubelet's own ledger: ``namespace/name`` to physical ids."""
        pods = (await read_ledger(self.pod_resources_socket)).pods
        return {key: tuple(sorted(chip for ids in held.values() for chip in ids)) for key, held in pods.items() if held}

    def edit_chip(self, chip_id: int, **fields: Any) -> None:
        """Change a simulated chip while the plugin runs."""
        server = msgspec.json.decode(self.state_file.read_bytes(), type=SimulatedServer)
        for name, value in fields.items():
            setattr(server.chips[chip_id], name, value)
        server.save(self.state_file)


class World(ABC):
    """A cluster with both programs in it.

    Attributes:
        client: the API server, as an administrator.
        api: the proxy the programs talk to it through.
        nodes: the nodes.
        allocator: the allocator.
        chips_per_node: how many chips each node has.
    """

    client: KubeClient
    api: ApiProxy
    nodes: list[WorldNode]
    allocator: Program
    allocator_url: str
    chips_per_node: int = 8

    @abstractmethod
    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        """A pod with one container that sleeps."""

    def node(self, name: str) -> WorldNode:
        """The node of that name."""
        return next(node for node in self.nodes if node.name == name)

    async def create(self, name: str, chips: int, *, annotations: Mapping[str, str] | None = None, **spec: Any) -> Pod:
        """Create a pod that asks for chips."""
        manifest = self.pod_manifest(name, chips, **spec)
        manifest["metadata"]["annotations"] = dict(annotations or {})
        return await self.client.create(PODS, manifest, "default")

    async def delete(self, *names: str) -> None:
        """Delete pods and wait until their kubelets have ended them."""
        for name in names:
            await self.client.delete(PODS, name, "default")
        for name in names:
            await self.eventually(lambda name=name: self._gone(name), f"pod {name} is gone")  # type: ignore[misc]  # bound

    async def _gone(self, name: str) -> bool:
        try:
            await self.client.get(PODS, name, "default")
        except NotFound:
            return True
        return False

    async def pod(self, name: str) -> Pod:
        """The pod as it is now."""
        return await self.client.get(PODS, name, "default")

    async def pods(self) -> list[Pod]:
        """All pods."""
        return await self.client.list_objects(PODS, "default")

    async def running(self, name: str) -> Pod:
        """The pod once it runs and is claimed."""

        async def check() -> Pod | None:
            pod = await self.pod(name)
            assert pod.status.phase != "Failed", f"{name} failed: {pod.status.reason}: {pod.status.message}"
            claimed = KUBELET_IDS in pod.metadata.annotations
            return pod if pod.status.phase == "Running" and claimed else None

        return await self.eventually(check, f"pod {name} runs and is claimed")

    async def failed(self, name: str) -> Pod:
        """The pod once its kubelet has refused it."""

        async def check() -> Pod | None:
            pod = await self.pod(name)
            return pod if pod.status.phase == "Failed" else None

        return await self.eventually(check, f"pod {name} has failed")

    async def pending_because(self, name: str) -> str:
        """Why the pod is pending, as an Event tells."""
        pod = await self.pod(name)

        async def check() -> str | None:
            events = json.loads(await self.client.request("GET", EVENTS.path(namespace="default")))["items"]
            notes = [
                str(event["note"])
                for event in events
                if event["regarding"].get("uid") == pod.uid and event["reason"] == "FailedScheduling"
            ]
            return notes[-1] if notes else None

        return await self.eventually(check, f"an Event says why pod {name} is pending")

    async def report(self, node: str) -> DeviceReport:
        """The node's report."""
        return decode_report((await self.client.get(CONFIG_MAPS, config_map_name(node), NAMESPACE)).data)

    async def node_object(self, node: str) -> Node:
        """The Node."""
        return await self.client.get(NODES, node)

    async def allocatable(self, node: str) -> int:
        """How many chips the kubelet offers; 0 while the resource is not registered."""
        return (await self.node_object(node)).allocatable_chips or 0

    async def bind(self, pod: Pod, node: str, *chips: int, predicate_time: int) -> None:
        """Bind a pod as another scheduler would."""
        names = ",".join(f"Ascend910-{chip_id}" for chip_id in chips)
        annotations = {RESOURCE: names, "predicate-time": str(predicate_time)}
        await self.client.bind(namespace="default", name=pod.name, uid=pod.uid, node=node, annotations=annotations)

    async def eventually(self, check: Callable[[], Awaitable[R | None]], what: str) -> R:
        """Wait until a check gives something true; its value.

        Raises:
            AssertionError: not in time.
        """
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            if found := await check():
                return found
            assert time.monotonic() < deadline_s, f"it did not come true within {PATIENCE_S:.0f} s that {what}"
            await asyncio.sleep(0.03)

    async def all_ready(self) -> None:
        """Wait until both programs do their work: every node offers its chips and the allocator knows them."""
        for node in self.nodes:
            await self.eventually(lambda node=node: is_ready(node.plugin_url), f"{node.name}'s plugin is ready")  # type: ignore[misc]
            await self.eventually(lambda node=node: self._offers(node), f"{node.name} offers its chips")  # type: ignore[misc]
        await self.eventually(self.allocator_ready, "the allocator is ready")

    async def _offers(self, node: WorldNode) -> bool:
        return await self.allocatable(node.name) == self.chips_per_node

    async def allocator_ready(self) -> bool:
        """Whether the allocator's probe says so."""
        return await is_ready(self.allocator_url)

    async def remove_pods(self) -> None:
        """Delete all pods and wait until they are gone."""
        for pod in await self.pods():
            try:
                await self.client.delete(PODS, pod.name, "default")
            except (NotFound, Conflict):
                continue

        async def none_left() -> bool:
            return not await self.pods()

        await self.eventually(none_left, "all pods are gone")


async def is_ready(url: str) -> bool:
    """Whether a program's readiness probe says so."""
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/readyz") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def annotated(pod: Pod, key: str) -> int:
    """The set of chips in an annotation."""
    return chip_set(parse_names(pod.metadata.annotations[key]))


def plugin_command(
    program: Path,
    *,
    kubeconfig: Path,
    node: str,
    state_file: Path,
    device_root: Path,
    pods_url: str,
    http_address: str,
    **flags: str,
) -> list[str]:
    """The command line of a device plugin."""
    more = [part for name, text in flags.items() for part in (f"--{name.replace('_', '-')}", text)]
    return [
        *(str(program), "--kubeconfig", str(kubeconfig), "--node-name", node),
        *(
            "--driver",
            "simulated",
            "--simulated-state",
            str(state_file),
            "--device-root",
            str(device_root),
            "--kubelet-pods-url",
            pods_url,
        ),
        *("--http-address", http_address, "--scan-period-s", "0.1"),
        *more,
    ]


def allocator_command(program: Path, *, kubeconfig: Path, address: str) -> list[str]:
    """The command line of the allocator."""
    return [
        *(str(program), "--kubeconfig", str(kubeconfig)),
        *("--extender-address", address, "--grpc-address", "127.0.0.1:0"),
    ]


def write_kubeconfig(path: Path, server: str, token: str) -> Path:
    """A kubeconfig file for whoever the token belongs to."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path
