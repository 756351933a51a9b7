"""Pending pods are nominated ahead of their scheduler, which the tests play."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from allocator.nomination.nominator import Nominator
from allocator.nomination.writes import AT_ONCE
from ascend.annotations import MIN_AVAILABLE, NOMINATED
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, Json, pod_manifest, running, until

NODES = ("n1", "n2", "n3")


@asynccontextmanager
async def nominating(folder: Path, *, nodes: tuple[str, ...] = NODES, **more: Any) -> AsyncIterator[Allocator]:
    async with (
        ApiServer() as server,
        running(server, folder, nominate="pending", nominate_from_nodes=0, **more) as allocator,
    ):
        for name in nodes:
            await allocator.node(name)
        yield allocator


async def status_of(allocator: Allocator, name: str, is_expected: Callable[[str], bool]) -> str:
    """Wait until the nomination of a pod is as expected; return the node."""
    async with asyncio.timeout(10):
        while True:
            node = str((await allocator.read(name))["status"].get("nominatedNodeName", ""))
            if is_expected(node):
                return node
            await asyncio.sleep(0.005)


async def nominated(allocator: Allocator, name: str) -> str:
    """Wait until a pod is nominated; return the node."""
    return await status_of(allocator, name, bool)


async def not_nominated(allocator: Allocator, name: str) -> None:
    """Wait until a pod's nomination is cleared."""
    await status_of(allocator, name, lambda node: not node)


async def busy(allocator: Allocator) -> Json:
    """Create the pod that the scheduler takes at once: what comes after it is nominated."""
    return await allocator.pod("taken", 1)


async def test_a_pod_behind_another_is_nominated_where_its_chips_are(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        first, second = await busy(allocator), await allocator.pod("second", 4)
        node = await nominated(allocator, "second")
        held = allocator.app.ledger.get(second["metadata"]["uid"])
        assert held is not None
        assert held.node == node == (await allocator.read("second"))["metadata"]["annotations"][NOMINATED]
        # The scheduler was about to filter the first one: its nomination would have come too late.
        assert "nominatedNodeName" not in (await allocator.read("taken"))["status"]
        assert await allocator.schedule(first, NODES)
        assert await allocator.schedule(second, [node]) == node


async def test_only_a_window_of_pods_is_nominated(tmp_path: Path) -> None:
    async with nominating(tmp_path, nominate_window=2) as allocator:
        await busy(allocator)
        pods = {name: await allocator.pod(name, 1) for name in ("p1", "p2", "p3", "p4")}
        assert {await nominated(allocator, name) for name in ("p1", "p2")} <= set(NODES)
        for ahead, name in (("p1", "p3"), ("p2", "p4")):
            assert "nominatedNodeName" not in (await allocator.read(name))["status"]
            assert (await allocator.filter(pods[ahead], NODES))["NodeNames"]
            assert await nominated(allocator, name)


async def test_the_pods_of_a_gang_are_nominated_at_once_when_it_is_complete(tmp_path: Path) -> None:
    async with nominating(tmp_path, nominate_window=2) as allocator:
        await busy(allocator)
        gang = {"annotations": {GROUP: "train", MIN_AVAILABLE: "3"}}
        pods = [await allocator.pod(f"train-{rank}", 8, **gang) for rank in range(2)]
        for pod in pods:
            assert not (await allocator.filter(pod, NODES))["NodeNames"]
        pods.append(await allocator.pod("train-2", 8, **gang))
        nodes = [await nominated(allocator, pod["metadata"]["name"]) for pod in pods]
        assert set(nodes) == set(NODES)
        for pod, node in zip(pods, nodes, strict=True):
            assert (await allocator.filter(pod, [node]))["NodeNames"] == [node]


async def test_a_gang_that_has_stepped_back_is_left_to_its_scheduler(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        gang = {"annotations": {GROUP: "train", MIN_AVAILABLE: "2"}}
        first = await allocator.pod("train-0", 8, **gang)
        gangs, jobs = allocator.app.engine.gangs, allocator.app.cluster.jobs
        gangs.step_back(jobs.job_of(allocator.app.cluster.pods[first["metadata"]["uid"]]), (), "a test says so")
        second = await allocator.pod("train-1", 8, **gang)
        last = await allocator.pod("last", 1)
        await nominated(allocator, "last")
        for pod in (first, second):
            assert allocator.app.ledger.get(pod["metadata"]["uid"]) is None
        assert (await allocator.filter(first, NODES))["NodeNames"] == []
        assert await allocator.schedule(last, NODES)
        # Both were offered to their scheduler: now they are planned.
        nodes = [(await allocator.filter(pod, NODES))["NodeNames"] for pod in (second, first)]
        assert nodes[0]
        assert nodes[1]


async def test_pods_of_other_schedulers_and_gated_pods_are_left_alone(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        for name, spec in (("other", {"schedulerName": "other"}), ("gated", {"schedulingGates": [{"name": "a.b/c"}]})):
            manifest = pod_manifest(name, 1)
            manifest["spec"] |= spec
            await allocator.server.create(manifest)
        await allocator.pod("last", 1)
        await nominated(allocator, "last")
        for name in ("other", "gated"):
            assert "nominatedNodeName" not in (await allocator.read(name))["status"]


async def test_a_nomination_of_the_scheduler_is_not_overwritten(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        allocator.server.pause_watches()
        await allocator.server.create(pod_manifest("preempts", 1))
        await allocator.patch("preempts", {"status": {"nominatedNodeName": "n3"}}, subresource="status")
        # The allocator decides on the pod as it was created, before it sees the nomination.
        allocator.server.resume_watches()
        await allocator.pod("last", 1)
        await nominated(allocator, "last")
        found = await allocator.read("preempts")
        assert found["status"]["nominatedNodeName"] == "n3"
        assert NOMINATED not in found["metadata"].get("annotations", {})


async def test_what_the_scheduler_nominates_later_is_kept(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        pod = await allocator.pod("pod", 8)
        node = await nominated(allocator, "pod")
        other = next(name for name in NODES if name != node)
        await allocator.patch("pod", {"status": {"nominatedNodeName": other}}, subresource="status")
        await until(lambda: allocator.app.ledger.get(pod["metadata"]["uid"]) is None)
        await allocator.pod("last", 1)
        await nominated(allocator, "last")
        assert (await allocator.read("pod"))["status"]["nominatedNodeName"] == other


async def test_a_nomination_is_cleared_when_its_reservation_expires(tmp_path: Path) -> None:
    async with nominating(tmp_path, reservation_ttl_s=0.5) as allocator:
        await busy(allocator)
        pod = await allocator.pod("pod", 8)
        await nominated(allocator, "pod")
        await not_nominated(allocator, "pod")
        assert NOMINATED not in (await allocator.read("pod"))["metadata"].get("annotations", {})
        assert allocator.app.ledger.get(pod["metadata"]["uid"]) is None


async def test_a_nomination_is_cleared_when_its_node_goes_away(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        pod = await allocator.pod("pod", 8)
        node = await nominated(allocator, "pod")
        await allocator.remove_node(node)
        await not_nominated(allocator, "pod")
        left = [name for name in NODES if name != node]
        assert await allocator.schedule(pod, left) in left


async def test_a_pod_turned_down_on_its_node_is_bound_elsewhere(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        pod = await allocator.pod("pod", 8)
        node = await nominated(allocator, "pod")
        others = [name for name in NODES if name != node]
        assert (chosen := await allocator.schedule(pod, others)) in others
        await not_nominated(allocator, "pod")
        assert (await allocator.read("pod"))["spec"]["nodeName"] == chosen
        # What the node lacks is unknown, but the next pod would lack it as well.
        await allocator.pod("next", 8)
        assert await nominated(allocator, "next") not in {node, chosen}


async def test_a_pod_that_the_scheduler_can_place_nowhere_releases_its_chips(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        pod = await allocator.pod("pod", 8)
        await nominated(allocator, "pod")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
        await allocator.patch("pod", {"status": {"conditions": [condition]}}, subresource="status")
        await not_nominated(allocator, "pod")
        assert allocator.app.ledger.get(pod["metadata"]["uid"]) is None


async def test_a_nomination_that_is_to_be_cleared_is_not_taken_up_again(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        uid = (await allocator.pod("pod", 8))["metadata"]["uid"]
        node = await nominated(allocator, "pod")
        allocator.server.pause_watches()
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no CPU"}
        await allocator.patch("pod", {"status": {"conditions": [condition]}}, subresource="status")
        allocator.server.fail_next("PATCH", "pods/pod/status", 500)
        allocator.server.resume_watches()
        await until(lambda: allocator.app.ledger.get(uid) is None)
        assert (await allocator.read("pod"))["status"]["nominatedNodeName"] == node
        await allocator.patch("pod", {"metadata": {"labels": {"changed": "yes"}}})
        await until(lambda: "changed" in allocator.app.cluster.pods[uid].metadata.labels)
        assert allocator.app.ledger.get(uid) is None
        await not_nominated(allocator, "pod")


async def test_requests_to_clear_nominations_do_not_pile_up_before_an_api_server_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks, check = count(), Nominator._check
    is_enough, is_back = asyncio.Event(), asyncio.Event()

    async def counted(nominator: Nominator) -> None:
        if next(checks) == 4 * AT_ONCE:
            is_enough.set()
        await check(nominator)

    async def hang(_operation: str, _resource: object, subresource: str, stored: Json) -> Json:
        if subresource == "status":
            await is_back.wait()
        return stored

    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        await allocator.pod("pod", 8)
        node = await nominated(allocator, "pod")
        allocator.server.admission.append(hang)
        monkeypatch.setattr(Nominator, "_check", counted)
        monkeypatch.setattr("allocator.nomination.nominator.PERIOD_S", 0.001)
        await allocator.remove_node(node)
        await is_enough.wait()
        clearing = [task for task in asyncio.all_tasks() if task.get_name().startswith("clear the nomination")]
        is_back.set()
        await not_nominated(allocator, "pod")
        assert 0 < len(clearing) <= 2 * AT_ONCE


async def test_a_pod_of_higher_priority_takes_what_is_only_nominated(tmp_path: Path) -> None:
    async with nominating(tmp_path, nodes=("n1",)) as allocator:
        await busy(allocator)
        first = await allocator.pod("first", 4)
        await nominated(allocator, "first")
        high = await allocator.pod("high", 8, priority=10)
        assert await allocator.schedule(high, ["n1"]) == "n1"
        await not_nominated(allocator, "first")
        assert (await allocator.filter(first, ["n1"]))["NodeNames"] in (None, [])


async def test_only_nominations_on_one_node_give_way_and_only_if_that_helps(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        await busy(allocator)
        names = ("p1", "p2", "p3")
        uids = {name: (await allocator.pod(name, 8))["metadata"]["uid"] for name in names}
        nodes = {name: await nominated(allocator, name) for name in names}
        assert set(nodes.values()) == set(NODES)
        high = await allocator.pod("high", 16, priority=10)
        assert not (await allocator.filter(high, NODES))["NodeNames"]
        assert all(allocator.app.ledger.get(uid) for uid in uids.values())
        high = await allocator.pod("higher", 4, priority=10)
        (node,) = (await allocator.filter(high, NODES))["NodeNames"]
        left = {name for name, uid in uids.items() if allocator.app.ledger.get(uid)}
        assert left == {name for name in names if nodes[name] != node}


async def test_a_pod_of_equal_priority_does_not_take_what_is_nominated(tmp_path: Path) -> None:
    async with nominating(tmp_path, nodes=("n1",)) as allocator:
        await busy(allocator)
        first, equal = await allocator.pod("first", 8), await allocator.pod("equal", 8)
        await nominated(allocator, "first")
        assert not (await allocator.filter(equal, ["n1"]))["NodeNames"]
        assert await allocator.schedule(first, ["n1"]) == "n1"


async def test_a_new_leader_adopts_nominations_that_fit_and_clears_others(tmp_path: Path) -> None:
    async with ApiServer() as server:
        async with running(server, tmp_path, nominate="pending", nominate_from_nodes=0) as former:
            for name in ("n1", "n2"):
                await former.node(name)
            await busy(former)
            for name in ("kept", "lost"):
                await former.pod(name, 8)
            nodes = {name: await nominated(former, name) for name in ("kept", "lost")}
        blocker = await former_bind(server, tmp_path, nodes["lost"])
        async with running(server, tmp_path, nominate="pending", nominate_from_nodes=0) as leader:
            uid = (await leader.read("kept"))["metadata"]["uid"]
            await until(lambda: leader.app.ledger.get(uid) is not None)
            await not_nominated(leader, "lost")
            held = leader.app.ledger.get(uid)
            assert held is not None
            assert held.node == nodes["kept"] == (await leader.read("kept"))["status"]["nominatedNodeName"]
            assert (await leader.read("blocker"))["metadata"]["uid"] == blocker


async def former_bind(server: ApiServer, folder: Path, node: str) -> str:
    """Bind a pod to a node while no allocator nominates; return its uid."""
    async with running(server, folder, nominate="off") as allocator:
        pod = await allocator.pod("blocker", 1)
        assert await allocator.bind(pod, node) == ""
        return str(pod["metadata"]["uid"])


async def test_filter_waits_for_the_nominations_of_the_next_pods(tmp_path: Path) -> None:
    async with nominating(tmp_path) as allocator:
        first = await busy(allocator)
        allocator.server.delay("pods/p[12]/status", 60.0)
        pods = [await allocator.pod(name, 1) for name in ("p1", "p2")]
        await until(lambda: all(allocator.app.ledger.get(pod["metadata"]["uid"]) for pod in pods))
        # From the second call on the time that the scheduler takes for all nodes is known.
        for pod in (first, pods[0]):
            assert (await allocator.filter(pod, NODES))["NodeNames"]
        assert await waited_s(allocator) > 0


async def waited_s(allocator: Allocator) -> float:
    """How long answers to filter have waited."""
    line = next(
        line
        for line in (await allocator.get("/metrics"))[1].splitlines()
        if line.startswith("ascend_allocator_nomination_wait_seconds_total ")
    )
    return float(line.split()[1])
