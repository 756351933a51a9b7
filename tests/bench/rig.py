"""A sandbox node: API server and kubelet in this process, the project's programs as processes."""

import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ascend.annotations import PREDICATE_TIME, REAL, Grant
from ascend.chips import RESOURCE, chip_ids, chip_set, parse_names
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.products import ASCEND_910A, ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
from sandbox.apiserver import ApiServer
from sandbox.cluster import full_server, save_server
from sandbox.kubelet import Kubelet
from tests.allocator.harness import pod_manifest
from tests.bench.sightings import PATIENCE_S, Sightings, seen, watching
from tests.cluster.api import free_ports
from tests.e2e.programs import BIN, DEVICE_NODES, is_ready, plugin_command, write_kubeconfig
from tests.e2e.sandboxed import SandboxProgram

NODE: Final = "n1"
CORES: Final = 160
"""The AI cores of a node with 910B3 chips."""


@dataclass(frozen=True, slots=True)
class Rig:
    """A node with 8 chips and no scheduler: the bench binds the pods.

    Attributes:
        client: the API server.
        pods: a watch of pods.
        grpc_address: the allocator's gRPC address.
    """

    client: KubeClient
    pods: Sightings[Pod]
    grpc_address: str

    async def create(self, name: str, count: int, resource: str = RESOURCE) -> Pod:
        manifest = pod_manifest(name, 0)
        manifest["spec"]["containers"][0]["resources"] = {"limits": {resource: str(count)}}
        manifest["spec"]["terminationGracePeriodSeconds"] = 0
        return await self.client.create(PODS, manifest, "default")

    async def bind(self, pod: Pod, chips: tuple[int, ...]) -> None:
        """Bind as the allocator does: one Binding with the chips on it."""
        annotations = Grant(chips, time.time_ns()).annotations()
        await self.client.bind(namespace="default", name=pod.name, uid=pod.uid, node=NODE, annotations=annotations)

    async def bind_part(self, pod: Pod, chip: int) -> None:
        """The same for 5 AI cores of a chip."""
        annotations = {RESOURCE_CORES: f"{chip}-vir05_1c_16g", PREDICATE_TIME: str(time.time_ns())}
        await self.client.bind(namespace="default", name=pod.name, uid=pod.uid, node=NODE, annotations=annotations)

    def part_claimed(self, pod: Pod) -> asyncio.Future[float]:
        """When the pod's claim has a vNPU."""
        return self.pods.when(lambda each, gone: each.uid == pod.uid and not gone and REAL in each.metadata.annotations)

    def claimed(self, pod: Pod, chips: tuple[int, ...]) -> asyncio.Future[float]:
        """When the pod's claim has these chips."""

        def is_claimed(each: Pod, gone: bool) -> bool:  # noqa: FBT001 - called by position
            real = each.metadata.annotations.get(REAL)
            if each.uid != pod.uid or real is None or gone:
                return False
            assert chip_set(parse_names(real)) == chip_set(chips), f"{pod.key} was handed {real}, not {chips}"
            return True

        return self.pods.when(is_claimed)

    async def delete(self, *pods: Pod) -> list[float]:
        """Delete pods; return when the API server no longer had each."""
        going = [self.pods.when(lambda each, gone, uid=pod.uid: gone and each.uid == uid) for pod in pods]  # type: ignore[misc]  # bound
        for pod in pods:
            await self.client.delete(PODS, pod.name, "default")
        return [await seen(each, f"{pod.key} is gone") for each, pod in zip(going, pods, strict=True)]


@asynccontextmanager
async def one_node(*, seed: int, with_allocator: bool = False, with_cores: bool = False) -> AsyncIterator[Rig]:
    """The node, once all programs are ready and its chips are offered, or their AI cores (``with_cores``)."""
    http, grpc, plugin_http = (f"127.0.0.1:{port}" for port in free_ports(3))
    async with AsyncExitStack() as stack:
        # The path of a unix socket must be short.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        server = await stack.enter_async_context(ApiServer(tokens={"secret": "admin"}))
        kubeconfig = write_kubeconfig(folder / "kubeconfig.json", server.url, "secret")
        client = await stack.enter_async_context(await KubeClient.connect(str(kubeconfig)))
        kubelet = await stack.enter_async_context(Kubelet(NODE, client, folder / "k", seed=seed))
        programs = [
            SandboxProgram(
                "ascend-device-plugin", _plugin(kubelet, kubeconfig, plugin_http, with_cores), folder / "p.log"
            )
        ]
        if with_allocator:
            command = [str(BIN / "ascend-allocator"), "--kubeconfig", str(kubeconfig)]
            command += ["--extender-address", http, "--grpc-address", grpc]
            programs.append(SandboxProgram("ascend-allocator", command, folder / "a.log"))
        for program in programs:
            await program.start()
            stack.push_async_callback(program.stop)
        offered = (RESOURCE_CORES, CORES) if with_cores else (RESOURCE, ASCEND_910A.chips)
        await kubelet.until(lambda: kubelet.allocatable(offered[0]) == offered[1], PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            for address in (plugin_http, http)[: len(programs)]:
                while not await is_ready(f"http://{address}"):  # noqa: ASYNC110 - another process's state
                    await asyncio.sleep(0.03)
        pods = await stack.enter_async_context(watching(client, PODS))
        yield Rig(client, pods, grpc)


def some_chips(rng: random.Random, count: int) -> tuple[int, ...]:
    """Chips that an allocator may choose on an idle server: within one ring, unless all are requested."""
    rings: Sequence[int] = ASCEND_910A.rings if count < ASCEND_910A.chips else (ASCEND_910A.all_chips,)
    return tuple(sorted(rng.sample(chip_ids(rng.choice(rings)), count)))


def _plugin(kubelet: Kubelet, kubeconfig: Path, http: str, with_cores: bool) -> list[str]:  # noqa: FBT001 - of one_node
    state = kubelet.directory / "chips.json"
    save_server(full_server(ASCEND_910B_8 if with_cores else ASCEND_910A), state)
    devices = kubelet.directory / "dev"
    devices.mkdir()
    for name in (*DEVICE_NODES, *(f"vdavinci{number}" for number in range(100, 160))):
        (devices / name).touch()
    return plugin_command(
        BIN / "ascend-device-plugin",
        kubeconfig=kubeconfig,
        node=kubelet.node_name,
        state_file=state,
        device_root=devices,
        pods_url=kubelet.pods_url,
        http_address=http,
        injection="both",
        dynamic_vnpus=str(with_cores).lower(),
        device_plugin_dir=str(kubelet.socket_dir),
        pod_resources_socket=str(kubelet.pod_resources_socket),
    )
