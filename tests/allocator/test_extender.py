"""The extender as kube-scheduler sees it, over real HTTP and on an API server."""

import io
from pathlib import Path

import aiohttp
import pytest

from allocator.serving.extender import MAX_BODY_BYTES
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED, PREDICATE_TIME
from sandbox.apiserver import ApiServer
from tests.allocator.harness import pod_manifest, running, until

NODES = ["n1", "n2"]


async def test_a_pod_is_filtered_scored_and_bound_with_its_chips(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        for name in NODES:
            await allocator.node(name)
        pod = await allocator.pod("a", 2)
        assert await allocator.filter(pod, [*NODES, "n3"]) == {
            "NodeNames": ["n1"],
            "FailedNodes": {},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }
        assert await allocator.prioritize(pod, NODES) == {"n1": 10, "n2": 9}
        assert await allocator.bind(pod, "n1") == ""
        stored = await allocator.read("a")
        assert stored["spec"]["nodeName"] == "n1"
        assert stored["metadata"]["annotations"][ALLOCATED] == "Ascend910-0,Ascend910-1"
        assert int(stored["metadata"]["annotations"][PREDICATE_TIME]) > 0


async def test_exactly_one_node_gets_the_most_points(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        names = [f"n{number:02}" for number in range(14)]
        for name in names:
            await allocator.node(name)
        # n00 … n12 have ever fewer chips left, so that there are more ranks than points.
        for number, name in enumerate(names[:13]):
            for taken in range(number % 8):
                assert await allocator.bind(await allocator.pod(f"p{number}-{taken}", 1), name) == ""
        scores = await allocator.prioritize(await allocator.pod("a", 1), names)
        assert sorted(scores.values()).count(10) == 1
        assert min(scores.values()) >= 0
        assert set(scores) == set(names)


async def test_the_next_pod_is_asked_about_before_this_one_is_bound(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("n2")
        pods = [await allocator.pod(f"p{number}", 4) for number in range(5)]
        winners = []
        for pod in pods:
            fitting = (await allocator.filter(pod, NODES))["NodeNames"]
            # kube-scheduler asks for no scores where one node is left.
            scores = await allocator.prioritize(pod, fitting) if len(fitting) > 1 else dict.fromkeys(fitting, 10)
            winners.append(next((name for name, score in scores.items() if score == 10), ""))
        assert winners == ["n1", "n1", "n2", "n2", ""]
        for pod, winner in reversed(list(zip(pods[:4], winners, strict=False))):
            assert await allocator.bind(pod, winner) == ""
        written = {(await allocator.read(f"p{n}"))["metadata"]["annotations"][ALLOCATED] + winners[n] for n in range(4)}
        assert len(written) == 4


async def test_every_node_has_its_reason_and_none_of_them_is_worth_a_preemption_by_counting(tmp_path: Path) -> None:
    # Nodes without enough chips by count kube-scheduler has left out itself; on these it would find nobody to displace.
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("plain", npu=False)
        assert await allocator.schedule(await allocator.pod("a", 8), ["n1"]) == "n1"
        answer = await allocator.filter(await allocator.pod("b", 8), ["n1", "plain"])
        assert answer["NodeNames"] == []
        assert answer["FailedNodes"] == {}
        assert answer["FailedAndUnresolvableNodes"]["n1"].startswith("NotEnoughChips: ")
        assert answer["FailedAndUnresolvableNodes"]["plain"].startswith("NotAnNpuNode: ")
        odd = await allocator.filter(await allocator.pod("c", 3), ["n1"])
        assert odd["FailedAndUnresolvableNodes"]["n1"].startswith("InvalidRequest: ")


async def test_of_many_refused_nodes_one_of_each_reason_speaks_for_all(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        assert await allocator.schedule(await allocator.pod("a", 4), ["n1"]) == "n1"
        nowhere = [f"nowhere-{number}" for number in range(5_000)]
        answer = await allocator.filter(await allocator.pod("b", 8), ["n1", *nowhere])
        assert answer["NodeNames"] == []
        assert answer["FailedAndUnresolvableNodes"] == {
            "n1": "NotEnoughChips: 8 chips asked for, 4 free of 8 healthy",
            "nowhere-0": "UnknownNode on 5,000 nodes, here: node nowhere-0 is not known",
        }


async def test_the_best_of_the_named_nodes_is_chosen_wherever_its_name_stands(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        for name in ("n1", "n10", "n2"):
            await allocator.node(name)
        for number, names in enumerate((["n2", "n10"], ["n2", "nowhere"], ["n2", "n10", "n1"])):
            pod = await allocator.pod(f"p{number}", 8)
            assert (await allocator.filter(pod, names))["NodeNames"] == [min(names)]


async def test_on_the_node_where_it_has_preempted_pods_a_pod_waits_for_their_end(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        await allocator.node("n2")
        for name in NODES:
            for number in range(2):
                assert await allocator.schedule(await allocator.pod(f"{name}-{number}", 4), [name]) == name
        ending = await allocator.delete("n1-0", grace_s=30)
        await until(lambda: allocator.app.cluster.pods[ending].is_terminating)
        pod = await allocator.pod("b", 4)
        pod["status"] = {"nominatedNodeName": "n1"}
        answer = await allocator.filter(pod, NODES)
        assert list(answer["FailedNodes"]) == ["n1"]
        assert list(answer["FailedAndUnresolvableNodes"]) == ["n2"]
        pod["status"] = {"nominatedNodeName": "n2"}
        assert (await allocator.filter(pod, NODES))["FailedNodes"] == {}


async def test_a_new_round_for_a_pod_forgets_what_the_last_one_kept(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 8)
        await allocator.filter(pod, ["n1"])
        assert allocator.app.ledger.count(Stage.RESERVED) == 1
        await allocator.filter(pod, ["nowhere"])
        assert len(allocator.app.ledger) == 0


async def test_bound_elsewhere_than_advised_the_chips_move_along(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        for name in NODES:
            await allocator.node(name)
        pod = await allocator.pod("a", 8)
        assert (await allocator.prioritize(pod, NODES))["n1"] == 10
        assert await allocator.bind(pod, "n2") == ""
        assert (await allocator.filter(await allocator.pod("b", 8), NODES))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("count", [None, 0])
async def test_a_pod_that_asks_for_no_chips_is_none_of_our_business(tmp_path: Path, count: int | None) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("plain", npu=False)
        pod = await allocator.pod("a", count)
        assert (await allocator.filter(pod, ["plain"]))["NodeNames"] == ["plain"]
        assert await allocator.prioritize(pod, ["plain"]) == {"plain": 0}
        victims = {"plain": {"Pods": [{"UID": "of-another"}], "NumPDBViolations": 1}}
        assert await allocator.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": victims}) == {
            "NodeNameToMetaVictims": victims
        }
        # The scheduler asks about whatever names the resource, and without managedResources about every pod.
        assert await allocator.bind(pod, "plain") == ""
        assert (await allocator.read("a"))["spec"]["nodeName"] == "plain"
        assert "annotations" not in (await allocator.read("a"))["metadata"]
        assert await allocator.bind(pod, "plain") == ""


async def test_a_bind_that_can_not_be_is_answered_with_the_reason(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 8)
        assert "uid" in await allocator.bind(pod, "n1", uid="somebody-else")
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
async def test_a_bad_question_gets_a_good_answer(body: bytes, tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        answer = await allocator.post("filter", body)
        assert answer["Error"].startswith("InvalidValue: ")
        assert answer["NodeNames"] is None
        assert await allocator.post("prioritize", body) == []
        assert (await allocator.post("bind", body))["Error"].startswith("InvalidValue: ")


async def test_sent_whole_nodes_it_says_what_to_configure(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        answer = await allocator.post("filter", {"Pod": pod_manifest("a", 1), "Nodes": {"items": []}})
        assert "nodeCacheCapable: true" in answer["Error"]


async def test_a_question_too_large_is_answered_with_the_limit_and_what_to_configure(tmp_path: Path) -> None:
    body = b" " * (MAX_BODY_BYTES + 1)
    sentence = "the request has more than 16,777,216 bytes; the extender keeps its own view of nodes: set nodeCache"
    async with ApiServer() as server, running(server, tmp_path) as allocator, aiohttp.ClientSession() as http:
        assert sentence in (await allocator.post("filter", body))["Error"]
        assert sentence in (await allocator.post("bind", body))["Error"]
        assert await allocator.post("prioritize", body) == []
        url = f"http://{allocator.app.extender_address}/scheduler/preempt"
        async with http.post(url, data=io.BytesIO(body)) as response:
            assert (response.status, sentence in await response.text()) == (503, True)


@pytest.mark.parametrize("path", ["scheduler/filter", "scheduler/prioritize", "scheduler/preempt", "scheduler/bind"])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "made-up"])
async def test_a_packed_question_is_the_clients_mistake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, encoding: str
) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        async with aiohttp.ClientSession() as http:
            url = f"http://{allocator.app.extender_address}/{path}"
            async with http.post(url, data=b"rubbish", headers={"Content-Encoding": encoding}) as response:
                assert response.status == 400
                assert f"Content-Encoding is '{encoding}'" in await response.text()
            async with http.post(url, data=b"{}") as response:
                assert response.status in {200, 503}
        assert not caplog.records


async def test_nothing_is_answered_before_the_view_is_complete(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.delay(r"^/api/v1/pods", 60)
        async with running(server, tmp_path, synced=False) as allocator:
            await until(lambda: str(allocator.app.missing()).endswith("waiting for pods"))
            missing = "the view of the cluster is not complete yet: waiting for pods"
            answer = await allocator.filter(pod_manifest("a", 1), ["n1"])
            assert missing in answer["Error"]
            assert await allocator.prioritize(pod_manifest("a", 1), ["n1"]) == {}
            assert missing in await allocator.bind(pod_manifest("a", 1, uid="x"), "n1")
            status, page = await allocator.get("/readyz")
            assert status == 503
            assert missing in page
            assert (await allocator.get("/livez"))[0] == 200


async def test_an_answer_lost_on_the_way_does_not_bind_twice(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 2)
        server.lose_answer("POST", r"/binding")
        assert await allocator.bind(pod, "n1") == ""
        stored = (await allocator.read("a"))["metadata"]["annotations"]
        await until(lambda: len(allocator.app.ledger) == 0)
        assert await allocator.bind(pod, "n1") == ""
        assert (await allocator.read("a"))["metadata"]["annotations"] == stored


async def test_chips_of_a_deleted_pod_are_free_again(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        assert await allocator.schedule(await allocator.pod("a", 8), ["n1"]) == "n1"
        await allocator.delete("a")
        await until(lambda: not allocator.app.cluster.pods)
        assert await allocator.schedule(await allocator.pod("b", 8), ["n1"]) == "n1"


async def test_nothing_is_kept_for_a_pod_that_its_scheduler_does_not_know_to_be_gone(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        gone = await allocator.pod("gone", 8)
        uid = await allocator.delete("gone")
        await until(lambda: uid not in allocator.app.cluster.pods)
        answer = await allocator.filter(gone, ["n1"])
        assert answer["NodeNames"] == []
        assert "pod default/gone is gone" in str(answer)
        assert (await allocator.filter(await allocator.pod("next", 8), ["n1"]))["NodeNames"] == ["n1"]


async def test_decisions_are_counted(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        await allocator.node("n1")
        pod = await allocator.pod("a", 8)
        await allocator.schedule(pod, ["n1"])
        await allocator.bind(pod, "n1")
        await allocator.filter(await allocator.pod("b", 1), ["n1"])
        await until(lambda: len(allocator.app.ledger) == 0)
        _, page = await allocator.get("/metrics")
        for line in (
            'ascend_allocator_decisions_total{outcome="bound",reason=""} 1.0',
            'ascend_allocator_decisions_total{outcome="repeated",reason=""} 1.0',
            'ascend_allocator_decisions_total{outcome="refused",reason="NotEnoughChips"} 1.0',
            'ascend_allocator_decision_duration_seconds_count{kind="bind"} 2.0',
            'ascend_allocator_reservations{state="tentative"} 0.0',
            "ascend_allocator_expired_reservations_total 0.0",
            "ascend_allocator_snapshot_age_seconds ",
            'ascend_allocator_build_info{version="',
        ):
            assert line in page
