"""What the allocator needs as a cluster grows: memory for pods, and the longest time its event loop is kept."""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import grpc
from rich.table import Table

from ascend.annotations import MIN_AVAILABLE
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from ascend.kube.workloads import BATCH_JOBS, STATEFUL_SETS
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorStub
from tests.allocator.harness import pod_manifest
from tests.bench.canned_server import NUMBER, CannedServer, Objects
from tests.bench.crowd import large_node, large_pod, report_of
from tests.bench.outcome import Outcome, Run, ms, p50, table
from tests.bench.usage import cpu_of_pid, peak_mib, rss_mib
from tests.cluster.api import free_ports
from tests.e2e.programs import BIN, allocator_command, is_ready, write_kubeconfig
from tests.e2e.sandboxed import SandboxProgram

if TYPE_CHECKING:
    from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorAsyncStub

Template = tuple[dict[str, Any], int]

_PATIENCE_S: Final = 180.0
_POLL_S: Final = 0.02
_PROBE_S: Final = 0.2
"""A probe takes a third of a millisecond of the allocator's CPU time, and a kubelet sends one every few seconds."""
_SUGGESTED: Final = 6_500
"""kube-scheduler looks for victims on a tenth of the nodes, at least 100."""
_QUIET_S: Final = 2.0
_PAUSE_S: Final = 0.2
_GOAL_S: Final = 0.010
_A3: Final = "node-a3-"
_A3_PODS: Final = 10
_IDLE: Final = "module-910b-8"
_PODS: Final = PODS.path()
_ANY_SIZE: Final = (("grpc.max_receive_message_length", -1),)
_TRIED: Final = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/5000 nodes are available: 5000 GangIncomplete.",
}
"""The condition of a pod that its scheduler has tried: otherwise its gang would not start."""
_PROBED: Final = (sys.executable, "-m", "tests.bench.probed_allocator")


@dataclass(frozen=True, slots=True)
class _Size:
    """How much is measured.

    Attributes:
        memory: nodes, pods with chips on each, and pods without chips
        starts: starts of the allocator for each of them.
        nodes: numbers of 910A servers, for the turns of the event loop.
        a3: A3 servers besides them.
        idle: 910B servers besides them, without pods.
        plain: pods without chips.
        calls: calls of each kind.
        gangs: numbers of pods of gangs.
    """

    memory: tuple[tuple[int, int, int], ...]
    starts: int
    nodes: tuple[int, ...]
    a3: int
    idle: int
    plain: int
    calls: int
    gangs: tuple[int, ...]


_FULL: Final = _Size(
    ((10_000, 1, 0), (10_000, 1, 90_000), (10_000, 2, 90_000), (65_000, 1, 0)),
    starts=3,
    nodes=(3_600, 63_600),
    a3=200,
    idle=1_200,
    plain=40_000,
    calls=20,
    gangs=(64, 1_000),
)
_QUICK: Final = _Size(((50, 1, 0), (50, 1, 1_000)), 1, nodes=(80,), a3=10, idle=10, plain=500, calls=2, gangs=(8,))


async def measure(run: Run) -> Outcome:
    size = _QUICK if run.quick else _FULL
    outcome = Outcome()
    await _memory(run, size, outcome)
    for nodes in size.nodes:
        await _turns(run, size, nodes, outcome)
    return outcome


async def _memory(run: Run, size: _Size, outcome: Outcome) -> None:
    shown = table(
        *("nodes", "pods with\nchips", "without\nchips", "ready\np50 s", "CPU\np50 s", "RSS\nMiB", "peak\nMiB"),
        *("a pod without\nchips, bytes", "longest turn\nms", "turns above\n10 ms"),
    )
    without: float | None = None
    for nodes, pods, plain in size.memory:
        objects = _objects(nodes, pods, plain)
        server = CannedServer(objects)
        ready_s, cpu_s, rss, peak = [], [], [], []
        for _ in run.steps(f"starts with {nodes:,} nodes and {nodes * pods + plain:,} pods", size.starts):
            started_s = time.perf_counter()
            async with _started(server, [str(BIN / "ascend-allocator")]) as allocator:
                ready_s.append(time.perf_counter() - started_s)
                cpu_s.append(cpu_of_pid(allocator.pid))
                await asyncio.sleep(_QUIET_S)
                rss.append(rss_mib(allocator.pid))
                peak.append(peak_mib(allocator.pid))
        async with _started(server, _PROBED, probed=True) as allocator:
            load = _Load(server, allocator, objects)
            for number in range(size.calls):
                await load.place(number)
                await load.refuse(number)
            await load.scrape(0)
            turns = await allocator.turns()
        if not plain:
            without = p50(rss)
        each = f"{(p50(rss) - without) * 2**20 / plain:.0f}" if plain and pods == 1 and without is not None else ""
        shown.add_row(
            *(f"{nodes:,}", f"{nodes * pods:,}", f"{plain:,}", f"{p50(ready_s):.1f}", f"{p50(cpu_s):.1f}"),
            *(f"{p50(rss):.0f}", f"{max(peak):.0f}", each, ms(max(turns)), f"{sum(turn > _GOAL_S for turn in turns)}"),
        )
        outcome.raw[f"{nodes} nodes, {nodes * pods} + {plain} pods, RSS, MiB"] = rss
        outcome.raw[f"{nodes} nodes, {nodes * pods} + {plain} pods, peak, MiB"] = peak
    outcome.show(
        f"growth: memory of an allocator process that has synced, {size.starts} starts each",
        shown,
        "Nodes, reports and pods are as large as real ones; the API server is canned and in this process.",
        "a pod without chips: the RSS with them less the RSS without them.",
        f"longest turn: of another start, {size.calls} pods that are placed, as many that fit nowhere, and a scrape.",
    )


async def _turns(run: Run, size: _Size, nodes: int, outcome: Outcome) -> None:
    objects = _objects(nodes, 2, size.plain)
    objects[NODES.path()].add(_node(f"{_A3}{NUMBER}", "module-a3-16", chips=16), size.a3)
    objects[NODES.path()].add(_node(f"node-b-{NUMBER}", _IDLE), size.idle)
    for position in range(_A3_PODS):
        objects[_PODS].add(_a3_pod(position), size.a3)
    objects[_PODS].add(_gang_pod(size.idle + 1), size.idle + 1)  # which no scheduler tries
    for count in size.gangs:
        objects[_PODS].add(_gang_pod(count) | {"status": {"phase": "Pending", "conditions": [_TRIED]}}, count)
    server = CannedServer(objects)
    pods = len(objects[_PODS])
    shown = table("what", "times", "longest turn\nms", "turns above\n10 ms")
    async with _started(server, _PROBED, probed=True) as allocator:
        load = _Load(server, allocator, objects)
        phases: dict[str, tuple[int, Callable[[int], Awaitable[None]]]] = {
            "filter and bind": (size.calls, load.place),
            "filter, fits nowhere": (size.calls, load.refuse),
            f"preempt, {nodes // 16 + size.a3:,} nodes suggested": (size.calls, load.preempt),
            "all pods listed again after 410": (2, load.list_again),
            "2,000 pods change at once": (size.calls, load.change),
            "state of all nodes by gRPC": (2, load.read_states),
            "scrape of the metrics": (size.calls, load.scrape),
            f"filter, gang of {size.idle + 1:,} that does not fit": (size.calls, load.refuse_gang(size.idle + 1)),
            "Filter, Score and Explain by gRPC, a pod": (size.calls, load.preview),
            f"Filter, Score and Explain by gRPC, gang of {size.gangs[-1]:,}": (1, load.preview_gang(size.gangs[-1])),
            **{f"plan of a gang of {count:,}": (1, load.gang(count)) for count in size.gangs},
            f"preempt for a gang of {size.gangs[0]:,}, {min(nodes, _SUGGESTED) - 1:,} nodes": (
                1,
                load.preempt_for_gang(size.gangs[0]),
            ),
        }
        outcome.raw |= _added(shown, nodes, "first lists, until ready", 1, await allocator.turns())
        for what in run.steps("phases", len(phases)):
            name, (times, act) = list(phases.items())[what]
            for number in range(times):
                await act(number)
            outcome.raw |= _added(shown, nodes, name, times, await allocator.turns())
    outcome.show(
        f"growth: the longest turn of the event loop at {nodes + size.a3 + size.idle:,} nodes and {pods:,} pods",
        shown,
        "A turn is what the loop runs before it looks for new input; CPU time of its thread.",
        f"{size.plain:,} of the pods request no chips. No call is answered before it is ready.",
    )


def _added(shown: Table, nodes: int, what: str, times: int, turns: list[float]) -> dict[str, list[float]]:
    longest = max(turns, default=0.0)
    late = sum(turn > _GOAL_S for turn in turns)
    shown.add_row(what, str(times), ms(longest) if turns else "< 1", str(late))
    return {f"{nodes} nodes, {what}, longest turn, s": [longest]}


@dataclass(frozen=True, slots=True)
class _Allocator:
    """A running allocator."""

    pid: int
    url: str
    grpc_address: str
    probe: str

    async def turns(self) -> list[float]:
        """Its turns of at least a millisecond since the last call, in seconds."""
        async with aiohttp.ClientSession() as http, http.get(self.probe) as response:
            turns: list[float] = await response.json()
            return turns


class _Load:
    """What a scheduler, a cluster and a dashboard do."""

    def __init__(self, server: CannedServer, allocator: _Allocator, objects: dict[str, Objects]) -> None:
        self._server = server
        self._allocator = allocator
        self._objects = objects
        self._names = [document["metadata"]["name"] for document in objects[NODES.path()]]
        self._uids: dict[str, list[str]] = {}
        for each in objects[_PODS]:
            if name := each["spec"].get("nodeName"):
                self._uids.setdefault(name, []).append(each["metadata"]["uid"])

    async def place(self, number: int) -> None:
        """Filter and bind a pod that fits."""
        pod = _pending(f"fits-{number}", 1)
        (node,) = (await self._filter(pod))["NodeNames"]
        meta = pod["metadata"]
        await self._post(
            "bind", {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        )

    async def refuse(self, number: int) -> None:
        """Filter a pod that fits nowhere: every 910A server is in use."""
        pod = _pending(f"waits-{number}", 8)
        pod["spec"]["nodeSelector"] = {"accelerator-type": "module"}
        assert not (await self._filter(pod))["NodeNames"]

    async def preempt(self, number: int) -> None:
        """Select victims on the A3 servers and on some others, but not on the first, which has all plain pods."""
        nodes = [name for name in [*self._uids][1::16] if not name.startswith(_A3)]
        nodes += (name for name in self._uids if name.startswith(_A3))
        victims = {
            name: {"Pods": [{"UID": uid} for uid in self._uids[name][:-1]], "NumPDBViolations": 0} for name in nodes
        }
        pod = _pending(f"urgent-{number}", 16 if number % 2 else 8, priority=1_000_000_000 + number)
        await self._post("preempt", {"Pod": pod, "NodeNameToMetaVictims": victims})

    async def list_again(self, _number: int) -> None:
        """Let the history of the pods expire."""
        before = self._server.lists[_PODS]
        self._server.expire(_PODS)
        async with asyncio.timeout(_PATIENCE_S):
            while self._server.lists[_PODS] == before or not self._server.is_watched(_PODS):  # noqa: ASYNC110 - a program's state
                await asyncio.sleep(_POLL_S)
        await asyncio.sleep(_QUIET_S)

    async def change(self, number: int) -> None:
        """Change the status of many pods."""

        def change(manifest: dict[str, Any]) -> None:
            manifest["metadata"]["resourceVersion"] += str(number)
            manifest["status"] = {"phase": "Running", "message": str(number)}

        self._server.modify(_PODS, range(min(2_000, len(self._objects[_PODS]))), change)
        await asyncio.sleep(_QUIET_S)

    async def read_states(self, _number: int) -> None:
        """Read the state of every node, page by page, and once more from a watch."""
        async with grpc.aio.insecure_channel(self._allocator.grpc_address, options=_ANY_SIZE) as channel:
            stub: AllocatorAsyncStub = AllocatorStub(channel)
            token, seen = "", 0
            while not seen or token:
                page = await stub.GetState(pb.GetStateRequest(page_token=token))
                token, seen = page.next_page_token, seen + len(page.nodes)
            watched = 0
            async for change in stub.Watch(pb.WatchRequest()):
                watched += len(change.nodes)
                if watched >= seen:
                    break

    async def scrape(self, _number: int) -> None:
        """Read the metrics."""
        async with aiohttp.ClientSession() as http, http.get(f"{self._allocator.url}/metrics") as response:
            assert response.status == 200
            await response.read()

    def gang(self, count: int) -> Callable[[int], Awaitable[None]]:
        """Filter the first pod of a gang."""

        async def place(_number: int) -> None:
            answer = await self._filter(next(self._members(count)))
            assert answer["NodeNames"], answer

        return place

    def refuse_gang(self, count: int) -> Callable[[int], Awaitable[None]]:
        """Filter pods of a gang that does not fit, and let the allocator look for what it may requeue."""
        pods = self._members(count)

        async def refuse(_number: int) -> None:
            assert not (await self._filter(next(pods)))["NodeNames"]
            await asyncio.sleep(_PAUSE_S)

        return refuse

    async def preview(self, number: int) -> None:
        """Ask where a pod would be placed that fits on most nodes, without placing it."""
        pod = _pending(f"asks-{number}", 1)
        self._serve(pod)
        filtered, scored, explained = await self._ask(pod)
        assert len(filtered.nodes) + sum(len(each.nodes) for each in filtered.refused) == len(self._names)
        assert scored.nodes[0].node == explained.node

    def preview_gang(self, count: int) -> Callable[[int], Awaitable[None]]:
        """Ask where the first pod of a gang would be placed, without placing it."""

        async def preview(_number: int) -> None:
            filtered, scored, explained = await self._ask(next(self._members(count)))
            (node,), (best,) = filtered.nodes, scored.nodes
            assert node == best.node == explained.node
            assert explained.standing in {"fits", "reserved"}  # on many nodes the allocator has nominated it

        return preview

    async def _ask(self, pod: dict[str, Any]) -> tuple[pb.FilterResponse, pb.ScoreResponse, pb.ExplainResponse]:
        meta = pod["metadata"]
        named = pb.PodRef(namespace=meta["namespace"], name=meta["name"], uid=meta["uid"])
        async with grpc.aio.insecure_channel(self._allocator.grpc_address, options=_ANY_SIZE) as channel:
            stub: AllocatorAsyncStub = AllocatorStub(channel)
            return (
                await stub.Filter(pb.FilterRequest(pod=named)),
                await stub.Score(pb.ScoreRequest(pod=named)),
                await stub.Explain(pb.ExplainRequest(pod=named)),
            )

    def preempt_for_gang(self, count: int) -> Callable[[int], Awaitable[None]]:
        """Create a gang of high priority, and select victims for its first pod on the nodes in use."""

        async def preempt(_number: int) -> None:
            pods = [_urgent_pod(number, count) for number in range(count)]
            self._server.send(_PODS, *(json.dumps({"type": "ADDED", "object": pod}).encode() for pod in pods))
            await asyncio.sleep(_QUIET_S)
            nodes = [name for name in self._uids if not name.startswith(_A3)]
            nodes = nodes[1:_SUGGESTED]  # the first has all plain pods
            victims = {name: {"Pods": [{"UID": uid} for uid in self._uids[name]]} for name in nodes}
            answer = await self._post("preempt", {"Pod": pods[0], "NodeNameToMetaVictims": victims})
            assert answer["NodeNameToMetaVictims"], answer

        return preempt

    def _members(self, count: int) -> Iterator[dict[str, Any]]:
        """The pods of a gang."""
        name = f"{_gang_name(count)}-"
        return (each for each in self._objects[_PODS] if each["metadata"]["name"].startswith(name))

    def _serve(self, pod: dict[str, Any]) -> None:
        """Let the API server have a pod: the allocator reads what it has not seen."""
        meta = pod["metadata"]
        self._server.single[PODS.path(namespace=meta["namespace"], name=meta["name"])] = pod

    async def _filter(self, pod: dict[str, Any]) -> Any:
        return await self._post("filter", {"Pod": pod, "Nodes": None, "NodeNames": self._names})

    async def _post(self, verb: str, body: dict[str, Any]) -> Any:
        if "Pod" in body:
            self._serve(body["Pod"])
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{self._allocator.url}/scheduler/{verb}", json=body) as response,
        ):
            assert response.status == 200, await response.text()
            return await response.json()


@asynccontextmanager
async def _started(server: CannedServer, program: Sequence[str], *, probed: bool = False) -> AsyncIterator[_Allocator]:
    """Run a program that is an allocator, until it is ready, within the block."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server.running())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-")))
        http, grpc_port, probe = free_ports(3)
        kubeconfig = write_kubeconfig(folder / "kubeconfig.json", server.url, "any")
        address, grpc_address = f"127.0.0.1:{http}", f"127.0.0.1:{grpc_port}"
        flags = allocator_command(Path(), kubeconfig=kubeconfig, address=address, grpc_address=grpc_address)[1:]
        command = [*program, *([str(probe)] if probed else []), *flags, "--max-report-age-s", "1000000000"]
        process = SandboxProgram("ascend-allocator", command, folder / "allocator.log")
        await process.start()
        stack.push_async_callback(process.stop)
        url = f"http://{address}"
        async with asyncio.timeout(_PATIENCE_S):
            while not await is_ready(url):
                assert process.runs, (folder / "allocator.log").read_text()
                await asyncio.sleep(_PROBE_S)
        yield _Allocator(process.pid, url, grpc_address, f"http://127.0.0.1:{probe}")


def _objects(nodes: int, pods: int, plain: int) -> dict[str, Objects]:
    """Servers of 8 chips, each with so many pods of two chips, and pods without chips."""
    name = f"node-{NUMBER}"
    holders = [(large_pod(f"holds-{which}-{NUMBER}", name, (4 * which, 4 * which + 1)), nodes) for which in range(pods)]
    for holder, _ in holders:
        holder["status"] = {"phase": "Running"}
    return {
        NODES.path(): Objects([(_node(name, "module"), nodes)]),
        CONFIG_MAPS.path(namespace=NAMESPACE): Objects([(report_of(name, 0, int(time.time())), nodes)]),
        _PODS: Objects([*holders, (_plain_pod(), plain)]),
        STATEFUL_SETS.path(): Objects([]),
        BATCH_JOBS.path(): Objects([]),
    }


def _plain_pod() -> dict[str, Any]:
    manifest = large_pod(f"app-{NUMBER}", "node-000000", ())
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app-7d9c8b5f6d", "uid": "o", "controller": True}
    manifest["metadata"] |= {"ownerReferences": [owner], "annotations": {"sidecar.istio.io/status": "x" * 900}}
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "1"}}
    manifest["status"] = {"phase": "Running"}
    return manifest


def _node(name: str, product: str, *, chips: int = 8) -> dict[str, Any]:
    manifest = large_node(name, chips=chips)
    manifest["metadata"]["labels"]["accelerator-type"] = product
    return manifest


def _a3_pod(position: int) -> dict[str, Any]:
    manifest = large_pod(f"a3-{position}-{NUMBER}", f"{_A3}{NUMBER}", (position,))
    manifest["spec"]["priority"] = NUMBER  # so that no two servers have equal victims
    manifest["status"] = {"phase": "Running"}
    return manifest


def _gang_name(count: int) -> str:
    return f"gang-of-{count}"


def _gang_pod(count: int) -> dict[str, Any]:
    name = _gang_name(count)
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": name, "uid": "g", "controller": True}
    minimum = {MIN_AVAILABLE: str(count)}
    manifest = pod_manifest(f"{name}-{NUMBER}", 8, annotations=minimum, ownerReferences=[owner])
    manifest["spec"]["nodeSelector"] = {"accelerator-type": _IDLE}
    return _served(manifest)


def _urgent_pod(number: int, count: int) -> dict[str, Any]:
    owner = {"apiVersion": "example.com/v1", "kind": "Training", "name": "urgent", "uid": "u", "controller": True}
    manifest = pod_manifest(
        f"urgent-{number}", 8, priority=2_000_000_000, ownerReferences=[owner], uid=f"urgent-{number}"
    )
    manifest["metadata"] |= {"annotations": {MIN_AVAILABLE: str(count)}, "resourceVersion": f"9{number}"}
    manifest["spec"]["nodeSelector"] = {"accelerator-type": "module"}
    return _served(manifest)


def _pending(name: str, chips: int, *, priority: int = 0) -> dict[str, Any]:
    return _served(pod_manifest(name, chips, priority=priority, uid=f"uid-{name}"))


def _served(manifest: dict[str, Any]) -> dict[str, Any]:
    """A pod with what an API server fills in."""
    manifest["spec"]["schedulerName"] = "default-scheduler"
    return manifest
