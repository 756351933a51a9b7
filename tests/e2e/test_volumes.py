"""A pod whose volume is provisioned slowly keeps its chips while the real kube-scheduler waits for the volume."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp
import pytest

from allocator.binding.volumes import CLAIMS, SELECTED_NODE
from ascend.annotations import ALLOCATED
from ascend.errors import NotFound
from ascend.kube.client import MERGE_PATCH
from ascend.kube.objects import PODS
from tests.e2e.world import Setup, World

SETUP = Setup(reservation_ttl_s=8.0)

NODE = "fake-disk"
CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
CLAIM = CLAIMS.path(namespace="default", name="data")

pytestmark = pytest.mark.parametrize(
    "shared_world", [pytest.param("real", marks=pytest.mark.real)], indirect=True, scope="module"
)


async def patch(world: World, path: str, body: dict[str, Any]) -> None:
    await world.client.request("PATCH", path, body=body, content_type=MERGE_PATCH)


async def claim(world: World) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await world.client.request("GET", CLAIM))
    return found


@asynccontextmanager
async def slow_storage(world: World) -> AsyncIterator[None]:
    """A claim of a StorageClass that waits for a consumer, and whose provisioner does nothing."""
    slow = {"metadata": {"name": "slow"}, "provisioner": "test/slow", "volumeBindingMode": "WaitForFirstConsumer"}
    await world.client.request("POST", CLASSES, body=slow)
    size = {"resources": {"requests": {"storage": "1Gi"}}, "accessModes": ["ReadWriteOnce"]}
    body = {"metadata": {"name": "data"}, "spec": {**size, "storageClassName": "slow"}}
    await world.client.request("POST", CLAIMS.path(namespace="default"), body=body)
    try:
        yield
    finally:
        await world.clear()
        for path in (CLAIM, f"{VOLUMES}/data"):
            with suppress(NotFound):
                # No controller removes the finalizers that protect them.
                await patch(world, path, {"metadata": {"finalizers": None}})
                await world.client.request("DELETE", path)
        await world.client.request("DELETE", f"{CLASSES}/slow")


async def provision(world: World) -> None:
    """Bind the claim to a volume, as a provisioner and the controller of volumes do."""
    found = await claim(world)
    reference = {"namespace": "default", "name": "data", "uid": found["metadata"]["uid"]}
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/nowhere"},
        "storageClassName": "slow",
        "claimRef": {"kind": "PersistentVolumeClaim", "apiVersion": "v1", **reference},
    }
    await world.client.request("POST", VOLUMES, body={"metadata": {"name": "data"}, "spec": spec})
    await patch(world, f"{VOLUMES}/data/status", {"status": {"phase": "Bound"}})
    bound = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "data"}}
    await patch(world, CLAIM, bound)
    await patch(world, f"{CLAIM}/status", {"status": {"phase": "Bound"}})


async def refusal(world: World, name: str) -> str:
    """Why the allocator refuses a pod on the node, as it tells kube-scheduler; empty if it does not."""
    pod = json.loads(await world.client.request("GET", PODS.path(namespace="default", name=name)))
    args = {"Pod": pod, "NodeNames": [NODE]}
    async with aiohttp.ClientSession() as http, http.post(f"{world.extender_url}/filter", json=args) as response:
        answer = await response.json()
    failed = (answer["FailedNodes"] or {}) | (answer["FailedAndUnresolvableNodes"] or {})
    return str(failed.get(NODE, f"not refused: {answer}"))


@pytest.mark.long
async def test_chips_are_kept_until_the_volume_is_there(world: World) -> None:
    await world.add_fake_nodes(NODE)
    here = {"kubernetes.io/hostname": NODE}
    async with slow_storage(world):
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        await world.create("slow", 8, nodeSelector=here, volumes=volumes)

        async def selected() -> bool:
            return bool((await claim(world))["metadata"].get("annotations", {}).get(SELECTED_NODE) == NODE)

        await world.eventually(selected, "kube-scheduler waits for the volume on the node")
        # This one does not count with kube-scheduler's assumption that the first is there.
        await world.create("thief", 8, nodeSelector=here)
        for _ in range(3):
            # The claim is read every 5 s: after three reads more time has passed than a reservation lives.
            async with world.api.gate("GET", r"/persistentvolumeclaims/data") as read:
                await read.reached.wait()
        assert "NotEnoughChips" in await refusal(world, "thief")
        await provision(world)

        async def bound() -> bool:
            return (await world.pod("slow")).spec.node_name == NODE

        await world.eventually(bound, "the pod with the volume is bound")
        assert len((await world.pod("slow")).metadata.annotations[ALLOCATED].split(",")) == 8
