"""What the breaks of docs/failures.md are made with on the real cluster."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from device_plugin.driver.simulated import SimulatedServer
from sandbox.simulated_chips import save_server
from tests.cluster.cluster import Cluster
from tests.e2e.node import WorldNode
from tests.e2e.programs import Program
from tests.e2e.real import RealProgram
from tests.e2e.world import TIMEOUT_S, World


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

    async def mark(self, resource: Any, name: str, body: Mapping[str, Any], namespace: str = "") -> None:
        """Change an object."""
        await self.world.client.patch(resource, name, dict(body), namespace=namespace)

    @asynccontextmanager
    async def plugin_with(self, *flags: str) -> AsyncIterator[None]:
        """Run the device plugin with more flags."""
        async with _changed(self.node.plugin, *flags):
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
async def _changed(program: Program, *flags: str) -> AsyncIterator[None]:
    """Start a program with more flags, and afterwards without them."""
    assert isinstance(program, RealProgram)
    await program.stop()
    before = program.process.command
    program.process.command = [*before, *flags]
    await program.start()
    try:
        yield
    finally:
        await program.kill()
        program.process.command = before
        await program.start()


Break = Callable[[Lab], AbstractAsyncContextManager[None]]
"""Makes a break, and mends it when the block ends."""
