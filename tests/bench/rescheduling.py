"""From a fault of a chip until all pods of its job run again: device plugin, report, deletion, scheduler, Binding.

In one process: the sandbox's API server, scheduler, and two nodes with a kubelet, the device plugin and simulated
chips; the allocator; and nodes without a kubelet. A chip of one of the two fails, and the faulty pod's successor runs
on the other one. What stands in for the other kubelets and for the controller is here: it ends terminating pods, runs
bound ones, and creates each pod anew once it is gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from allocator.app import AllocatorApp
from allocator.settings import Settings
from ascend.annotations import BLOCK_SUPER_POD, RANK
from ascend.chips import RESOURCE
from ascend.daemon.settings import fixed_settings
from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import ApiError, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS, JsonObject, Pod
from ascend.products import ASCEND_A3_16
from device_plugin.app import Plugin
from device_plugin.settings import Settings as PluginSettings
from sandbox.cluster import SandboxCluster, SandboxNode
from tests.bench.outcome import Outcome, Run, ms, p50, table
from tests.device_plugin.api import running
from tests.workloads.test_super_pods import server

_SUPER_PODS: Final = 4
_SERVERS: Final = (48, 6)
_PODS: Final = (64, 8)
_TIMES: Final = (3, 1)
_CHIP: Final = 5
_CODE: Final = "80E18402"
_PATIENCE_S: Final = 60.0
_SELECTOR: Final = {"accelerator-type": "module-a3-16-super-pod"}
_REACHES: Final = {
    "the faulty pod": {"fault-scheduling": "force", "pod-rescheduling": "on"},
    "the whole job": {"fault-scheduling": "force"},
}


async def measure(run: Run) -> Outcome:
    servers, pods, times = (each[run.quick] for each in (_SERVERS, _PODS, _TIMES))
    outcome = Outcome()
    titles = ("reported ms", "deleted ms", "all bound p50 ms", "max ms", "all running p50 ms", "max ms")
    shown = table("rescheduled", "pods", *titles)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True)))
        scene = await stack.enter_async_context(_scene(folder, servers, pods // 2))
        for reach, labels in _REACHES.items():
            found: dict[str, list[float]] = {"reported": [], "deleted": [], "bound": [], "running": []}
            for number in run.steps(f"{reach} of {pods}", times):
                for name, took_s in (await scene.fault(f"train{len(scene.done)}", pods, labels)).items():
                    found[name].append(took_s)
                scene.done.append(number)
            for name, samples in found.items():
                outcome.raw[f"{reach}, {name}, s"] = samples
            shown.add_row(
                *(reach, f"{1 if 'pod-rescheduling' in labels else pods}", ms(p50(found["reported"]))),
                *(ms(p50(found["deleted"])), ms(p50(found["bound"])), ms(max(found["bound"]))),
                *(ms(p50(found["running"])), ms(max(found["running"]))),
            )
    outcome.show(
        f"rescheduling: a job of {pods} pods in 2 blocks, on {_SUPER_PODS} SuperPods of {servers} nodes",
        shown,
        "From the fault of a simulated chip until its report says so, until the pods are deleted (a fault has to last",
        "2 s before), until all pods of the job are bound again, in the SuperPods of their blocks, and until all run.",
        "The successor of the faulty pod is run by the sandbox's kubelet, which asks the device plugin for its chips.",
    )
    return outcome


@dataclass
class _Scene:
    client: KubeClient
    node: SandboxNode
    spare: SandboxNode
    done: list[int] = field(default_factory=list)

    async def fault(self, job: str, pods: int, labels: dict[str, str]) -> dict[str, float]:
        """Run a job, let a chip of its pod on the node with the device plugin fail; return how long each step took."""
        controller = _Controller(self.client, job, pods, labels, {self.node.name, self.spare.name})
        async with running(controller.run()):
            await _until(controller.is_running, f"{job} runs")
            before = dict(controller.by_rank)
            lost = {rank for rank, pod in before.items() if pod.spec.node_name == self.node.name}
            assert len(lost) == 1, f"{len(lost)} pods of {job} are on {self.node.name}"
            began_s = time.monotonic()
            self.node.edit_chip(_CHIP, fault_codes=[_CODE], health="Unhealthy")
            took = {"reported": await _until(self._is_reported, "the fault is reported") - began_s}
            gone = lost if "pod-rescheduling" in labels else set(before)
            uids = {before[rank].uid for rank in gone}
            took["deleted"] = await _until(lambda: controller.has_seen_the_end_of(uids), "pods are deleted") - began_s
            took["bound"] = await _until(controller.is_bound, f"{job} is bound again") - began_s
            took["running"] = await _until(controller.is_running, f"{job} runs again") - began_s
            for rank, pod in controller.by_rank.items():
                was = before[rank]
                assert pod.metadata.annotations[BLOCK_SUPER_POD] == was.metadata.annotations[BLOCK_SUPER_POD]
                assert (pod.uid == was.uid) is (rank not in gone)
                assert rank not in lost or pod.spec.node_name == self.spare.name
        await controller.remove()
        self.node.edit_chip(_CHIP, fault_codes=[], health="Healthy")
        await _until(self.is_healthy, "the chip is healthy again")
        return took

    async def _is_reported(self) -> bool:
        report = await self.client.get(CONFIG_MAPS, config_map_name(self.node.name), NAMESPACE)
        return bool(decode_report(report.data).unhealthy >> _CHIP & 1)

    async def is_healthy(self) -> bool:
        """Whether all chips of both nodes are free."""
        for name in (self.node.name, self.spare.name):
            report = decode_report((await self.client.get(CONFIG_MAPS, config_map_name(name), NAMESPACE)).data)
            allocatable = (await self.client.get(NODES, name)).allocatable_chips
            if report.free != ASCEND_A3_16.all_chips or allocatable != ASCEND_A3_16.chips:
                return False
        return True


class _Controller:
    """Creates the pods of a job anew, and does what the kubelets of nodes without one would."""

    def __init__(self, client: KubeClient, job: str, pods: int, labels: dict[str, str], with_kubelet: set[str]) -> None:
        self._client = client
        self._job = job
        self._pods = pods
        self._labels = labels
        self._with_kubelet = with_kubelet
        self._is_ending = False
        self.by_rank: dict[int, Pod] = {}
        self.ended: set[str] = set()
        """The uids of the pods that were deleted."""

    async def run(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(0.02)

    async def is_bound(self) -> bool:
        bound = [pod for pod in self.by_rank.values() if pod.spec.node_name and pod.is_live]
        return len(bound) == self._pods

    async def is_running(self) -> bool:
        return await self.is_bound() and all(pod.status.phase == "Running" for pod in self.by_rank.values())

    async def has_seen_the_end_of(self, uids: set[str]) -> bool:
        return uids <= self.ended

    async def remove(self) -> None:
        """Delete all pods."""
        self._is_ending = True
        async with running(self.run()):
            for pod in self.by_rank.values():
                with suppress(NotFound):
                    await self._client.delete(PODS, pod.name, "default")

            async def is_gone() -> bool:
                return not await self._client.list_objects(PODS, "default")

            await _until(is_gone, f"{self._job} is gone")

    async def _look(self) -> None:
        listed = await self._client.list_objects(PODS, "default")
        live = {int(pod.name.rpartition("-")[2]): pod for pod in listed if not pod.is_terminating}
        self.ended |= {pod.uid for pod in self.by_rank.values()} - {pod.uid for pod in live.values()}
        self.by_rank = live
        for pod in listed:
            if pod.spec.node_name in self._with_kubelet:
                if not pod.is_live:
                    await self._delete(pod)
            elif pod.is_terminating:
                await self._delete(pod)
            elif pod.spec.node_name and pod.status.phase == "Pending":
                await self._run(pod)
        names = {pod.name for pod in listed}
        for rank in range(0 if self._is_ending else self._pods):
            if f"{self._job}-{rank}" not in names:
                await self._client.create(PODS, self._manifest(rank), "default")

    async def _delete(self, pod: Pod) -> None:
        with suppress(NotFound):
            await self._client.delete(PODS, pod.name, "default", uid=pod.uid, grace_s=0)

    async def _run(self, pod: Pod) -> None:
        with suppress(ApiError):
            body: JsonObject = {"status": {"phase": "Running"}}
            await self._client.patch(PODS, pod.name, body, namespace="default", subresource="status")

    def _manifest(self, rank: int) -> JsonObject:
        owner = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": self._job,
            "uid": self._job,
            "controller": True,
        }
        return {
            "metadata": {
                "name": f"{self._job}-{rank}",
                "namespace": "default",
                "labels": self._labels,
                "ownerReferences": [owner],
                "annotations": {
                    "huawei.com/schedule_minAvailable": str(self._pods),
                    "sp-block": str(self._pods // 2 * ASCEND_A3_16.chips),
                    RANK: str(rank),
                },
            },
            "spec": {
                "nodeSelector": _SELECTOR,
                "containers": [
                    {
                        "name": "main",
                        "image": "train",
                        "resources": {"limits": {RESOURCE: str(ASCEND_A3_16.chips)}},
                    }
                ],
            },
        }


@asynccontextmanager
async def _scene(folder: Path, servers: int, spare: int) -> AsyncIterator[_Scene]:
    """A cluster; ``spare`` is the index of the first server of SuperPod 0 that is free beside a block."""
    with_kubelet = 1, spare  # 0 is that of the master, with which all pods go
    async with AsyncExitStack() as stack:
        names = [f"a3-0-{index}" for index in with_kubelet]
        cluster = await stack.enter_async_context(SandboxCluster(folder, names, product=ASCEND_A3_16))
        for node, index in zip(cluster.nodes, with_kubelet, strict=True):
            node.edit_server(super_pod_id=0, server_index=index)

        async def are_labelled() -> bool:
            labels: JsonObject = {"metadata": {"labels": _SELECTOR}}
            return all([await cluster.client.patch(NODES, name, labels) for name in names])

        await _until(are_labelled, "the kubelets have created their nodes")
        for super_pod in range(_SUPER_PODS):
            for index in range(servers):
                if super_pod or index not in with_kubelet:
                    await cluster.client.create(NODES, server(super_pod, index))
        kubeconfig = str(cluster.write_kubeconfig("programs"))
        for node in cluster.nodes:
            await stack.enter_async_context(running(Plugin(_plugin_settings(node, kubeconfig)).run()))
        addresses = {"extender_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
        given: dict[str, Any] = {"reschedule": "on", "super_pod_size": servers, "reserve_nodes": 1}
        settings = fixed_settings(Settings, None, {"kubeconfig": kubeconfig, **addresses, **given})
        app = await stack.enter_async_context(AllocatorApp(settings))
        await app.wait_until_synced()
        await cluster.start_scheduler(f"http://{app.extender_address}/scheduler")
        failing, spare_one = cluster.nodes
        scene = _Scene(cluster.client, failing, spare_one)
        await _until(scene.is_healthy, "the device plugins offer their chips")
        yield scene


def _plugin_settings(node: SandboxNode, kubeconfig: str) -> PluginSettings:
    given = {
        "node_name": node.name,
        "kubeconfig": kubeconfig,
        "device_plugin_dir": node.kubelet.socket_dir,
        "pod_resources_socket": node.kubelet.pod_resources_socket,
        "kubelet_pods_url": node.kubelet.pods_url,
        "driver": "simulated",
        "simulated_state": node.state_file,
        "device_root": node.device_root,
        "recovery_hold_s": 0.1,
        "injection": "both",
        "http_address": "127.0.0.1:0",
    }
    return fixed_settings(PluginSettings, None, given)


async def _until(check: Callable[[], Awaitable[bool]], what: str) -> float:
    """Wait until a check is true; return when, on the monotonic clock."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline_s:
        with suppress(NotFound):
            if await check():
                return time.monotonic()
        await asyncio.sleep(0.005)
    raise TimeoutError(f"timed out after {_PATIENCE_S:.0f} s waiting until {what}")
