"""A cluster with both programs in it, as the scenarios see it: the sandbox and the real one look alike."""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ascend.annotations import KUBELET_IDS
from ascend.chips import RESOURCE, chip_set, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.errors import Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, EVENTS, NODES, PODS, Node, Pod
from ascend.products import ASCEND_910A, Product
from tests.allocator.authority import Authority
from tests.bench.fake_cluster import fake_node
from tests.cluster.api import free_ports
from tests.e2e.node import WorldNode
from tests.e2e.programs import BIN, Program, allocator_command, is_ready
from tests.e2e.proxy import ApiProxy
from tests.e2e.service import Service

R = TypeVar("R")

PATIENCE_S = 40.0
LEASE_S = 3


@dataclass(frozen=True, slots=True)
class Setup:
    """What a scenario needs.

    Attributes:
        product: of both nodes.
        by_webhook: the scheduler asks nobody; the API server shows its Bindings to the allocator.
        allocators: how many run; of several one leads.
    """

    product: Product = ASCEND_910A
    by_webhook: bool = False
    allocators: int = 1


@dataclass
class World(ABC):
    """A cluster with both programs in it.

    Attributes:
        setup: what it was made for.
        folder: for files of its own.
        client: the API server, as an administrator.
        api: the proxy the programs talk to it through.
        nodes: the nodes.
        allocators: the allocators; the first is started first.
        service: leads to the one that is ready.
        grpc_address: where the first allocator serves gRPC.
    """

    setup: Setup
    folder: Path
    client: KubeClient = field(init=False)
    api: ApiProxy = field(init=False)
    nodes: list[WorldNode] = field(default_factory=list)
    allocators: list[Program] = field(default_factory=list)
    service: Service = field(default_factory=Service)
    grpc_address: str = ""
    _fakes: list[str] = field(default_factory=list)

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

    async def add_fake_nodes(self, *names: str) -> None:
        """Add 910A servers that nobody runs: pods can be bound to them, and stay as they are then."""
        for name in names:
            self._fakes.append(name)
            await self.client.create(NODES, fake_node(name))

    async def open_gate(self, name: str) -> None:
        """Take a pod's scheduling gates away."""
        await self.client.patch(PODS, name, {"spec": {"schedulingGates": None}}, namespace="default")

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
        return await self.allocatable(node.name) == self.setup.product.chips

    async def allocator_ready(self) -> bool:
        """Whether the probe of an allocator says so."""
        return await self.service.leader() is not None

    async def kill_leader(self) -> None:
        """Kill the allocator that leads."""
        leader = await self.service.leader()
        assert leader is not None, "no allocator leads"
        await self.allocators[self.service.backends.index(leader)].kill()

    async def clear(self) -> None:
        """Delete all pods and fake nodes, and wait until they are gone."""
        for pod in await self.pods():
            # Nobody would end a pod of a fake node.
            at_once = {"gracePeriodSeconds": "0"} if pod.spec.node_name in self._fakes else {}
            with suppress(NotFound, Conflict):
                path = PODS.path(namespace="default", name=pod.name)
                await self.client.request("DELETE", path, query=at_once)

        async def none_left() -> bool:
            return not await self.pods()

        await self.eventually(none_left, "all pods are gone")
        while self._fakes:
            await self.client.delete(NODES, self._fakes.pop())

    async def mend(self) -> None:
        """Whatever a test did: both programs run on healthy, empty nodes."""
        await self.clear()
        await asyncio.gather(*(node.mend(self.setup.product) for node in self.nodes))
        for allocator in self.allocators:
            if not allocator.runs:
                await allocator.start()
        await self.all_ready()

        async def all_free() -> bool:
            reports = [await self.report(node.name) for node in self.nodes]
            return {(each.free, each.unhealthy) for each in reports} == {(self.setup.product.all_chips, 0)}

        await self.eventually(all_free, "all chips are reported free")

    def add_allocators(self, kubeconfig: Path, launch: Callable[[str, list[str]], Program]) -> None:
        """Add as many allocators as the scenario needs, not started yet."""
        for number in range(1, self.setup.allocators + 1):
            address, grpc_address = (f"127.0.0.1:{port}" for port in free_ports(2))
            flags: dict[str, str] = {}
            if self.setup.by_webhook:
                pair = self.authority.sign("allocator", "IP:127.0.0.1")
                flags |= {"tls_cert_file": str(pair.cert), "tls_key_file": str(pair.key), "webhooks": "bindings"}
            if self.setup.allocators > 1:
                flags |= {"leader_election": "true", "lease_duration_s": str(LEASE_S)}
            program = BIN / "ascend-allocator"
            command = allocator_command(
                program, kubeconfig=kubeconfig, address=address, grpc_address=grpc_address, **flags
            )
            self.allocators.append(launch(f"ascend-allocator-{number}", command))
            self.service.backends.append(f"{'https' if self.setup.by_webhook else 'http'}://{address}")
            self.grpc_address = self.grpc_address or grpc_address

    @cached_property
    def authority(self) -> Authority:
        """Vouches for the allocators."""
        return Authority(self.folder)

    @property
    def extender_url(self) -> str | None:
        """What the scheduler asks; None where it asks nobody."""
        return None if self.setup.by_webhook else f"http://{self.service.address}/scheduler"

    @property
    def webhook_url(self) -> str:
        """Whom the API server shows Bindings to."""
        return f"https://{self.service.address}/webhook/bindings"

    @property
    def allocator(self) -> Program:
        """The one allocator, or the first of several."""
        return self.allocators[0]


def annotated(pod: Pod, key: str) -> int:
    """The set of chips in an annotation."""
    return chip_set(parse_names(pod.metadata.annotations[key]))
