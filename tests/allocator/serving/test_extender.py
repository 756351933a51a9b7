"""The extender as kube-scheduler calls it, over HTTP and on an API server."""

import asyncio
import io
from pathlib import Path

import aiohttp
import pytest

from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, MIN_AVAILABLE, PREDICATE_TIME
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator, Json, pod_manifest, running, until

NODES = ["n1", "n2"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_pod_is_filtered_and_bound_with_its_chips(allocator: Allocator) -> None:
    for name in NODES:
        await allocator.node(name)
    pod = await allocator.pod("a", 2)
    assert await allocator.filter(pod, [*NODES, "n3"]) == {
        "NodeNames": ["n1"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    assert await allocator.bind(pod, "n1") == ""
    stored = await allocator.read("a")
    assert stored["spec"]["nodeName"] == "n1"
    assert stored["metadata"]["annotations"][ALLOCATED] == "Ascend910-0,Ascend910-1"
    assert int(stored["metadata"]["annotations"][PREDICATE_TIME]) > 0


async def test_pods_are_filtered_before_the_former_ones_are_bound(allocator: Allocator) -> None:
    await allocator.node("n1")
    await allocator.node("n2")
    pods = [await allocator.pod(f"p{number}", 4) for number in range(5)]
    nodes = ["".join((await allocator.filter(pod, NODES))["NodeNames"]) for pod in pods]
    assert nodes == ["n1", "n1", "n2", "n2", ""]
    for pod, node in reversed(list(zip(pods[:4], nodes, strict=False))):
        assert await allocator.bind(pod, node) == ""
    stored = [await allocator.read(f"p{number}") for number in range(4)]
    written = {each["spec"]["nodeName"] + each["metadata"]["annotations"][ALLOCATED] for each in stored}
    assert len(written) == 4


async def test_refused_nodes_are_unresolvable_and_have_a_reason(allocator: Allocator) -> None:
    # kube-scheduler left out the nodes with too few chips by count; it would preempt in vain on those that are left.
    await allocator.node("n1")
    await allocator.node("plain", npu=False)
    assert await allocator.schedule(await allocator.pod("a", 8), ["n1"]) == "n1"
    answer = await allocator.filter(await allocator.pod("b", 8), ["n1", "plain"])
    assert answer["NodeNames"] == []
    assert answer["FailedNodes"] == {}
    assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("NotEnoughChips: ")
    assert answer["FailedAndUnresolvableNodes"]["plain"].startswith("NotAnNpuNode: ")
    invalid = await allocator.filter(await allocator.pod("c", 3), ["n1"])
    assert invalid["FailedAndUnresolvableNodes"]["n1"].startswith("InvalidRequest: ")


async def test_many_refused_nodes_have_one_sentence_per_reason(allocator: Allocator) -> None:
    await allocator.node("n1")
    assert await allocator.schedule(await allocator.pod("a", 4), ["n1"]) == "n1"
    nowhere = [f"nowhere-{number}" for number in range(5_000)]
    answer = await allocator.filter(await allocator.pod("b", 8), ["n1", *nowhere])
    assert answer["NodeNames"] == []
    sentences = answer["FailedAndUnresolvableNodes"]
    assert list(sentences) == ["n1", "nowhere-0"]
    assert sentences["n1"].startswith("NotEnoughChips: 8 chips ")
    assert sentences["nowhere-0"].startswith("UnknownNode on 5,000 nodes")


async def test_the_best_candidate_is_chosen_in_any_order_of_names(allocator: Allocator) -> None:
    for name in ("n1", "n10", "n2"):
        await allocator.node(name)
    for number, names in enumerate((["n2", "n10"], ["n2", "nowhere"], ["n2", "n10", "n1"])):
        pod = await allocator.pod(f"p{number}", 8)
        assert (await allocator.filter(pod, names))["NodeNames"] == [min(names)]


async def test_a_nominated_pod_waits_for_terminating_pods_on_its_node(allocator: Allocator) -> None:
    await allocator.node("n1")
    await allocator.node("n2")
    for name in NODES:
        for number in range(2):
            assert await allocator.schedule(await allocator.pod(f"{name}-{number}", 4), [name]) == name
    terminating = await allocator.delete("n1-0", grace_s=30)
    await until(lambda: allocator.app.cluster.pods[terminating].is_terminating)
    pod = await allocator.pod("b", 4)
    pod = await allocator.patch("b", {"status": {"nominatedNodeName": "n1"}}, subresource="status")
    answer = await allocator.filter(pod, NODES)
    assert list(answer["FailedNodes"]) == ["n1"]
    assert list(answer["FailedAndUnresolvableNodes"]) == ["n2"]
    pod = await allocator.patch("b", {"status": {"nominatedNodeName": "n2"}}, subresource="status")
    assert (await allocator.filter(pod, NODES))["FailedNodes"] == {}


async def test_a_repeated_filter_replaces_the_former_reservation(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("a", 8)
    await allocator.filter(pod, ["n1"])
    assert allocator.app.ledger.count(Stage.RESERVED) == 1
    await allocator.filter(pod, ["nowhere"])
    assert len(allocator.app.ledger) == 0


async def test_a_pod_bound_to_another_node_gets_chips_there(allocator: Allocator) -> None:
    for name in NODES:
        await allocator.node(name)
    pod = await allocator.pod("a", 8)
    assert (await allocator.filter(pod, NODES))["NodeNames"] == ["n1"]
    assert await allocator.bind(pod, "n2") == ""
    assert (await allocator.filter(await allocator.pod("b", 8), NODES))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("count", [None, 0])
async def test_a_pod_without_chips_passes_every_verb(allocator: Allocator, count: int | None) -> None:
    await allocator.node("plain", npu=False)
    pod = await allocator.pod("a", count)
    assert (await allocator.filter(pod, ["plain"]))["NodeNames"] == ["plain"]
    victims = {"plain": {"Pods": [{"UID": "of-another"}], "NumPDBViolations": 1}}
    assert await allocator.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": victims}) == {
        "NodeNameToMetaVictims": victims
    }
    # kube-scheduler calls for pods with a quantity of 0 as well, and without managedResources for every pod.
    assert await allocator.bind(pod, "plain") == ""
    assert (await allocator.read("a"))["spec"]["nodeName"] == "plain"
    assert "annotations" not in (await allocator.read("a"))["metadata"]
    assert await allocator.bind(pod, "plain") == ""


async def test_nobody_is_evicted_for_the_chips_of_a_bound_pod(allocator: Allocator) -> None:
    # With the gate InPlacePodVerticalScalingSchedulerPreemption kube-scheduler preempts for a resize that lacks CPU.
    await allocator.node("n1")
    others = await allocator.pod("others", 4)
    pod = await allocator.pod("a", 4, priority=9)
    for placed in (others, pod):
        assert await allocator.schedule(placed, ["n1"]) == "n1"
    victims = {"n1": {"Pods": [{"UID": "has-cpu"}], "NumPDBViolations": 0}}
    call = {"Pod": await allocator.read("a"), "NodeNameToMetaVictims": victims}
    assert await allocator.post("preempt", call) == {"NodeNameToMetaVictims": victims}


async def test_a_refused_bind_returns_the_reason(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("a", 8)
    assert "uid" in await allocator.bind(pod, "n1", uid="another")
    assert (await allocator.bind(pod, "nowhere")).startswith("UnknownNode: ")
    assert await allocator.bind(pod, "n1") == ""
    assert (await allocator.bind(await allocator.pod("b", 1), "n1")).startswith("NotEnoughChips: ")
    assert (await allocator.bind(pod, "nowhere")).startswith("AlreadyPlaced: ")
    assert (await allocator.read("b"))["spec"].get("nodeName") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"Pod": 3, "NodeNames": []}',
        b'{"NodeNames": ["n1"]}',
        b'{"Pod": {}, "Nodes": {"items": []}}',
        b'{"Pod": {"metadata": {"name": "a"}}, "NodeNames": ["n1"]}',
    ],
)
async def test_a_malformed_call_is_answered_with_an_error(body: bytes, allocator: Allocator) -> None:
    answer = await allocator.post("filter", body)
    assert answer["Error"].startswith("InvalidValue: ")
    assert answer["NodeNames"] is None
    assert (await allocator.post("bind", body))["Error"].startswith("InvalidValue: ")


async def test_a_call_with_whole_nodes_names_the_setting(allocator: Allocator) -> None:
    answer = await allocator.post("filter", {"Pod": pod_manifest("a", 1), "Nodes": {"items": []}})
    assert "nodeCacheCapable: true" in answer["Error"]


async def test_a_call_that_is_too_large_names_limit_and_setting(allocator: Allocator) -> None:
    await allocator.node("n1")
    body = b" " * ((2 << 20) + 8192 + 1)
    async with aiohttp.ClientSession() as http:
        url = f"http://{allocator.app.extender_address}/scheduler/preempt"
        async with http.post(url, data=io.BytesIO(body)) as response:
            assert response.status == 503
            preempt = await response.text()
    for sentence, limit in (((await allocator.post("filter", body))["Error"], "2,097,408"), (preempt, "2,105,344")):
        assert f"{limit} bytes" in sentence
        assert "nodeCacheCapable: true" in sentence
    assert "16,384 bytes" in (await allocator.post("bind", b" " * 16385))["Error"]


@pytest.mark.parametrize("verb", ["filter", "preempt", "bind"])
async def test_a_compressed_call_is_a_bad_request(
    allocator: Allocator, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    url = f"http://{allocator.app.extender_address}/scheduler/{verb}"
    async with aiohttp.ClientSession() as http:
        for encoding in ("gzip", "deflate", "br", "unknown"):
            async with http.post(url, data=b"not compressed", headers={"Content-Encoding": encoding}) as response:
                assert response.status == 400
                assert f"Content-Encoding is '{encoding}'" in await response.text()
        async with http.post(url, data=b"{}") as response:
            assert response.status in {200, 503}
    assert not caplog.records


async def half_sent(allocator: Allocator, path: str) -> str:
    """The answer to a call whose body does not come."""
    host, _, port = allocator.app.extender_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n{{".encode())
        async with asyncio.timeout(5):  # a body may take twice as long
            return (await reader.read()).decode()
    finally:
        writer.transport.abort()


async def test_calls_are_refused_before_the_informers_have_synced(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.delay(r"^/api/v1/pods", 60)
        async with running(server, tmp_path, synced=False) as allocator:
            await until(lambda: str(allocator.app.missing()).endswith("waiting for pods"))
            missing = "waiting for pods"
            answer = await allocator.filter(pod_manifest("a", 1), ["n1"])
            assert answer["Error"].startswith("ViewIncomplete: ")
            assert missing in answer["Error"]
            assert missing in await allocator.bind(pod_manifest("a", 1, uid="x"), "n1")
            for path in ("scheduler/filter", "scheduler/preempt", "scheduler/bind", "webhook/bindings"):
                assert "ViewIncomplete: " in await half_sent(allocator, path)
            status, page = await allocator.get("/readyz")
            assert status == 503
            assert missing in page
            assert (await allocator.get("/livez"))[0] == 200


async def test_a_lost_answer_does_not_bind_twice(allocator: Allocator) -> None:
    await allocator.node("n1")
    pod = await allocator.pod("a", 2)
    allocator.server.lose_answer("POST", r"/binding")
    assert await allocator.bind(pod, "n1") == ""
    stored = (await allocator.read("a"))["metadata"]["annotations"]
    await until(lambda: len(allocator.app.ledger) == 0)
    assert await allocator.bind(pod, "n1") == ""
    assert (await allocator.read("a"))["metadata"]["annotations"] == stored


async def test_chips_of_a_deleted_pod_are_free_again(allocator: Allocator) -> None:
    await allocator.node("n1")
    assert await allocator.schedule(await allocator.pod("a", 8), ["n1"]) == "n1"
    await allocator.delete("a")
    await until(lambda: not allocator.app.cluster.pods)
    assert await allocator.schedule(await allocator.pod("b", 8), ["n1"]) == "n1"


async def test_nothing_is_reserved_for_a_deleted_pod(allocator: Allocator) -> None:
    await allocator.node("n1")
    gone = await allocator.pod("gone", 8)
    uid = await allocator.delete("gone")
    await until(lambda: uid not in allocator.app.cluster.pods)
    answer = await allocator.filter(gone, ["n1"])
    assert answer["NodeNames"] is None
    assert answer["Error"].startswith("PodGone: pod default/gone ")
    assert (await allocator.filter(await allocator.pod("next", 8), ["n1"]))["NodeNames"] == ["n1"]


async def test_the_pods_of_a_gang_are_bound_together(allocator: Allocator) -> None:
    annotations = {GROUP: "train", MIN_AVAILABLE: "3"}
    names = ["n1", "n2", "n3", "n4"]
    for name in names:
        await allocator.node(name)
    pods = [await allocator.pod(f"train-{number}", 8, annotations=annotations) for number in range(2)]
    for each in pods:
        assert await allocator.schedule(each, names) == ""
    pods.append(await allocator.pod("train-2", 8, annotations=annotations))
    nodes = await asyncio.gather(*(allocator.schedule(each, names) for each in reversed(pods)))
    assert sorted(nodes) == ["n1", "n2", "n3"]
    stored = await allocator.read("train-1")
    assert stored["metadata"]["annotations"]["distributed-job"] == "true"
    assert stored["metadata"]["annotations"]["hccl/rankIndex"] == "1"


async def test_the_pods_of_a_gang_get_victims_of_one_plan_and_keep_their_chips(allocator: Allocator) -> None:
    names = ("n1", "n2")
    for number, name in enumerate(names):
        await allocator.node(name)
        assert await allocator.schedule(await allocator.pod(f"low-{number}", 8), [name]) == name
    lows = [await allocator.read(f"low-{number}") for number in range(2)]
    victims = {
        name: {"Pods": [{"UID": low["metadata"]["uid"]}], "NumPDBViolations": 0}
        for name, low in zip(names, lows, strict=True)
    }

    async def preempt(pod: Json) -> list[str]:
        answer = await allocator.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": victims})
        return list(answer["NodeNameToMetaVictims"])

    first = await allocator.pod("a-0", 8, priority=9, annotations={GROUP: "a", MIN_AVAILABLE: "3"})
    others = [
        await allocator.pod(f"a-{number}", 8, priority=9, annotations={GROUP: "a", MIN_AVAILABLE: "3"})
        for number in (1, 2)
    ]
    # Three servers are needed, and there are two.
    assert [await preempt(pod) for pod in (first, *others)] == [[], [], []]
    pair = [
        await allocator.pod(f"b-{number}", 8, priority=9, annotations={GROUP: "b", MIN_AVAILABLE: "2"})
        for number in (0, 1)
    ]
    assert [await preempt(pod) for pod in pair] == [["n1"], ["n2"]]
    await allocator.delete("low-0")
    await until(lambda: "low-0" not in {pod.name for pod in allocator.app.cluster.pods.values()})
    thief = await allocator.pod("thief", 1)
    refused = (await allocator.filter(thief, names))["FailedAndUnresolvableNodes"]["n1"]
    assert refused.endswith("0 free of 8 healthy; 8 chips are kept for job default/b")
    await allocator.delete("low-1")
    await until(lambda: "low-1" not in {pod.name for pod in allocator.app.cluster.pods.values()})
    assert set(await asyncio.gather(*(allocator.schedule(pod, names) for pod in pair))) == set(names)


async def test_other_calls_are_answered_while_a_large_gang_is_planned(
    allocator: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("allocator.gangs.gradual", "allocator.decision.waiting_jobs"):
        monkeypatch.setattr(f"{module}.MANY", 30)
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    for module in ("gangs.gradual", "gangs.board", "gangs.pending", "state.index"):
        monkeypatch.setattr(f"allocator.{module}._STEP", 1)
    nodes = [f"n{number}" for number in range(60)]
    for name in nodes:
        await allocator.node(name)
    annotations = {GROUP: "train", MIN_AVAILABLE: "50"}
    gang = [await allocator.pod(f"train-{number}", 8, annotations=annotations) for number in range(50)]
    first = asyncio.create_task(allocator.filter(gang[0], nodes))
    other = asyncio.create_task(allocator.filter(await allocator.pod("other", 1), nodes))
    second = asyncio.create_task(allocator.filter(gang[1], nodes))
    done, _ = await asyncio.wait({first, other, second}, return_when=asyncio.FIRST_COMPLETED)
    assert done == {other}
    answers = [(await each)["NodeNames"] for each in (first, other, second)]
    assert len({node for (node,) in answers}) == 3


async def test_a_pod_is_told_at_once_that_its_gang_is_larger_than_any_that_can_be_held(allocator: Allocator) -> None:
    await allocator.node("n1")
    annotations = {GROUP: "train", MIN_AVAILABLE: "100000"}
    answer = await allocator.filter(await allocator.pod("train-0", 8, annotations=annotations), ["n1"])
    assert not answer["NodeNames"]
    assert "InvalidMinAvailable: job default/train: 100000 pods must be" in answer["FailedAndUnresolvableNodes"]["n1"]
