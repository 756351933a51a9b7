"""A cluster with both programs, with one interface for the sandbox and the real cluster."""

import asyncio
import json
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from ascend.annotations import KUBELET_IDS
from ascend.chips import RESOURCE, chip_set, parse_names
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.errors import Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, EVENTS, NODES, PODS, Node, Pod
from ascend.products import ASCEND_910A, Product
from ascend.templates import RESOURCE_CORES
from device_plugin.device_types import type_of
from tests.allocator.authority import Authority
from tests.bench.fake_cluster import fake_node
from tests.cluster.api import free_ports
from tests.cluster.processes import pause_s
from tests.e2e.node import WorldNode
from tests.e2e.programs import BIN, Program, allocator_command, is_live
from tests.e2e.proxy import ApiProxy
from tests.e2e.service import Service
from tests.mindcluster.device_plugin import MindClusterPlugin

R = TypeVar("R")

TIMEOUT_S = 60.0
LEASE_S = 5


@dataclass(frozen=True, slots=True)
class Setup:
    """The configuration of a world.

    Attributes:
        product: the product of both nodes.
        by_webhook: the scheduler has no extender; the API server sends its Bindings to the allocator's webhook.
        allocators: the number of allocators; one of several leads.
        nominate: the allocators' setting.
        reservation_ttl_s: the allocators' setting.
        gang_hold_s: the allocators' setting.
        dynamic_vnpus: the device plugins' setting: the nodes offer AI cores.
        faults_in_use: the device plugins' setting.
        nslb_version: the allocators' setting.
        shared_tor_num: the allocators' setting.
        node_status_period_s: how often the sandbox's kubelets update their Nodes at most; real ones do once a second.
        schedulers: the schedulers that the allocators serve.
        webhooks: the allocators serve these beside the extender's calls; the API server does not call them.
        mindclusters_plugin: the nodes have stand-ins of MindCluster's device plugin in place of this project's.
    """

    product: Product = ASCEND_910A
    by_webhook: bool = False
    allocators: int = 1
    nominate: str = "off"
    reservation_ttl_s: float = 30.0
    gang_hold_s: float = 290.0
    dynamic_vnpus: bool = False
    faults_in_use: str = "unhealthy"
    nslb_version: str = "1.0"
    shared_tor_num: int = 2
    node_status_period_s: float = 0.0
    schedulers: tuple[str, ...] = ("default-scheduler",)
    mindclusters_plugin: bool = False
    webhooks: str = ""

    @property
    def gates(self) -> bool:
        """Whether new pods are gated."""
        return self.nominate == "gated"

    @property
    def offered(self) -> tuple[str, int]:
        """The resource that a node offers, and how much of it."""
        return (RESOURCE_CORES, 20 * self.product.chips) if self.dynamic_vnpus else (RESOURCE, self.product.chips)


@dataclass
class World(ABC):
    """A cluster with both programs.

    Attributes:
        setup: its configuration.
        folder: for its files.
        client: the API server, as an administrator.
        api: the proxy through which the programs use the API server.
        nodes: the nodes.
        allocators: the allocators; the first is started first.
        service: forwards to the allocator that is ready.
        restart_scheduler: ends the scheduler and starts it again.
        grpc_address: the gRPC address of the first allocator.
        kubeconfig: that of the allocators, an administrator's.
    """

    setup: Setup
    folder: Path
    client: KubeClient = field(init=False)
    api: ApiProxy = field(init=False)
    nodes: list[WorldNode] = field(default_factory=list)
    allocators: list[Program] = field(default_factory=list)
    service: Service = field(default_factory=Service)
    restart_scheduler: Callable[[], Awaitable[None]] = field(init=False)
    grpc_address: str = ""
    kubeconfig: Path = field(init=False)
    _fakes: list[str] = field(default_factory=list)

    @abstractmethod
    def pod_manifest(self, name: str, chips: int, **spec: Any) -> dict[str, Any]:
        """Return a pod with one container that sleeps."""

    def node(self, name: str) -> WorldNode:
        """Return the node with a name."""
        return next(node for node in self.nodes if node.name == name)

    async def create(
        self,
        name: str,
        chips: int,
        *,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        cpu: int = 0,
        **spec: Any,
    ) -> Pod:
        """Create a pod that requests chips, and CPU if it is given."""
        manifest = self.pod_manifest(name, chips, **spec)
        manifest["metadata"]["annotations"] = dict(annotations or {})
        manifest["metadata"]["labels"] = {**manifest["metadata"].get("labels", {}), **(labels or {})}
        if cpu:
            resources = manifest["spec"]["containers"][0].setdefault("resources", {})
            resources.setdefault("requests", {})["cpu"] = str(cpu)
        return await self.client.create(PODS, manifest, "default")

    async def add_fake_nodes(
        self, *names: str, labels: Mapping[str, str] | None = None, cpu: int | None = None
    ) -> None:
        """Add 910A servers without a kubelet: pods can be bound to them, but do not start."""
        for name in names:
            node = fake_node(name)
            node["metadata"]["labels"].update(labels or {})
            if cpu is not None:
                for quantities in (node["status"]["capacity"], node["status"]["allocatable"]):
                    quantities["cpu"] = str(cpu)
            await self.add_node(node)

    async def add_node(self, manifest: dict[str, Any]) -> None:
        """Add a node without a kubelet."""
        self._fakes.append(manifest["metadata"]["name"])
        await self.client.create(NODES, manifest)

    async def held(self, number: int) -> None:
        """Wait until the allocator holds the Bindings of so many pods."""
        line = f'ascend_allocator_reservations{{state="held"}} {number:.1f}'

        async def check() -> bool:
            leader = await self.service.leader()
            async with aiohttp.ClientSession() as http, http.get(f"{leader}/metrics") as response:
                return line in (await response.text()).splitlines()

        await self.eventually(check, f"{number} Bindings are held")

    async def delete(self, *names: str) -> None:
        """Delete pods and wait until their kubelets have stopped them."""
        for name in names:
            await self.client.delete(PODS, name, "default")
        for name in names:
            await self.eventually(partial(self.gone, name), f"pod {name} is gone")

    async def gone(self, name: str) -> bool:
        try:
            await self.client.get(PODS, name, "default")
        except NotFound:
            return True
        return False

    async def pod(self, name: str) -> Pod:
        """Return the current pod."""
        return await self.client.get(PODS, name, "default")

    async def pods(self) -> list[Pod]:
        """Return all pods."""
        return await self.client.list_objects(PODS, "default")

    async def running(self, name: str) -> Pod:
        """Wait until a pod runs and is claimed; return it."""

        async def check() -> Pod | None:
            pod = await self.pod(name)
            assert pod.status.phase != "Failed", f"{name} failed: {pod.status.reason}: {pod.status.message}"
            claimed = KUBELET_IDS in pod.metadata.annotations
            return pod if pod.status.phase == "Running" and claimed else None

        return await self.eventually(check, f"pod {name} runs and is claimed")

    async def annotations(self, name: str) -> dict[str, str]:
        """All annotations of a pod; the programs keep only those that they read."""
        answer = await self.client.request("GET", PODS.path(namespace="default", name=name))
        return dict(json.loads(answer)["metadata"]["annotations"])

    async def failed(self, name: str) -> Pod:
        """Wait until the kubelet has rejected a pod; return it."""

        async def check() -> Pod | None:
            pod = await self.pod(name)
            return pod if pod.status.phase == "Failed" else None

        return await self.eventually(check, f"pod {name} has failed")

    async def pending_because(self, name: str, saying: str = "") -> str:
        """Wait for an Event that says why a pod is pending, in these words among others; return its note."""
        pod = await self.pod(name)

        async def check() -> str | None:
            events = json.loads(await self.client.request("GET", EVENTS.path(namespace="default")))["items"]
            notes = [
                str(event["note"])
                for event in events
                if event["regarding"].get("uid") == pod.uid
                and event["reason"] == "FailedScheduling"
                and saying in event["note"]
            ]
            return notes[-1] if notes else None

        return await self.eventually(check, f"an Event says why pod {name} is pending")

    async def report(self, node: str) -> DeviceReport:
        """Return the node's report."""
        return decode_report((await self.client.get(CONFIG_MAPS, config_map_name(node), NAMESPACE)).data)

    async def node_object(self, node: str) -> Node:
        """Return the Node object."""
        return await self.client.get(NODES, node)

    async def allocatable(self, node: str) -> int:
        """Return the node's allocatable chips, or AI cores; 0 while the resource is not registered."""
        resource, _ = self.setup.offered
        return int((await self.node_object(node)).status.allocatable.get(resource, "0"))

    async def bind(self, pod: Pod, node: str, *chips: int, predicate_time: int) -> None:
        """Bind a pod as another scheduler does."""
        names = ",".join(f"Ascend910-{chip_id}" for chip_id in chips)
        annotations = {RESOURCE: names, "predicate-time": str(predicate_time)}
        await self.client.bind(namespace="default", name=pod.name, uid=pod.uid, node=node, annotations=annotations)

    async def eventually(self, check: Callable[[], Awaitable[R | None]], what: str, within_s: float = TIMEOUT_S) -> R:
        """Wait until a check returns a true value; return that value.

        Raises:
            AssertionError: it did not in time.
        """
        begin_s = time.monotonic()
        while True:
            if found := await check():
                return found
            assert time.monotonic() < begin_s + within_s, f"timed out after {within_s:.0f} s waiting until {what}"
            await asyncio.sleep(pause_s(begin_s))

    async def all_ready(self) -> None:
        """Wait until both programs are ready and all chips are allocatable."""
        for node in self.nodes:
            await self.eventually(node.has_ready_plugin, f"the plugin of {node.name} is ready")
            all_allocatable = partial(self._all_allocatable, node)
            await self.eventually(all_allocatable, f"all chips of {node.name} are allocatable")
        for url in self.service.backends:
            await self.eventually(partial(is_live, url), f"the allocator at {url} is live")
        await self.eventually(self.allocator_ready, "the allocator is ready")

    async def _all_allocatable(self, node: WorldNode) -> bool:
        """Whether all chips are allocatable, in one way only."""
        status = (await self.node_object(node.name)).status
        found = {each: number for each, number in status.allocatable.items() if type_of(each) and number != "0"}
        resource, number = self.setup.offered
        return found == {resource: str(number)}

    async def allocator_ready(self) -> bool:
        """Whether an allocator is ready."""
        return await self.service.leader() is not None

    async def kill_leader(self) -> None:
        """Kill the leading allocator."""
        await (await self._leader()).kill()

    async def stop_leader(self) -> None:
        """Stop the leading allocator: it releases its lease."""
        await (await self._leader()).stop()

    async def pause_leader(self) -> Program:
        """Suspend the leading allocator with SIGSTOP; return it."""
        leader = await self._leader()
        await leader.pause()
        return leader

    async def _leader(self) -> Program:
        leader = await self.service.leader()
        assert leader is not None, "no allocator leads"
        return self.allocators[self.service.backends.index(leader)]

    async def clear(self) -> None:
        """Delete all pods and fake nodes, and wait until they are gone."""
        for pod in await self.pods():
            # A fake node has no kubelet that completes the deletion.
            at_once = {"gracePeriodSeconds": "0"} if pod.spec.node_name in self._fakes else {}
            with suppress(NotFound, Conflict):
                path = PODS.path(namespace="default", name=pod.name)
                await self.client.request("DELETE", path, query=at_once)

        async def none_left() -> bool:
            return not await self.pods()

        await self.eventually(none_left, "all pods are gone")
        while self._fakes:
            await self.client.delete(NODES, self._fakes.pop())

    async def restore(self) -> None:
        """Restore the initial state after a test: both programs run, all chips are healthy, and there are no pods."""
        await self.clear()
        await asyncio.gather(*(node.restore(self.setup.product) for node in self.nodes))
        for allocator in self.allocators:
            if not allocator.runs:
                await allocator.start()
        await self.all_ready()

        async def all_free() -> bool:
            try:
                reports = [await self.report(node.name) for node in self.nodes]
            except NotFound:  # MindCluster's plugin writes its first report after five seconds
                return False
            return {(each.free, each.unhealthy) for each in reports} == {(self.setup.product.all_chips, 0)}

        await self.eventually(all_free, "all chips are reported free")

    def add_allocators(self, kubeconfig: Path, launch: Callable[[str, list[str]], Program]) -> None:
        """Add the allocators of the setup, without starting them."""
        self.kubeconfig = kubeconfig
        for number in range(1, self.setup.allocators + 1):
            address, grpc_address = (f"127.0.0.1:{port}" for port in free_ports(2))
            flags = {
                "nominate": self.setup.nominate,
                "nslb_version": self.setup.nslb_version,
                "shared_tor_num": str(self.setup.shared_tor_num),
                "nominate_from_nodes": "0",
                "gate_from_nodes": "0",
                **({"webhooks": "gates"} if self.setup.gates else {}),
                **({"webhooks": self.setup.webhooks} if self.setup.webhooks else {}),
            }
            flags |= {"reservation_ttl_s": str(self.setup.reservation_ttl_s)}
            flags |= {"gang_hold_s": str(self.setup.gang_hold_s)}
            flags |= {"scheduler_names": json.dumps(self.setup.schedulers)}
            if self.setup.by_webhook:
                pair = self.authority.sign("allocator", "IP:127.0.0.1")
                flags |= {"tls_cert_file": str(pair.cert), "tls_key_file": str(pair.key)}
                flags |= {"webhooks": self.setup.webhooks or "bindings"}
            if self.setup.allocators > 1:
                flags |= {"leader_election": "true", "lease_duration_s": str(LEASE_S)}
            program = BIN / "ascend-allocator"
            command = allocator_command(
                program, kubeconfig=kubeconfig, address=address, grpc_address=grpc_address, **flags
            )
            self.allocators.append(launch(f"ascend-allocator-{number}", command))
            self.service.backends.append(f"{'https' if self.setup.by_webhook else 'http'}://{address}")
            self.grpc_address = self.grpc_address or grpc_address

    def install_mindclusters_plugin(self) -> None:
        """Replace the device plugins by stand-ins of MindCluster's, without starting them."""
        for node in self.nodes:
            node.plugin, node.plugin_url = MindClusterPlugin(node, self.client), ""

    @cached_property
    def authority(self) -> Authority:
        """The certificate authority of the allocators."""
        return Authority(self.folder)

    @property
    def extender_url(self) -> str | None:
        """The extender's address for the scheduler; None for a scheduler without an extender."""
        return None if self.setup.by_webhook else f"http://{self.service.address}/scheduler"

    @property
    def webhook_url(self) -> str:
        """The webhook to which the API server sends Bindings."""
        return f"https://{self.service.address}/webhook/bindings"

    @asynccontextmanager
    async def serving_gates(self) -> AsyncIterator[str]:
        """Serve the webhook for new pods over TLS, as the API server requires it; yields its address."""
        pair = self.authority.sign("gates", "IP:127.0.0.1")
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(pair.cert, pair.key)
        service = Service(tls)
        service.backends = self.service.backends
        async with service:
            yield f"https://{service.address}/webhook/gates"

    @property
    def allocator(self) -> Program:
        """The only allocator, or the first of several."""
        return self.allocators[0]


def annotated(pod: Pod, key: str) -> int:
    """Return the set of chips in an annotation."""
    return chip_set(parse_names(pod.metadata.annotations[key]))
