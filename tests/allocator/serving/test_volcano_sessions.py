"""Sessions of a scheduler that does what Volcano does: it places pods, discards gangs, and posts Bindings later."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ascend.annotations import ALLOCATED, MIN_AVAILABLE
from ascend.chips import RESOURCE, parse_names
from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, running, until, write_kubeconfig
from tests.allocator.serving.test_blocks import add_super_pods, check, create
from tests.allocator.serving.test_volcano import amount, documented, documented_arguments
from tests.allocator.serving.test_webhook import register
from tests.workloads.test_super_pods import CHIPS

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio(loop_scope="module")


EVENTS = frozenset({"allocateFunc", "deallocateFunc"})
VERBS = {"before 1.13": frozenset({"predicate"}), "with predicate": EVENTS | {"predicate"}, "without predicate": EVENTS}
"""The verbs that differ; those of events exist from 1.13 on."""


class Session:
    """A session of Volcano.

    Args:
        allocator: what its extender plugin calls.
        verbs: those of ``VERBS`` that its configuration has.
        has_cache: whether a node that has refused a pod is asked about no other pod of the same task of a job.
        chips: those of each node.
    """

    def __init__(
        self,
        allocator: Allocator,
        http: aiohttp.ClientSession,
        verbs: frozenset[str] = EVENTS,
        *,
        has_cache: bool = False,
        chips: int = 8,
    ) -> None:
        self._allocator = allocator
        self._http = http
        self._verbs = verbs
        self._has_cache = has_cache
        self._chips = chips
        self._tasks: dict[str, dict[str, Json]] = {}

    async def ask(self, verb: str, body: Json) -> Json:
        url = f"http://{self._allocator.app.extender_address}/volcano/{verb}"
        async with self._http.post(url, data=io.BytesIO(json.dumps(body).encode())) as response:
            assert response.status == 200, await response.text()
            found: Json = await response.json()
            return found

    async def schedule(self, pods: list[Json], nodes: list[str]) -> dict[str, str]:
        """Place the pods of a job on the best nodes, all or none; return the nodes by name of the pod."""
        placed: dict[str, str] = {}
        tasks: list[Json] = []
        refused: set[str] = set()
        for pod in pods:
            task = {"UID": pod["metadata"]["uid"], "NodeName": "", "Status": 1, "Pod": pod}
            task["InitResreq"] = amount(_size(task))
            fitting = [name for name in nodes if name not in refused and await self._fits(task, name)]
            if self._has_cache:
                refused = set(nodes).difference(fitting)
            chosen = await self._best(task, fitting)
            if chosen is None:
                await self._discard(tasks)
                return {}
            made = json.loads(json.dumps(pod))
            made["spec"]["nodeName"] = chosen  # as Volcano writes it on its copy
            task = {**task, "NodeName": chosen, "Status": 2, "Pod": made}
            tasks.append(task)
            self._tasks.setdefault(chosen, {})[task["UID"]] = task
            if "allocateFunc" in self._verbs and (await self.ask("allocateFunc", {"task": task}))["errorMessage"]:
                await self._discard(tasks)
                return {}
            placed[pod["metadata"]["name"]] = chosen
        if not (await self.ask("jobReady", {"job": {"Tasks": {each["UID"]: each for each in tasks}}}))["status"]:
            await self._discard(tasks)
            return {}
        return placed

    async def _fits(self, task: Json, name: str) -> bool:
        if _size(task) > self._idle(name):
            return False
        if "predicate" not in self._verbs:
            return True
        answer = await self.ask("predicate", {"task": task, "node": self._node(name)})
        return not answer["status"]

    async def _best(self, task: Json, names: list[str]) -> str | None:
        if len(names) < 2:
            return names[0] if names else None
        asked = {"task": task, "nodes": [self._node(name) for name in names]}
        answer = await self.ask("prioritize", asked)
        if answer["errorMessage"]:
            return None
        scores: dict[str, float] = answer["nodeScore"]
        return max(names, key=lambda name: (scores[name], name))

    def _idle(self, name: str) -> int:
        return self._chips - sum(map(_size, self._tasks.get(name, {}).values()))

    def _node(self, name: str) -> Json:
        return {"Name": name, "Tasks": self._tasks.get(name, {}), "Idle": amount(self._idle(name))}

    async def _discard(self, tasks: list[Json]) -> None:
        for task in tasks:
            del self._tasks[task["NodeName"]][task["UID"]]
            if "deallocateFunc" in self._verbs:
                await self.ask("deallocateFunc", {"task": {**task, "Status": 1}})


def _size(task: Json) -> int:
    return sum(int(each["resources"]["limits"][RESOURCE]) for each in task["Pod"]["spec"]["containers"])


def documented_verbs() -> frozenset[str]:
    """The verbs of the configuration that the documentation recommends."""
    return frozenset(value for key, value in documented_arguments().items() if key.endswith("Verb"))


def caches_refusals() -> bool:
    """Whether the configuration that the documentation recommends leaves the cache of the action allocate on."""
    arguments = {each["name"]: each["arguments"] for each in documented().get("configurations", ())}
    has_cache: bool = arguments.get("allocate", {}).get("predicateErrorCacheEnable", True)
    return has_cache


@pytest_asyncio.fixture(loop_scope="module")
async def client(allocator: Allocator, tmp_path: Path) -> AsyncIterator[KubeClient]:
    """Posts Bindings as Volcano does."""
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, allocator.server))) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(tmp_path: Path) -> AsyncIterator[Allocator]:
    settings: dict[str, Any] = {"webhooks": ["bindings"], "volcano": True}
    async with ApiServer() as server, running(server, tmp_path, **settings) as made:
        register(server, made)
        yield made


async def gang(allocator: Allocator, name: str, sizes: list[int], **labels: str) -> list[Json]:
    annotations = {GROUP: name, MIN_AVAILABLE: str(len(sizes))}
    return [
        await allocator.pod(f"{name}-{rank}", size, annotations=annotations, labels=labels)
        for rank, size in enumerate(sizes)
    ]


async def bind(client: KubeClient, allocator: Allocator, placed: dict[str, str], pods: list[Json]) -> list[set[int]]:
    """Post all Bindings at once; return the chips of each pod."""
    metas = [pod["metadata"] for pod in pods]
    posted = (
        client.bind(namespace="default", name=each["name"], uid=each["uid"], node=placed[each["name"]], annotations={})
        for each in metas
    )
    await asyncio.gather(*posted)
    known = allocator.app.cluster.pods
    await until(lambda: all((seen := known.get(each["uid"])) and seen.spec.node_name for each in metas))
    return [set(parse_names(known[each["uid"]].metadata.annotations[ALLOCATED])) for each in metas]


@pytest.mark.parametrize("verbs", VERBS.values(), ids=VERBS)
async def test_a_gang_is_placed_and_gets_its_chips_with_its_bindings(
    client: KubeClient, allocator: Allocator, verbs: frozenset[str]
) -> None:
    for name in ("n1", "n2"):
        await allocator.node(name)
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http, verbs)
        pods = await gang(allocator, "train", [8, 8])
        placed = await session.schedule(pods, ["n1", "n2"])
        assert sorted(placed.values()) == ["n1", "n2"]
        chips = await bind(client, allocator, placed, pods)
        assert chips == [set(range(8))] * 2


@pytest.mark.parametrize("verbs", VERBS.values(), ids=VERBS)
async def test_what_a_session_has_placed_counts_for_its_other_pods(
    client: KubeClient, allocator: Allocator, verbs: frozenset[str]
) -> None:
    await allocator.node("n1")
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http, verbs)
        singles = [await allocator.pod(f"s{number}", 2) for number in range(4)]
        placed: dict[str, str] = {}
        for single in singles:
            placed |= await session.schedule([single], ["n1"])
        assert len(placed) == 4
        assert await session.schedule([await allocator.pod("more", 1)], ["n1"]) == {}
        chips = await bind(client, allocator, placed, singles)
        assert sorted(chip for each in chips for chip in each) == list(range(8))
        assert all(len({chip // 4 for chip in each}) == 1 for each in chips)


@pytest.mark.parametrize("verbs", VERBS.values(), ids=VERBS)
async def test_a_discarded_gang_gives_everything_back(
    client: KubeClient, allocator: Allocator, verbs: frozenset[str]
) -> None:
    for name in ("n1", "n2"):
        await allocator.node(name)
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http, verbs)
        large = await gang(allocator, "large", [8, 8, 8])
        assert await session.schedule(large, ["n1", "n2"]) == {}
        assert len(allocator.app.ledger) == 0
        small = await gang(allocator, "small", [8, 8])
        placed = await session.schedule(small, ["n1", "n2"])
        assert len(await bind(client, allocator, placed, small)) == 2


async def test_a_job_of_several_blocks_starts_with_the_documented_configuration(
    client: KubeClient, allocator: Allocator
) -> None:
    await add_super_pods(allocator, 2, 2)
    pods = await create(allocator, 4, 2)
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http, documented_verbs(), has_cache=caches_refusals(), chips=CHIPS)
        placed = await session.schedule(pods, list(allocator.app.cluster.nodes))
        await bind(client, allocator, placed, pods)
        await check(allocator, pods, 2)


async def test_a_job_of_several_blocks_never_starts_while_volcano_does_not_ask_again(allocator: Allocator) -> None:
    await add_super_pods(allocator, 2, 2)
    pods = await create(allocator, 4, 2)
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http, VERBS["with predicate"], has_cache=True, chips=CHIPS)
        # The nodes of the second block have refused the pods of the first one.
        assert await session.schedule(pods, list(allocator.app.cluster.nodes)) == {}


async def test_a_call_about_all_nodes_does_not_wait_for_the_one_before(allocator: Allocator) -> None:
    await allocator.node("n1")
    single = await allocator.pod("single", 1)
    task = {"UID": single["metadata"]["uid"], "NodeName": "", "Status": 1, "Pod": single}
    nodes = [{"Name": f"n{number}", "Node": {"metadata": "x" * 8_000}} for number in range(1_900)]
    async with aiohttp.ClientSession() as http, asyncio.timeout(10):
        session = Session(allocator, http)
        for _ in range(4):  # in turns, as bodies of strangers are decoded, each takes 4.5 s
            scores = (await session.ask("prioritize", {"task": task, "nodes": nodes}))["nodeScore"]
            assert (len(scores), scores["n1"]) == (1_900, 100.0)


async def test_a_call_that_is_too_large_is_refused_in_the_answer(allocator: Allocator) -> None:
    large = {"task": {"UID": "x" * (16 << 20)}}
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http)
        refused = await session.ask("predicate", large)
        assert refused == {"status": refused["status"], "code": 1}
        assert "16,777,216 bytes" in refused["status"]
        assert await session.ask("prioritize", large) == {"nodeScore": {}, "errorMessage": ""}  # any of them is chosen
        assert "16,777,216 bytes" in (await session.ask("allocateFunc", large))["errorMessage"]
        assert await session.ask("preemptable", large) == {"status": 1, "victims": None}
        assert await session.ask("jobReady", large) == {"status": False}


async def test_verbs_that_have_no_answer_of_ours_do_no_harm(allocator: Allocator) -> None:
    async with aiohttp.ClientSession() as http:
        session = Session(allocator, http)
        assert await session.ask("onSessionOpen", {"Jobs": {}, "Nodes": {}}) == {}
        assert await session.ask("onSessionClose", {}) == {}
        assert await session.ask("jobEnqueued", {"job": {}}) == {}
        assert await session.ask("queueOverused", {"queue": {}}) == {"overused": False}
