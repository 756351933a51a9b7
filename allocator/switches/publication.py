"""How jobs use the leaf switches, as MindCluster's scheduler publishes it for people.

docs/spec/switch-affinity.md#tor-share-cm.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from allocator.switches.rooms import UNUSED, SwitchState
from ascend.leaf_switches import SwitchTable
from ascend.turn import Steps

NAMESPACE: Final = "volcano-system"
NAME: Final = "tor-share-cm"
KEY: Final = "global-tor-info"
NOTHING: Final[Mapping[str, str]] = {KEY: "{}"}
"""The data without any switches."""


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
) -> Steps[dict[str, str]]:
    """Return the data of the ConfigMap.

    A switch without an address of its own is named by its number, as in ``tor_id 7``.

    Args:
        table: the switches.
        states: how jobs that span switches use them, by number; unused if it is missing.
        nodes: the names of the nodes by their IP address.
        jobs: the jobs on each node, by its name.
    """
    servers: dict[int, list[_Server]] = {number: [] for number in table.switches}
    for address, spot in table.servers.items():
        name = nodes.get(address, "")
        servers[spot.switch].append(_Server(address, name, sorted(jobs.get(name, ())) if name else []))
        yield
    times = Counter(table.switches.values())
    found: dict[str, msgspec.Raw] = {}
    for number, address in table.switches.items():
        state = states.get(number, UNUSED)
        switch = _Switch(int(not state.is_healthy), int(state.use), servers[number])
        own = address if address and times[address] == 1 else f"tor_id {number}"
        found[own] = msgspec.Raw(msgspec.json.encode(switch))
        yield
    return {KEY: msgspec.json.encode(found).decode()}
