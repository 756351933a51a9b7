"""How jobs use the leaf switches, as MindCluster's scheduler publishes it for people.

docs/spec/switch-affinity.md#tor-share-cm.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from allocator.switches.rooms import SwitchState
from allocator.switches.table import SwitchTable

NAMESPACE: Final = "volcano-system"
NAME: Final = "tor-share-cm"
KEY: Final = "global-tor-info"


class _Server(msgspec.Struct, rename={"address": "NodeIp", "node": "NodeName", "jobs": "JobName"}):
    address: str
    node: str
    jobs: list[str]


class _Switch(msgspec.Struct, rename={"health": "IsHealthy", "use": "IsSharedTor", "servers": "nodes"}):
    health: int
    use: int
    servers: list[_Server]


def publication(
    table: SwitchTable,
    states: Mapping[int, SwitchState],
    nodes: Mapping[str, str],
    jobs: Mapping[str, Iterable[str]],
) -> dict[str, str]:
    """Return the data of the ConfigMap.

    Args:
        table: the switches.
        states: how jobs that span switches use them, by number; unused if it is missing.
        nodes: the names of the nodes by their IP address.
        jobs: the jobs on each node, by its name.
    """
    switches = {number: _Switch(0, 0, []) for number in table.switches}
    for number, state in states.items():
        if number in switches:
            switches[number] = _Switch(int(not state.is_healthy), int(state.use), [])
    for address, spot in sorted(table.servers.items(), key=lambda each: (each[1], each[0])):
        name = nodes.get(address, "")
        switches[spot.switch].servers.append(_Server(address, name, sorted(jobs.get(name, ()))))
    found = {table.switches[number]: switch for number, switch in sorted(switches.items())}
    return {KEY: msgspec.json.encode(found).decode()}
