"""A node whose switches fail gets no pods, from the driver over the report to the allocator."""

from functools import partial
from pathlib import Path

import msgspec

from ascend.deviceinfo import NAMESPACE, SWITCH_INFO, config_map_name
from ascend.kube.objects import CONFIG_MAPS
from ascend.products import ASCEND_A3_16
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.driver.simulated_switches import SimulatedSwitchFault
from sandbox.cluster import save_server
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import Setup, World


def set_faults(world: World, node: str, *codes: str) -> None:
    """Change the faults of a node's switches."""
    path = world.node(node).state_file
    server = msgspec.json.decode(path.read_bytes(), type=SimulatedServer)
    server.switch_faults = [SimulatedSwitchFault(code, time_ms=1) for code in codes]
    save_server(server, path)


async def is_unhealthy(world: World, node: str) -> bool:
    """Whether the node's report says so because of its switches."""
    config_map = await world.client.get(CONFIG_MAPS, config_map_name(node), NAMESPACE)
    return '"NodeStatus":"UnHealthy"' in config_map.data.get(SWITCH_INFO, "")


async def test_a_node_that_lost_its_switches_gets_no_pods_until_they_are_back(tmp_path: Path) -> None:
    async with sandbox_world(tmp_path, Setup(ASCEND_A3_16)) as world:
        for node in world.nodes:
            set_faults(world, node.name, "[0x08520003,na,npu,na]")
        # Before that the plugin found that these servers have no library of switches, so it is started again.
        for node in world.nodes:
            await node.plugin.stop()
            await node.plugin.start()
        for node in world.nodes:
            await world.eventually(partial(is_unhealthy, world, node.name), f"the report of {node.name} has the fault")
        await world.create("refused", 2)
        assert "is unhealthy according to" in await world.pending_because("refused")
        set_faults(world, world.nodes[0].name)
        assert (await world.running("refused")).spec.node_name == world.nodes[0].name
