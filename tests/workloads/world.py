"""An API server with the real job controllers, kube-scheduler with the allocator, and servers without a kubelet."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import yaml

from allocator.app import AllocatorApp
from allocator.settings import Settings
from allocator.state.job import Job
from ascend.annotations import ALLOCATED, RANK
from ascend.chips import chip_set, parse_names
from ascend.daemon.settings import fixed_settings
from ascend.errors import Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, PODS, JsonObject, Pod
from tests.bench.fake_cluster import fake_node
from tests.cluster import controllers
from tests.cluster.api import HTTPError, collection
from tests.cluster.cluster import Cluster
from tests.cluster.controller_manager import WORKLOADS, start_controller_manager
from tests.cluster.processes import pause_s

R = TypeVar("R")

EXAMPLES: Final = Path(__file__).parents[2] / "deploy" / "examples"
TIMEOUT_S: Final = 40.0
_FURTHER: Final = ("disruption", "resourcequota", "ttl-after-finished")
"""Controllers of kube-controller-manager that some tests need besides those of jobs."""
_NO_FLAGS: Final[Mapping[str, Sequence[str]]] = MappingProxyType({})
_MAKERS: Final = tuple(
    f"/apis/{each.partition('/')[0]}/v1/namespaces/default/{each.partition('/')[2]}"
    for each in ("ray.io/rayclusters", "apps/deployments", "apps/replicasets", "apps/statefulsets", "batch/jobs")
)
KUEUE: Final = "-".join(("kueue", *filter(None, [os.environ.get("KUEUE_VERSION")])))
"""Kueue 0.14.0, unless ``KUEUE_VERSION`` names another one that tests know."""
KUEUE_WORKLOADS: Final = "/apis/kueue.x-k8s.io/v1beta1/namespaces/default/workloads"
"""Kueue's Workloads, one of each job or group of pods that has a queue."""


def example(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of `deploy/examples`."""
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


@dataclass
class Workloads:
    """A running control plane.

    Attributes:
        cluster: it.
        client: its API server, as an administrator.
        app: the allocator, which can be inspected.
    """

    cluster: Cluster
    client: KubeClient
    app: AllocatorApp
    _created: list[dict[str, Any]] = field(default_factory=list)
    _nodes: list[str] = field(default_factory=list)
    _tests: int = 0

    async def add_nodes(self, count: int) -> None:
        """Add 910A servers without a kubelet."""
        for _ in range(count):
            node = fake_node(f"fake-{len(self._nodes)}")
            node["status"]["allocatable"]["ephemeral-storage"] = "1Ti"  # an operator's init container requests some
            await self.add(node)

    def node_name(self, name: str) -> str:
        """Return the name of a test's node: chips of another test may still be held on a node, also without it."""
        return f"{name}-{self._tests}"

    async def add(self, node: JsonObject) -> None:
        """Add a server without a kubelet; it gets the name that ``node_name`` returns."""
        metadata = node["metadata"]
        metadata["name"] = metadata["labels"]["kubernetes.io/hostname"] = self.node_name(metadata["name"])
        self._nodes.append(metadata["name"])
        await self.client.create(NODES, node)

    async def cordon(self, name: str) -> None:
        """Cordon a node."""
        await self.client.patch(NODES, name, {"spec": {"unschedulable": True}})

    async def create(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create objects, as `kubectl apply` does."""
        for each in objects:
            self._created.append(await asyncio.to_thread(self.cluster.api.create, each))

    async def pods(self) -> list[Pod]:
        """Return all pods that are not terminating."""
        return [pod for pod in await self.client.list_objects(PODS, "default") if not pod.is_terminating]

    async def made(self, count: int) -> list[Pod]:
        """Wait until so many pods exist; return them."""

        async def check() -> list[Pod] | None:
            pods = await self.pods()
            return pods if len(pods) == count else None

        return await self.eventually(check, f"{count} pods exist")

    async def bound(self, count: int) -> list[Pod]:
        """Wait until exactly so many pods are bound; return them."""

        async def check() -> list[Pod] | None:
            pods = [pod for pod in await self.pods() if pod.spec.node_name]
            return pods if len(pods) == count else None

        return await self.eventually(check, f"{count} pods are bound")

    async def refused(self, count: int) -> list[Pod]:
        """Wait until the scheduler has found no node for each of so many pods; return them.

        The allocator has seen them then, too: without nodes, the scheduler does not ask it.
        """

        async def check() -> list[Pod] | None:
            pods = [pod for pod in await self.pods() if _is_unschedulable(pod)]
            return pods if len(pods) == count and all(pod.uid in self.app.cluster.pods for pod in pods) else None

        return await self.eventually(check, f"{count} pods are unschedulable")

    async def run(self, pods: Sequence[Pod]) -> None:
        """Report bound pods as running and ready, as their kubelets would."""
        conditions = [{"type": "Ready", "status": "True"}]
        for pod in pods:
            await self._report(pod, {"phase": "Running", "conditions": conditions})

    async def succeed(self, pod: Pod) -> None:
        """Report a bound pod as succeeded, as its kubelet would."""
        await self._report(pod, {"phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}]})

    async def fail(self, pod: Pod) -> None:
        """Report a bound pod as failed, as its kubelet would."""
        await self._report(pod, {"phase": "Failed", "conditions": [{"type": "Ready", "status": "False"}]})

    async def _report(self, pod: Pod, status: dict[str, Any]) -> None:
        await self.client.patch(PODS, pod.name, {"status": status}, namespace="default", subresource="status")

    async def end_terminating(self) -> list[Pod]:
        """Remove the pods that are terminating, as their kubelets would; return the others."""
        pods = await self.client.list_objects(PODS, "default")
        for pod in (pod for pod in pods if pod.is_terminating):
            with suppress(NotFound, Conflict):
                await self._remove(pod)
        return [pod for pod in pods if not pod.is_terminating]

    async def end_terminated(self) -> None:
        """Remove the terminating pods whose end is reported and which their controllers have let go, as kubelets do."""
        for pod in await self.client.list_objects(PODS, "default"):
            if pod.is_terminating and not pod.is_live:
                with suppress(NotFound, Conflict):
                    path = f"{PODS.path(namespace=pod.metadata.namespace, name=pod.name)}?gracePeriodSeconds=0"
                    await self.client.request("DELETE", path)

    async def read_job(self, name: str) -> dict[str, Any]:
        """Read a Job."""
        return await asyncio.to_thread(self.cluster.api.get, f"/apis/batch/v1/namespaces/default/jobs/{name}")

    async def _remove(self, pod: Pod) -> None:
        if pod.is_terminating:  # a controller keeps it, perhaps until a kubelet reports its end
            body = {"metadata": {"finalizers": None}}
            await self.client.patch(PODS, pod.name, body, namespace=pod.metadata.namespace)
        path = f"{PODS.path(namespace=pod.metadata.namespace, name=pod.name)}?gracePeriodSeconds=0"
        await self.client.request("DELETE", path)

    def job_of(self, pods: Sequence[Pod]) -> Job:
        """Return the one job, as the allocator recognises it, of several pods."""
        jobs = {job.key: job for pod in pods for job in [self.app.cluster.jobs.job_of(self.app.cluster.pods[pod.uid])]}
        assert len(jobs) == 1, f"{[pod.name for pod in pods]} are {[str(key) for key in jobs]}"
        return next(iter(jobs.values()))

    async def clear(self) -> None:
        """Delete all workloads and nodes."""
        created = [each for each in reversed(self._created) if each["kind"] != "Pod"]
        paths = [f"{collection(each)}/{each['metadata']['name']}" for each in created]
        self._created.clear()
        for path in paths:
            await asyncio.to_thread(self.cluster.api.delete, f"{path}?propagationPolicy=Background")

        async def gone() -> bool:
            # What makes pods goes before them, such as the Jobs of a JobSet.
            left = [path for path in paths if await asyncio.to_thread(self.cluster.api.answers, path)]
            for path in (path for path in left if path.startswith("/apis/kueue.")):
                await self._end(path)
            for path in _MAKERS:
                if await self._names(path):
                    left.append(path)
                    await asyncio.to_thread(self.cluster.api.delete, f"{path}?propagationPolicy=Background")
            if left:
                return False
            for pod in await self.client.list_objects(PODS):
                with suppress(NotFound, Conflict):
                    await self._remove(pod)
            workloads = await self._names(KUEUE_WORKLOADS)  # Kueue makes them again as long as there are pods
            for name in workloads:
                await self._end(f"{KUEUE_WORKLOADS}/{name}")
            return not workloads and not await self.client.list_objects(PODS)

        await self.eventually(gone, "no object is left")
        for name in self._nodes:
            await self.client.delete(NODES, name)
        self._nodes.clear()
        self._tests += 1

    async def _end(self, path: str) -> None:
        """Delete an object of Kueue, which would keep it by a finalizer as long as its job is there."""
        await asyncio.to_thread(self.cluster.api.delete, path)
        with suppress(HTTPError):  # it is gone
            await asyncio.to_thread(self.cluster.api.patch, path, {"metadata": {"finalizers": None}})

    async def _names(self, path: str) -> list[str]:
        """Return the names of all objects of a kind, which may not be served here."""
        if not await asyncio.to_thread(self.cluster.api.answers, path):
            return []
        return [item["metadata"]["name"] for item in (await asyncio.to_thread(self.cluster.api.get, path))["items"]]

    async def eventually(self, check: Callable[[], Awaitable[R | None]], what: str) -> R:
        """Wait until a check returns a true value; return that value.

        Raises:
            AssertionError: it did not in time; the text has the pods, and the nodes as the allocator sees them.
        """
        begin_s = time.monotonic()
        while True:
            if found := await check():
                return found
            if time.monotonic() > begin_s + TIMEOUT_S:
                pods = [(pod.name, pod.spec.node_name, _message(pod)) for pod in await self.pods()]
                raise AssertionError(
                    f"timed out after {TIMEOUT_S:.0f} s waiting until {what}; the pods: {pods}; {self._allocators_view}"
                )
            await asyncio.sleep(pause_s(begin_s))

    @property
    def _allocators_view(self) -> str:
        cluster, ledger = self.app.cluster, self.app.ledger
        nodes = {
            name: {
                "offer": record.offer,
                "unhealthy": record.unhealthy,
                "held": [each.pod for each in record.holdings.values()],
                "reserved": [(each.pod, each.stage) for each in map(ledger.get, ledger.on(name)) if each is not None],
            }
            for name, record in cluster.nodes.items()
        }
        live = {pod.key: pod.spec.node_name for pod in cluster.pods.values() if pod.is_live}
        promises = [each.owner for each in ledger.promises]
        return f"for the allocator: nodes {nodes}, live pods {live}, promises to {promises}"


@asynccontextmanager
async def running(
    folder: Path,
    *names: str,
    definitions: Sequence[dict[str, Any]] = (),
    flags: Mapping[str, Sequence[str]] = _NO_FLAGS,
    **more: Any,
) -> AsyncIterator[Workloads]:
    """Run a control plane without nodes, the allocator, kube-controller-manager and other controllers.

    Args:
        folder: for files.
        names: the other controllers.
        definitions: further custom resource definitions.
        flags: further flags of the other controllers.
        more: settings of the allocator.
    """
    async with AsyncExitStack() as stack:
        cluster = Cluster(0)
        stack.push_async_callback(asyncio.to_thread, cluster.stop)
        await asyncio.to_thread(cluster.start)
        for each in definitions:
            await asyncio.to_thread(controllers.apply, cluster.api, each)
        await asyncio.to_thread(start_controller_manager, cluster, (*WORKLOADS, *_FURTHER))
        for name in names:
            await asyncio.to_thread(controllers.start, cluster, name, folder, flags.get(name, ()))
        addresses = {"extender_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
        settings = fixed_settings(Settings, None, {"kubeconfig": str(cluster.kubeconfig_path), **addresses, **more})
        app = await stack.enter_async_context(AllocatorApp(settings))
        await app.wait_until_synced()
        client = await stack.enter_async_context(await KubeClient.connect(str(cluster.kubeconfig_path)))
        url = f"http://{app.extender_address}/scheduler"
        await asyncio.to_thread(cluster.restart_scheduler, url)
        yield Workloads(cluster, client, app)


def chips(pod: Pod) -> int:
    """Return how many chips are written on a bound pod."""
    return chip_set(parse_names(pod.metadata.annotations[ALLOCATED])).bit_count()


def ranks(pods: Sequence[Pod]) -> list[str]:
    """Return the ranks that are written on pods."""
    return sorted(pod.metadata.annotations[RANK] for pod in pods if RANK in pod.metadata.annotations)


def _message(pod: Pod) -> str:
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")


def _is_unschedulable(pod: Pod) -> bool:
    message = _message(pod)
    return bool(message) and "scheduling gates" not in message and not pod.spec.node_name
