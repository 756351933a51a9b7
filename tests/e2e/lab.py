"""What the breaks of docs/failures.md are made with on the real cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import msgspec

from ascend.annotations import DISTRIBUTED
from ascend.deviceinfo import NAMESPACE, config_map_name
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from device_plugin.driver.simulated_file import SimulatedServer
from sandbox.cluster import save_server
from tests.cluster.cluster import Cluster
from tests.e2e.node import WorldNode
from tests.e2e.programs import Program
from tests.e2e.real import RealProgram
from tests.e2e.world import TIMEOUT_S, World
from tests.written_nodes import removal

OWNER: Final = {"apiVersion": "batch/v1", "kind": "Job", "name": "job", "uid": "of-the-job", "controller": True}


class Lab:
    """The world, its cluster, and its first node, which is the one that breaks."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world = world
        self.cluster = cluster
        self.node: WorldNode = world.nodes[0]

    def edit(self, **fields: Any) -> None:
        """Change fields of the simulated server."""
        server = msgspec.json.decode(self.node.state_file.read_bytes(), type=SimulatedServer)
        for name, value in fields.items():
            setattr(server, name, value)
        save_server(server, self.node.state_file)

    async def heal(self) -> None:
        """Make the chips healthy, and have the plugin run."""
        await self.node.restore(self.world.setup.product)

    async def run(self, name: str, chips: int, node: str = "n1", **given: Any) -> None:
        """Run a pod on a node."""
        await self.world.create(name, chips, nodeSelector={"kubernetes.io/hostname": node}, **given)
        await self.world.running(name)

    async def run_job(self) -> None:
        """Run a job of two pods, each on a node of its own; the allocator has seen each without an owner."""
        marks = {"ownerReferences": [OWNER], "annotations": {DISTRIBUTED: "true"}}
        for name, node in (("one", "n1"), ("two", "n2")):
            await self.run(name, 8, node)
            await self.mark(PODS, name, {"metadata": marks}, "default")

    async def forget_node(self) -> None:
        """Remove what the device plugin has written of the node."""
        await self.world.client.patch(NODES, self.node.name, removal())
        await self.world.client.delete(CONFIG_MAPS, config_map_name(self.node.name), NAMESPACE)

    async def mark(self, resource: Any, name: str, body: Mapping[str, Any], namespace: str = "") -> None:
        """Change an object."""
        await self.world.client.patch(resource, name, dict(body), namespace=namespace)

    @asynccontextmanager
    async def plugin_with(self, *flags: str, **environment: str) -> AsyncIterator[None]:
        """Run the device plugin with more flags, in an environment with more variables."""
        async with _changed(self.node.plugin, *flags, **environment):
            yield

    @asynccontextmanager
    async def allocator_with(self, *flags: str) -> AsyncIterator[None]:
        """Run the allocator with more flags."""
        async with _changed(self.world.allocator, *flags):
            yield

    async def once(self, name: str, command: str) -> None:
        """Run a shell command in the mount namespace of the node."""
        process = self.cluster.node(self.node.name).process(name, ["sh", "-ec", command])
        process.start()
        assert await asyncio.to_thread(process.wait, timeout_s=TIMEOUT_S) == 0, process.log_tail()


@asynccontextmanager
async def _changed(program: Program, *flags: str, **environment: str) -> AsyncIterator[None]:
    """Start a program with more flags and variables, and afterwards without them."""
    assert isinstance(program, RealProgram)
    await program.stop()
    before = program.process.command
    program.process.command = ["env", *(f"{name}={text}" for name, text in environment.items()), *before, *flags]
    await program.start()
    try:
        yield
    finally:
        await program.kill()
        program.process.command = before
        await program.start()


Break = Callable[[Lab], AbstractAsyncContextManager[None]]
"""Makes a break, and mends it when the block ends."""
