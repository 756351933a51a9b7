"""The allocator as a whole: errors, outages of the watch, restarts, and the requests it sends."""

import asyncio
from pathlib import Path

import pytest

from allocator.state.cluster import Cluster
from ascend.annotations import ALLOCATED, PREDICATE_TIME
from ascend.kube.objects import Pod
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, pod_manifest, running, until


async def test_an_error_in_the_block_is_raised_unchanged(tmp_path: Path) -> None:
    async with ApiServer() as server:
        with pytest.raises(LookupError, match="mine"):
            async with running(server, tmp_path):
                raise LookupError("mine")


async def test_a_failed_task_ends_the_allocator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_cluster: Cluster, _pod: Pod) -> None:
        raise ArithmeticError("a bug in a handler")

    async def live() -> None:
        async with running(server, tmp_path):
            await server.create(pod_manifest("a", 1))
            await asyncio.Event().wait()

    monkeypatch.setattr(Cluster, "_note_placed", fail)
    async with ApiServer() as server:
        with pytest.raises(ExceptionGroup) as ended:
            await live()
        assert ended.group_contains(ArithmeticError)


async def test_changes_during_a_watch_outage_are_seen_afterwards(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        assert await allocator.schedule(await allocator.pod("a", 8), ["n1"]) == "n1"
        await until(lambda: len(allocator.app.ledger) == 0)
        server.pause_watches()
        await allocator.delete("a")
        server.compact()
        server.drop_watches()
        server.resume_watches()
        await until(lambda: not allocator.app.cluster.pods)
        assert await allocator.schedule(await allocator.pod("b", 8), ["n1"]) == "n1"


async def test_chips_stay_reserved_while_the_watch_is_silent(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pods = [await allocator.pod(f"p{number}", 4) for number in range(3)]
        server.pause_watches()
        assert [await allocator.schedule(pod, ["n1"]) for pod in pods] == ["n1", "n1", ""]
        server.resume_watches()
        await until(lambda: len(allocator.app.ledger) == 0)
        assert (await allocator.filter(pods[2], ["n1"]))["NodeNames"] == []


NODES = ["n1", "n2"]


@pytest.mark.parametrize("moment", ["after filter", "after bind"])
async def test_a_restart_allocates_no_chip_twice_and_loses_none(moment: str, tmp_path: Path) -> None:
    async with ApiServer() as server:
        for name in NODES:
            await server.create(node_manifest(name))
        pods = [await server.create(pod_manifest(f"p{number}", size)) for number, size in enumerate([2, 1, 4, 8, 1])]
        async with running(server, tmp_path) as allocator:
            assert await allocator.schedule(pods[0], NODES)
            await allocator.filter(pods[1], NODES)
            if moment == "after bind":
                assert await allocator.bind(pods[1], "n1") == ""
        async with running(server, tmp_path) as allocator:
            for pod in pods:
                # For bound pods the answer is their node.
                assert await allocator.schedule(pod, NODES)
            taken = []
            for pod in pods:
                stored = await allocator.read(pod["metadata"]["name"])
                node = stored["spec"]["nodeName"]
                taken += [(node, chip) for chip in stored["metadata"]["annotations"][ALLOCATED].split(",")]
        assert len(taken) == len(set(taken)) == 16


async def test_predicate_times_increase_across_restarts_and_clock_changes(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        pods = [await server.create(pod_manifest(f"p{number}", 1)) for number in range(4)]
        now_ns = 1_795_000_000_000_000_000
        times = []
        for start, clock_ns in ((0, now_ns), (2, now_ns - 10**9)):
            async with running(server, tmp_path, now_ns=lambda clock_ns=clock_ns: clock_ns) as allocator:  # type: ignore[misc] # the default argument
                for pod in pods[start : start + 2]:
                    assert await allocator.schedule(pod, ["n1"]) == "n1"
                    stored = await allocator.read(pod["metadata"]["name"])
                    times.append(int(stored["metadata"]["annotations"][PREDICATE_TIME]))
        assert times == [now_ns, now_ns + 1, now_ns + 2, now_ns + 3]


async def test_a_decision_sends_the_api_server_only_the_binding(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        for name in ("n1", "n2"):
            await allocator.node(name)
        pods = [await allocator.pod(f"train-{number}", 2) for number in range(4)]
        server.requests.clear()
        for pod in pods:
            assert await allocator.schedule(pod, ["n1", "n2"])
        assert server.requests == {("", "post pods/binding"): 4}
