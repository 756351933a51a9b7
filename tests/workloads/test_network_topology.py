"""Gangs with Volcano's network topology, by HyperNodes of the API server and through the real kube-scheduler."""

from typing import Any

import pytest

from allocator.state.hyper_nodes import HYPER_NODES
from ascend.kube.kept import TOPOLOGY_MODE, TOPOLOGY_TIERS
from ascend.kube.objects import Pod
from tests.bench.fake_cluster import fake_node
from tests.workloads.definitions import HYPER_NODE
from tests.workloads.world import Workloads, example

CONTROLLERS = ()
DEFINITIONS = (HYPER_NODE,)
RACKS = {"rack-a": ("a0", "a1"), "rack-b": ("b0", "b1", "b2")}

pytestmark = pytest.mark.real


def hyper_node(name: str, tier: int, kind: str, *members: str) -> dict[str, Any]:
    """A HyperNode of nodes or HyperNodes with these names."""
    named = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
    spec = {"tier": tier, "members": named}
    return {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": name}, "spec": spec}


async def add_racks(workloads: Workloads) -> None:
    """Add servers in two racks, and the HyperNodes of the racks and of the spine above them."""
    for servers in RACKS.values():
        for server in servers:
            await workloads.add(fake_node(server))
    await workloads.create(
        [
            *(hyper_node(rack, 1, "Node", *map(workloads.node_name, servers)) for rack, servers in RACKS.items()),
            hyper_node("spine", 2, "HyperNode", *RACKS),
        ]
    )

    async def known() -> bool:
        tiers = workloads.app.cluster.hyper_nodes.tree().tiers
        return len(tiers.get(2, {}).get("spine", ())) == sum(map(len, RACKS.values()))

    await workloads.eventually(known, "the allocator knows the HyperNodes")


def gang(name: str, size: int, mode: str, tier: int | None) -> dict[str, Any]:
    """A Job whose pods are placed together, by the mode."""
    (made,) = example("indexed-job.yaml")
    made["metadata"]["name"] = name
    made["spec"] |= {"parallelism": size, "completions": size}
    marks = {TOPOLOGY_MODE: mode} | ({TOPOLOGY_TIERS[0]: str(tier)} if tier is not None else {})
    made["spec"]["template"]["metadata"]["annotations"] = {"huawei.com/schedule_minAvailable": str(size), **marks}
    return made


def racks(pods: list[Pod]) -> list[str]:
    """The racks of pods."""
    return sorted({f"rack-{pod.spec.node_name[0]}" for pod in pods})


async def test_a_gang_is_within_the_lowest_hyper_node_that_has_room(workloads: Workloads) -> None:
    await add_racks(workloads)
    await workloads.create([gang("three", 3, "hard", 1)])
    assert racks(await workloads.bound(3)) == ["rack-b"]
    await workloads.create([gang("two", 2, "soft", None)])
    assert racks([pod for pod in await workloads.bound(5) if pod.name.startswith("two-")]) == ["rack-a"]


async def test_hard_waits_for_a_hyper_node_and_soft_is_spread_over_several(workloads: Workloads) -> None:
    await add_racks(workloads)
    await workloads.create([gang("hard", 4, "hard", 1)])
    waiting = await workloads.refused(4)
    told = {condition.message for pod in waiting for condition in pod.status.conditions}
    assert any("the most that fit in one: 3, in rack-b of tier 1" in message for message in told), told
    await workloads.create([gang("soft", 4, "soft", 1)])
    bound = await workloads.bound(4)
    assert {pod.name.partition("-")[0] for pod in bound} == {"soft"}
    assert racks(bound) == ["rack-a", "rack-b"]


async def test_a_waiting_gang_starts_when_a_hyper_node_gets_more_nodes(workloads: Workloads) -> None:
    await add_racks(workloads)
    await workloads.create([gang("hard", 4, "hard", 1)])
    await workloads.refused(4)
    members = ("a1", *RACKS["rack-b"])
    larger = hyper_node("rack-b", 1, "Node", *map(workloads.node_name, members))
    await workloads.client.patch(HYPER_NODES, "rack-b", {"spec": larger["spec"]})
    nodes = {pod.spec.node_name for pod in await workloads.bound(4)}
    assert nodes == set(map(workloads.node_name, members))
