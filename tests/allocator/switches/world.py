"""A small cluster of 910B servers below leaf switches, and jobs with switch affinity."""

import json
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from allocator.binding.annotations import Stamper
from allocator.rules.asked import SwitchLimits
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import ConfigMap, Metadata, Node, NodeAddress, Pod
from ascend.leaf_switches import NAME
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod

SELECTOR = {TYPE: "module-910b-8"}
WIDTH = 4


def server(switch: int, slot: int) -> Node:
    """The server ``t<switch>-<slot>``."""
    made = node(f"t{switch}-{slot}", labels=SELECTOR)
    return replace(made, status=replace(made.status, addresses=(NodeAddress("InternalIP", address(switch, slot)),)))


def address(switch: int, slot: int) -> str:
    """The InternalIP of a server."""
    return f"10.{switch // 256}.{switch % 256}.{slot}"


def table(switches: Iterable[int], *, width: int = WIDTH, level: str = "", **data: str) -> ConfigMap:
    """The ConfigMap with ``width`` servers below each switch."""
    servers = [
        {
            "tor_id": switch,
            "tor_ip": f"192.168.0.{switch}",
            "server": [{"server_ip": address(switch, slot), "npu_count": 8, "slice_id": slot} for slot in range(width)],
        }
        for switch in switches
    ]
    info = {"tor_info": json.dumps({"version": "1.0", "tor_count": width, "server_list": servers})}
    return ConfigMap(
        metadata=Metadata(name=NAME, namespace=NAMESPACE), data=info | ({"tor_level": level} if level else {}) | data
    )


def switches(*slots: Sequence[int], version: str = "1.0", most_shared: int = 2, level: str = "") -> World:
    """Switches with the numbers 0, 1, … and free servers in these slots."""
    world = World(switches=SwitchLimits(version, most_shared))
    world.cluster.switches.apply(table(range(len(slots)), level=level))
    world.add(*(server(switch, slot) for switch, free in enumerate(slots) for slot in free))
    return world


def job(
    pods: int,
    schema: str | None = "normal-schema",
    *,
    name: str = "train",
    chips: int = 8,
    annotations: Mapping[str, str] | None = None,
    ranks: Iterable[int] | None = None,
    owner: str = "",
) -> list[Pod]:
    """The pods of a job with switch affinity."""
    own = {GROUP: name, MIN_AVAILABLE: str(pods)} | dict(annotations or {})
    labels = {"tor-affinity": schema} if schema is not None else {}
    made = [
        pod(f"{name}-{rank}", chips, labels=labels, annotations=own | {RANK: str(rank)}, selector=SELECTOR)
        for rank in (range(pods) if ranks is None else ranks)
    ]
    return [owned_by(each, owner, name=name) for each in made] if owner else made


def placed(world: World, pods: Iterable[Pod]) -> list[str]:
    """The nodes of pods, each placed as its scheduler asks for it."""
    return [world.engine.place(each).node for each in pods]


def bind(world: World, pods: Iterable[Pod]) -> list[Pod]:
    """Place pods, and show them bound and running, with what the allocator writes on them."""
    stamper, bound = Stamper(world.cluster, world.ledger, lambda: 1), []
    pods = list(pods)
    for each in pods:
        world.engine.place(each)
    for each in pods:
        held = stamper.stamp(world.engine.place(each), Stage.ASSUMED)
        written = each.metadata.annotations | stamper.annotations(each, held)
        spec = replace(each.spec, node_name=held.node)
        status = replace(each.status, phase="Running")
        bound.append(replace(each, metadata=replace(each.metadata, annotations=written), spec=spec, status=status))
        world.add(bound[-1])
    return bound


def written(pods: Iterable[Pod], key: str) -> list[str | None]:
    """An annotation of each of several pods."""
    return [each.metadata.annotations.get(key) for each in pods]
