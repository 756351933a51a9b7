"""The allocator as a whole: what comes out of its block, and what stays true through trouble with the API server."""

import asyncio
from pathlib import Path

import pytest

from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod
from sandbox.apiserver import ApiServer
from tests.allocator.harness import pod_manifest, running, until


async def test_an_error_of_the_block_comes_out_as_it_is(tmp_path: Path) -> None:
    async with ApiServer() as server:
        with pytest.raises(LookupError, match="mine"):
            async with running(server, tmp_path):
                raise LookupError("mine")


async def test_it_does_not_live_on_blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_what_happened_while_the_watch_was_away_is_caught_up_with(tmp_path: Path) -> None:
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


async def test_chips_stay_kept_while_the_watch_is_silent(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pods = [await allocator.pod(f"p{number}", 4) for number in range(3)]
        server.pause_watches()
        assert [await allocator.schedule(pod, ["n1"]) for pod in pods] == ["n1", "n1", ""]
        server.resume_watches()
        await until(lambda: len(allocator.app.ledger) == 0)
        assert (await allocator.filter(pods[2], ["n1"]))["NodeNames"] == []
