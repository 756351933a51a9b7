"""How jobs use the leaf switches, for people: as MindCluster's scheduler publishes it, and in sentences about a job.

docs/spec/switch-affinity.md#tor-share-cm.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from allocator.switches.rooms import UNUSED, SwitchState, Use
from ascend.leaf_switches import Spot, SwitchTable
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


def describe_switches(
    spots: Mapping[int, Spot], states: Mapping[int, SwitchState], table: SwitchTable
) -> tuple[str, ...]:
    """Say which pods of a job are below which switch, a sentence each, in the order of the ranks.

    Args:
        spots: where the pods are, by rank.
        states: how the job uses its switches; empty where that is not known.
        table: the switches.
    """
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    for rank, spot in sorted(spots.items()):
        ranks[spot.switch].append(rank)
    said = []
    for switch, own in ranks.items():
        address, state = table.switches.get(switch, ""), states.get(switch)
        where = f"switch {switch}" + (f" ({address})" if address else "")
        use = f", {state.use.name.lower()}" if state is not None and state.use is not Use.FREE else ""
        healthy = "" if state is None or state.is_healthy else ": it shares more switches than it should"
        what = "rank" if len(own) == 1 else "ranks"
        said.append(f"{what} {_ranges(own)} below {where}{use}{healthy}")
    return tuple(said)


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, as in ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
