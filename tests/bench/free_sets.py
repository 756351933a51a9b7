"""Servers with random free chips, as in the reference's measurements.

See docs/spec/measurements.md#decisions-in-process, "random".
"""

import random

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import Grant
from ascend.chips import RESOURCE
from ascend.products import ASCEND_910A
from sandbox.apiserver import ApiServer
from tests.allocator.builders import node, pod
from tests.allocator.harness import node_manifest, pod_manifest


def node_name(number: int) -> str:
    return f"node-{number:05}"


def held_chips(count: int, seed: int) -> list[tuple[int, ...]]:
    """Return the used chips of each server: the number of free chips is uniform from 0 to 8, their choice random."""
    rng = random.Random(seed)
    chips = range(ASCEND_910A.chips)
    free = [set(rng.sample(chips, rng.randint(0, ASCEND_910A.chips))) for _ in range(count)]
    return [tuple(chip for chip in chips if chip not in idle) for idle in free]


def in_memory(count: int, seed: int, ledger: Ledger) -> DecisionEngine:
    """Return an engine with these servers."""
    cluster = Cluster(ledger)
    for number, held in enumerate(held_chips(count, seed)):
        name = node_name(number)
        cluster.node_applied(node(name))
        if held:
            cluster.pod_applied(pod(f"holds-{name}", len(held), node=name, chips=held, phase="Running"))
    return DecisionEngine(cluster, ledger)


async def on_server(server: ApiServer, count: int, seed: int) -> None:
    """Create these servers, and the pods that use their chips, on an API server."""
    for number, held in enumerate(held_chips(count, seed)):
        name = node_name(number)
        await server.create(node_manifest(name))
        if held:
            holder = pod_manifest(f"holds-{name}", len(held), annotations=Grant(held, number).annotations())
            assert holder["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: str(len(held))}
            holder["spec"]["nodeName"] = name
            await server.create(holder)
