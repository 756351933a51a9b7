"""New pods are gated until they have a place; the tests play the scheduler, the sandbox calls the webhook."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from allocator.nomination.gates import THROUGH_AT_ONCE
from ascend.annotations import MIN_AVAILABLE, NOMINATED, PLACEMENT_GATE, Grant
from sandbox.apiserver import ApiServer
from sandbox.apiserver.patches import json_patch
from sandbox.apiserver.resources import Json, ServedResource
from tests.allocator.harness import Allocator, events_of, pod_manifest, review, running, until
from tests.allocator.nomination.test_pending import waited_s

GATE = [{"name": PLACEMENT_GATE}]
GANG = {"annotations": {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "3"}}


def call_webhook(allocator: Allocator) -> None:
    """Have the API server call the webhook for new pods."""

    async def admit(operation: str, resource: ServedResource, subresource: str, document: Json) -> Json:
        if (operation, resource.plural, subresource) != ("CREATE", "pods", ""):
            return document
        answer = await review(allocator, "gates", document)
        assert answer["allowed"]
        patched: Json = json_patch(document, json.loads(base64.b64decode(answer.get("patch", "W10="))))
        return patched

    allocator.server.admission.append(admit)


@asynccontextmanager
async def gating(folder: Path, *nodes: str, **more: Any) -> AsyncIterator[Allocator]:
    async with (
        ApiServer() as server,
        running(
            server,
            folder,
            **{"nominate": "gated", "nominate_from_nodes": 0, "gate_from_nodes": 0, "webhooks": ["gates"], **more},
        ) as allocator,
    ):
        call_webhook(allocator)
        for name in nodes:
            await allocator.node(name)
        yield allocator


async def until_pod(allocator: Allocator, name: str, is_expected: Callable[[Json], object]) -> Json:
    """Wait until a pod is as expected; return it."""
    async with asyncio.timeout(10):
        while True:
            found = await allocator.read(name)
            if is_expected(found):
                return found
            await asyncio.sleep(0.005)


def is_gated(pod: Json) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


async def ungated(allocator: Allocator, name: str) -> str:
    """Wait until a pod's gate is lifted; return the node nominated for it."""
    found = await until_pod(allocator, name, lambda pod: not is_gated(pod))
    return str(found["status"].get("nominatedNodeName", ""))


async def fill(allocator: Allocator, node: str, *, priority: int = 0) -> Json:
    """Have a bound pod hold all chips of a node."""
    manifest = pod_manifest(f"on-{node}", 8, priority=priority)
    manifest["spec"]["schedulerName"] = "other"
    pod = await allocator.server.create(manifest)
    await until(lambda: pod["metadata"]["uid"] in allocator.app.cluster.pods)
    held = Grant(tuple(range(8)), time.time_ns()).annotations()
    await allocator.bind_as_another(pod["metadata"]["name"], pod["metadata"]["uid"], node, held)
    await until(lambda: allocator.app.cluster.pods[pod["metadata"]["uid"]].spec.node_name)
    return pod


async def test_a_pod_that_fits_is_nominated_before_its_gate_is_lifted(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2") as allocator:
        pod = await allocator.pod("pod", 8)
        assert pod["spec"]["schedulingGates"] == GATE
        node = await ungated(allocator, "pod")
        held = allocator.app.ledger.get(pod["metadata"]["uid"])
        assert held is not None
        assert held.node == node
        assert await allocator.schedule(pod, [node]) == node


async def test_filter_does_not_wait_for_the_nominations_of_gated_pods(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2") as allocator:
        allocator.server.delay("pods/p./status", 60.0)
        pods = [await allocator.pod(name, 1) for name in ("p1", "p2", "p3")]
        await until(lambda: all(allocator.app.ledger.get(pod["metadata"]["uid"]) for pod in pods))
        for pod in pods[:2]:
            assert (await allocator.filter(pod, ["n1", "n2"]))["NodeNames"]
        assert await waited_s(allocator) == 0


async def test_with_few_nodes_only_pods_that_wait_are_gated(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2", gate_from_nodes=3) as allocator:
        for name in ("a", "b"):
            pod = await allocator.pod(name, 8)
            assert not is_gated(pod)
            assert await allocator.schedule(pod, ["n1", "n2"])
        assert is_gated(await allocator.pod("waiting", 8))
        assert is_gated(await allocator.pod("train-0", 8, **GANG))


async def test_a_pod_that_does_not_fit_waits_behind_its_gate(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1") as allocator:
        await fill(allocator, "n1")
        waiting = await allocator.pod("waiting", 4)
        assert is_gated(waiting)
        (event,) = await events_of(allocator)
        assert (event["regarding"]["name"], event["action"], event["reason"]) == ("waiting", "Gate", "NotEnoughChips")
        assert event["note"] == "pod default/waiting: 4 chips fit on none of 1 node: 1 NotEnoughChips"
        assert is_gated(await allocator.read("waiting"))
        await allocator.delete("on-n1")
        assert await ungated(allocator, "waiting") == "n1"
        assert await allocator.schedule(waiting, ["n1"]) == "n1"


async def test_a_gang_is_let_go_when_its_whole_plan_is_there(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2", "n3") as allocator:
        pods = [await allocator.pod(f"train-{rank}", 8, **GANG) for rank in range(2)]
        assert all(is_gated(pod) for pod in pods)
        (event,) = [each for each in await events_of(allocator) if each["regarding"]["name"] == "train-0"]
        assert event["reason"] == "GangIncomplete"
        assert is_gated(await allocator.read("train-1"))
        pods.append(await allocator.pod("train-2", 8, **GANG))
        nodes = [await ungated(allocator, f"train-{rank}") for rank in range(3)]
        assert sorted(nodes) == ["n1", "n2", "n3"]
        bound = await asyncio.gather(*(allocator.schedule(pod, [node]) for pod, node in zip(pods, nodes, strict=True)))
        assert bound == nodes


async def test_a_large_gang_is_planned_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.gangs.gradual.MANY", 1)
    at_once: list[object] = []
    monkeypatch.setattr("allocator.gangs.planning.Planner.plan", lambda *arguments: at_once.append(arguments))
    async with gating(tmp_path, "n1", "n2", "n3") as allocator:
        for rank in range(3):
            await allocator.pod(f"train-{rank}", 8, **GANG)
        assert sorted([await ungated(allocator, f"train-{rank}") for rank in range(3)]) == ["n1", "n2", "n3"]
    assert not at_once


async def test_a_gang_that_does_not_fit_stays_gated_and_others_pass_it(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2") as allocator:
        gang = [await allocator.pod(f"train-{rank}", 8, **GANG) for rank in range(3)]
        assert all(is_gated(pod) for pod in gang)
        single = await allocator.pod("single", 8)
        assert is_gated(single)
        node = await ungated(allocator, "single")
        assert await allocator.schedule(single, [node]) == node
        assert all([is_gated(await allocator.read(f"train-{rank}")) for rank in range(3)])
        await allocator.node("n3")
        await allocator.node("n4")
        assert sorted([await ungated(allocator, f"train-{rank}") for rank in range(3)]) == sorted(
            {"n1", "n2", "n3", "n4"} - {node}
        )


async def test_pods_that_may_preempt_others_are_let_through(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1") as allocator:
        await fill(allocator, "n1", priority=5)
        for name, priority, policy in (("never", 9, "Never"), ("equal", 5, "PreemptLowerPriority")):
            manifest = pod_manifest(name, 8, priority=priority)
            manifest["spec"]["preemptionPolicy"] = policy
            assert is_gated(await allocator.server.create(manifest))
        for number in range(THROUGH_AT_ONCE + 1):
            assert is_gated(await allocator.pod(f"urgent-{number}", 8, priority=10))
        for number in range(THROUGH_AT_ONCE):
            assert await ungated(allocator, f"urgent-{number}") == ""
        last = f"urgent-{THROUGH_AT_ONCE}"
        assert all([is_gated(await allocator.read(name)) for name in ("never", "equal", last)])
        await allocator.delete("urgent-0")
        assert await ungated(allocator, last) == ""


async def test_a_gang_that_has_stepped_back_is_let_through_for_its_scheduler(tmp_path: Path) -> None:
    # It tries again with the nodes that its scheduler offers for each pod; a nomination would hide the others.
    async with gating(tmp_path, "n1", "n2", "n3") as allocator:
        pods = [await allocator.pod(f"train-{rank}", 8, **GANG) for rank in range(2)]
        cluster, gangs = allocator.app.cluster, allocator.app.engine.gangs
        gangs.step_back(cluster.jobs.job_of(cluster.pods[pods[0]["metadata"]["uid"]]), (), "a test says so")
        pods.append(await allocator.pod("train-2", 8, **GANG))
        assert [await ungated(allocator, f"train-{rank}") for rank in range(3)] == ["", "", ""]


async def test_a_gang_that_waits_for_its_turn_stays_gated(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1", "n2", "n3", "n4") as allocator:
        tried = [await allocator.pod(f"train-{rank}", 8, **GANG) for rank in range(3)]
        for rank in range(3):
            await ungated(allocator, f"train-{rank}")
        cluster, gangs = allocator.app.cluster, allocator.app.engine.gangs
        gangs.step_back(cluster.jobs.job_of(cluster.pods[tried[0]["metadata"]["uid"]]), (), "a test says so")
        waiting = {"annotations": {**GANG["annotations"], "scheduling.k8s.io/group-name": "waiting"}}
        for rank in range(3):
            await allocator.pod(f"waiting-{rank}", 8, **waiting)
        await allocator.pod("last", 1)
        await ungated(allocator, "last")
        assert all([is_gated(await allocator.read(f"waiting-{rank}")) for rank in range(3)])
        for rank in range(3):
            await allocator.delete(f"train-{rank}")
        for rank in range(3):
            await ungated(allocator, f"waiting-{rank}")


async def test_a_pod_that_waits_for_long_is_let_through(tmp_path: Path) -> None:
    late_s = 0

    def now_ns() -> int:
        return time.time_ns() + late_s * 1_000_000_000

    async with gating(tmp_path, "n1", gate_limit_s=60.0, now_ns=now_ns) as allocator:
        await fill(allocator, "n1")
        gang = [await allocator.pod(f"train-{rank}", 8, **GANG) for rank in range(2)]
        waiting = await allocator.pod("waiting", 8)
        assert is_gated(waiting)
        late_s = 61
        # An incomplete gang needs no nodes, but pods.
        assert await ungated(allocator, "waiting") == ""
        assert all([is_gated(await allocator.read(pod["metadata"]["name"])) for pod in gang])


async def test_a_pod_with_another_gate_waits_for_that_first(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1") as allocator:
        await allocator.pod("first", 1)
        manifest = pod_manifest("queued", 1)
        manifest["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        created = await allocator.server.create(manifest)
        assert created["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}, *GATE]
        await allocator.pod("last", 1)
        await ungated(allocator, "last")
        assert (await allocator.read("queued"))["spec"]["schedulingGates"] == created["spec"]["schedulingGates"]
        await allocator.patch("queued", {"spec": {"schedulingGates": GATE}})
        assert await ungated(allocator, "queued") == "n1"


async def test_pods_of_other_schedulers_and_without_chips_are_not_gated(tmp_path: Path) -> None:
    async with gating(tmp_path, "n1") as allocator:
        await allocator.pod("first", 1)
        other = pod_manifest("other", 1)
        other["spec"]["schedulerName"] = "other"
        for manifest in (other, pod_manifest("plain", None), pod_manifest("zero", 0)):
            assert not is_gated(await allocator.server.create(manifest))


async def test_gates_are_lifted_when_pods_are_not_gated_any_more(tmp_path: Path) -> None:
    async with ApiServer() as server:
        async with running(
            server, tmp_path, nominate="gated", nominate_from_nodes=0, gate_from_nodes=0, webhooks=["gates"]
        ) as allocator:
            call_webhook(allocator)
            await allocator.node("n1")
            await fill(allocator, "n1")
            for name in ("a", "b"):
                assert is_gated(await allocator.pod(name, 8))
        server.admission.clear()
        async with running(server, tmp_path, nominate="off") as allocator:
            for name in ("a", "b"):
                assert await ungated(allocator, name) == ""


async def test_a_new_leader_lifts_the_gates_of_nominated_pods(tmp_path: Path) -> None:
    async with ApiServer() as server:
        async with running(server, tmp_path) as allocator:
            for name in ("n1", "n2"):
                await allocator.node(name)
            manifest = pod_manifest("pod", 8)
            manifest["spec"]["schedulingGates"] = GATE
            await server.create(manifest)
            # A leader that ended before it lifted the gate.
            await allocator.patch("pod", {"metadata": {"annotations": {NOMINATED: "n2"}}})
            await allocator.patch("pod", {"status": {"nominatedNodeName": "n2"}}, subresource="status")
        async with running(server, tmp_path, nominate="gated", nominate_from_nodes=0, gate_from_nodes=0) as leader:
            assert await ungated(leader, "pod") == "n2"


async def test_without_a_leader_pods_are_created_without_the_gate(tmp_path: Path) -> None:
    async with (
        ApiServer() as server,
        running(
            server,
            tmp_path,
            nominate="gated",
            nominate_from_nodes=0,
            gate_from_nodes=0,
            webhooks=["gates"],
            leader_election=True,
        ) as leader,
        running(
            server,
            tmp_path,
            nominate="gated",
            nominate_from_nodes=0,
            gate_from_nodes=0,
            webhooks=["gates"],
            leader_election=True,
            synced=False,
        ) as standby,
    ):
        await leader.node("n1")
        manifest = pod_manifest("pod", 16)
        manifest["spec"]["schedulerName"] = "default-scheduler"
        assert "patch" in await review(leader, "gates", manifest)
        # Not even read: the API server goes on without this webhook.
        url = f"http://{standby.app.extender_address}/webhook/gates"
        async with aiohttp.ClientSession() as http, http.post(url, json={}) as response:
            assert response.status == HTTPStatus.SERVICE_UNAVAILABLE
