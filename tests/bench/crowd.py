"""The objects of a large cluster in the sandbox's API server, about as large as real ones are."""

import random
import time
from collections.abc import Iterator
from typing import Any, Final

from ascend.annotations import Grant
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import chip_set
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, pod_manifest
from tests.bench.free_sets import node_name

PODS_PER_NODE: Final = 2
_RINGS: Final = (range(4), range(4, 8))
_SIZES: Final = (1, 2, 4)
_IMAGES: Final = 40
_VARIABLES: Final = 30


async def settle(server: ApiServer, nodes: int, seed: int) -> None:
    """Create servers of 8 chips with their reports, and a pod of 1, 2 or 4 chips in each ring."""
    rng = random.Random(seed)
    now_s = int(time.time())
    for number in range(nodes):
        name = node_name(number)
        held = [tuple(ring[: rng.choice(_SIZES)]) for ring in _RINGS]
        await server.create(large_node(name))
        await server.create(report_of(name, chip_set(chip for chips in held for chip in chips), now_s))
        for which, chips in enumerate(held):
            await server.create(large_pod(f"holds-{name}-{which}", name, chips))


def large_node(name: str, *, chips: int = 8) -> dict[str, Any]:
    """A server."""
    manifest = node_manifest(name, chips=chips)
    addresses = {chip: ChipAddress(f"10.{chip}.{name}") for chip in range(chips)}  # no two nodes have the same
    manifest["metadata"]["annotations"] = {BASE_DEVICE_INFOS: write_base_device_infos(addresses)}
    manifest["metadata"]["labels"] = dict(_labels(name))
    manifest["status"]["images"] = [
        {
            "names": [f"registry.example/team-{number % 7}/image-{number}@sha256:{number:064x}"],
            "sizeBytes": 1_000_000 * number,
        }
        for number in range(_IMAGES)
    ]
    return manifest


def report_of(node: str, taken: int, now_s: int) -> dict[str, Any]:
    """The report of a server's device plugin."""
    report = DeviceReport(free=0xFF & ~taken, unhealthy=0, network_unhealthy=0, update_time_s=now_s)
    metadata = {"name": config_map_name(node), "namespace": NAMESPACE, "labels": dict(LABELS)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": encode_report(report)}


def large_pod(name: str, node: str, chips: tuple[int, ...]) -> dict[str, Any]:
    """A pod that holds chips of a server."""
    annotations = Grant(chips, time.time_ns()).annotations()
    manifest = pod_manifest(name, len(chips), annotations=annotations, labels=dict(_labels(name)))
    spec = manifest["spec"]
    spec["nodeName"] = node
    spec["containers"][0]["env"] = [
        {"name": f"VARIABLE_{number}", "value": f"configuration of the training of {name} {number}"}
        for number in range(_VARIABLES)
    ]
    spec["volumes"] = [{"name": f"volume-{number}", "emptyDir": {}} for number in range(4)]
    spec["tolerations"] = [{"key": f"taint-{number}", "operator": "Exists", "effect": "NoExecute"} for number in (1, 2)]
    return manifest


def _labels(name: str) -> Iterator[tuple[str, str]]:
    yield "kubernetes.io/hostname", name
    yield from ((f"example.com/label-{number}", f"value-{number}-of-{name}") for number in range(10))
