"""A restart at any moment: no chip twice, none lost, no decision time used again."""

from pathlib import Path

import pytest

from ascend.annotations import ALLOCATED, PREDICATE_TIME
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, pod_manifest, running

NODES = ["n1", "n2"]


@pytest.mark.parametrize("moment", ["after filter", "after prioritize", "after bind"])
async def test_no_chip_is_given_twice_or_lost(moment: str, tmp_path: Path) -> None:
    async with ApiServer() as server:
        for name in NODES:
            await server.create(node_manifest(name))
        pods = [await server.create(pod_manifest(f"p{number}", size)) for number, size in enumerate([2, 1, 4, 8, 1])]
        async with running(server, tmp_path) as allocator:
            assert await allocator.schedule(pods[0], NODES)
            await allocator.filter(pods[1], NODES)
            if moment != "after filter":
                await allocator.prioritize(pods[1], NODES)
            if moment == "after bind":
                assert await allocator.bind(pods[1], "n1") == ""
        async with running(server, tmp_path) as allocator:
            for pod in pods:
                # Those that are bound already are answered from the view.
                assert await allocator.schedule(pod, NODES)
            taken = []
            for pod in pods:
                stored = await allocator.read(pod["metadata"]["name"])
                node = stored["spec"]["nodeName"]
                taken += [(node, chip) for chip in stored["metadata"]["annotations"][ALLOCATED].split(",")]
        assert len(taken) == len(set(taken)) == 16


async def test_decision_times_go_on_where_they_stopped_though_the_clock_went_back(tmp_path: Path) -> None:
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
