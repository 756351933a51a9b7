"""Servers with random free chips, as in the measurement of the reference.

See docs/spec/measurements.md#decisions-in-process, "random".
"""

import random
from collections.abc import Iterable

from allocator.decision.engine import DecisionEngine
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import Grant
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from sandbox.apiserver import ApiServer
from tests.allocator.builders import node, pod
from tests.allocator.harness import node_manifest, pod_manifest
from tests.allocator.switches.world import WIDTH, address, table


def node_name(number: int) -> str:
    return f"node-{number:05}"


def held_chips(count: int, seed: int) -> list[tuple[int, ...]]:
    """Return the held chips of each server: the number of free chips is uniform from 0 to 8, and which ones is
    random."""
    rng = random.Random(seed)
    chips = range(ASCEND_910A.chips)
    free = [set(rng.sample(chips, rng.randint(0, ASCEND_910A.chips))) for _ in range(count)]
    return [tuple(chip for chip in chips if chip not in idle) for idle in free]


def in_memory(
    count: int, seed: int, ledger: Ledger, waiting: Iterable[Pod] = (), *, earmark_share: float = 0.0
) -> DecisionEngine:
    """Create an engine with these servers, and pods that wait."""
    cluster = Cluster(ledger)
    for number, held in enumerate(held_chips(count, seed)):
        name = node_name(number)
        cluster.node_applied(node(name))
        if held:
            cluster.pod_applied(pod(f"holds-{name}", len(held), node=name, chips=held, phase="Running"))
    for each in waiting:
        cluster.pod_applied(each)
    return DecisionEngine(cluster, ledger, earmark_share=earmark_share)


async def on_server(server: ApiServer, count: int, seed: int) -> None:
    """Create these servers, and the pods that hold their chips, in an API server; they are below leaf switches."""
    switches = table(range(-(-count // WIDTH)))
    metadata = {"name": switches.name, "namespace": switches.metadata.namespace}
    await server.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(switches.data)})
    for number, held in enumerate(held_chips(count, seed)):
        name = node_name(number)
        made = node_manifest(name)
        made["status"]["addresses"] = [{"type": "InternalIP", "address": address(*divmod(number, WIDTH))}]
        await server.create(made)
        if held:
            holder = pod_manifest(f"holds-{name}", len(held), annotations=Grant(held, number).annotations())
            assert holder["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: str(len(held))}
            holder["spec"]["nodeName"] = name
            await server.create(holder)
