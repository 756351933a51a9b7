"""Several allocators: one answers and binds, and what a deposed one still does gives no chip twice."""

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from allocator.binding.binding import unlimited_lease
from allocator.leadership.leader import Leader
from ascend.annotations import ALLOCATED, FENCE
from ascend.errors import LeadershipLost, Refusal
from ascend.kube.lease import LeaseName, boot_time
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, failure, node_manifest, ref, review, running, until

ELECTION: dict[str, Any] = {"leader_election": True, "lease_duration_s": 3.0}


async def test_one_is_ready_the_other_says_who_leads_and_takes_over_when_it_ends(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        async with running(server, tmp_path, **ELECTION) as first:
            pod = await first.pod("a", 4)
            async with running(server, tmp_path, synced=False, **ELECTION) as second:
                assert "ascend_allocator_leader 1.0" in (await first.get("/metrics"))[1]
                assert "ascend_allocator_leader 0.0" in (await second.get("/metrics"))[1]
                await until(lambda: "leads" in (second.app.missing() or ""))
                status, text = await second.get("/readyz")
                assert (status, (await first.get("/readyz"))[0]) == (503, 200)
                assert " leads" in text
                assert (await bind_as(second, pod)).startswith("NotLeader: ")
                for ask in (
                    second.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)),
                    second.stub.Filter(pb.FilterRequest(pod=ref(pod))),
                    second.stub.Release(pb.ReleaseRequest(pod_uid=pod["metadata"]["uid"])),
                ):
                    code, info = await failure(ask)
                    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, "NotLeader")
                assert await first.schedule(pod, ["n1"]) == "n1"
                holder = (await first.read("a"))["metadata"]["annotations"][FENCE]
                assert holder in text
                await first.app.__aexit__(None, None, None)
                async with asyncio.timeout(5):
                    await second.app.synced()
                assert await second.schedule(await second.pod("b", 4), ["n1"]) == "n1"
                bound = [(await second.read(name))["metadata"]["annotations"] for name in "ab"]
                assert bound[0][FENCE] != bound[1][FENCE]
                assert not set(bound[0][ALLOCATED].split(",")) & set(bound[1][ALLOCATED].split(","))


async def bind_as(allocator: Allocator, pod: dict[str, Any]) -> str:
    return await allocator.bind(pod, "n1")


async def test_a_new_leader_knows_the_bindings_its_watch_has_not_shown(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        async with running(server, tmp_path, **ELECTION) as first:
            pods = [await first.pod(name, 4) for name in "abc"]
            async with running(server, tmp_path, synced=False, **ELECTION) as second:
                await until(lambda: len(second.app.cluster.pods) == 3)
                server.pause_watches()
                for pod in pods[:2]:
                    assert await first.schedule(pod, ["n1"]) == "n1"
                assert not any(pod.spec.node_name for pod in second.app.cluster.pods.values())
                await first.app.__aexit__(None, None, None)
                async with asyncio.timeout(10):
                    await second.app.synced()
                assert await second.schedule(pods[2], ["n1"]) == ""
                server.resume_watches()


async def test_who_stood_still_posts_no_binding_and_ends(tmp_path: Path) -> None:
    ahead_s = 0.0
    posted = itertools.count()
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))

        async def watch_bindings(_operation: str, _resource: object, subresource: str, document: Any) -> Any:
            if subresource == "binding":
                next(posted)
            return document

        server.admission.append(watch_bindings)

        # Judged outside: with the end of the allocator, what goes wrong within would be one error of a group.
        told: list[str] = []

        async def stand_still() -> None:
            nonlocal ahead_s
            async with running(server, tmp_path, boot_s=lambda: boot_time() + ahead_s, **ELECTION) as allocator:
                pod = await allocator.pod("a", 1)
                await allocator.filter(pod, ["n1"])
                assert len(allocator.app.ledger) == 1
                ahead_s = 2.5
                told.append(await allocator.bind(pod, "n1"))
                await asyncio.sleep(5)

        with pytest.raises(ExceptionGroup) as ended:
            await stand_still()
        assert ended.group_contains(LeadershipLost)
        assert [text.partition(":")[0] for text in told] == ["NotLeader"]
        assert "leads no more" in told[0]
        assert next(posted) == 0


@pytest.mark.parametrize("asked", ["by gRPC", "by webhook"])
async def test_a_lease_lost_while_an_answer_is_made_looks_like_an_outage(tmp_path: Path, asked: str) -> None:
    """Not like a fault of the pod: who asked asks again, and the one that leads by then."""
    ahead_s = 0.0
    deciding = False
    told: dict[str, object] = {}  # judged outside, as above

    def lose_it() -> None:
        nonlocal ahead_s
        ahead_s = 6.5

    def now_ns() -> int:
        # The stamp of a decision is taken right before the leave to post it.
        if deciding:
            lose_it()
        return time.time_ns()

    async def ask() -> None:
        nonlocal deciding
        given: dict[str, Any] = {"leader_election": True, "lease_duration_s": 9.0}  # it ends 1.2 s later
        clocks: dict[str, Any] = {"now_ns": now_ns, "boot_s": lambda: boot_time() + ahead_s}
        async with running(server, tmp_path, **clocks, **given) as allocator:
            pod = await allocator.pod("a", 1)
            if asked == "by gRPC":
                deciding = True
                code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)))
                told["answer"] = code, info.reason
            else:
                server.delay("/pods/a$", 0.5)  # read, because the Binding names no uid
                asyncio.get_running_loop().call_later(0.1, lose_it)
                binding = {"metadata": {"name": "a"}, "target": {"name": "n1"}}
                status = (await review(allocator, "bindings", binding))["status"]
                told["answer"] = status["code"], status["message"].partition(":")[0]
            told["node"] = (await allocator.read("a"))["spec"].get("nodeName")
            told["kept"] = len(allocator.app.ledger)
            await until(lambda: False)  # it ends

    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        with pytest.raises(ExceptionGroup) as ended:
            await ask()
        assert ended.group_contains(LeadershipLost)
    outage = grpc.StatusCode.UNAVAILABLE if asked == "by gRPC" else 503
    assert told == {"answer": (outage, "NotLeader"), "node": None, "kept": 0}


class Still:
    """An election whose outcome and clock the test sets."""

    def __init__(self) -> None:
        self.leads = True
        self.remaining_s = 1.5
        self.identity = "me"
        self.holder = "me"
        self.term: int | None = 1
        self.inherited = False
        self.given_up = False

    async def won(self) -> None:
        """At once."""

    async def release(self) -> None:
        """At once, too."""
        self.given_up = True


async def test_a_permit_ends_before_another_can_lead_and_names_the_leader() -> None:
    election = Still()
    leadership = Leader(election)  # type: ignore[arg-type]  # what it reads of one
    assert leadership.missing() is not None
    await leadership.won()
    permit = leadership.lease(2.5)
    assert (permit.timeout_s, permit.annotations) == (1.5, {FENCE: "me"})
    assert leadership.lease(1.0).timeout_s == 1.0
    election.leads = False
    election.term = None
    assert "leads no more" in str(leadership.missing())
    election.term = 1
    with pytest.raises(Refusal, match="could not renew its lease") as refused:
        leadership.lease(1.0)
    assert refused.value.reason == "NotLeader"
    assert unlimited_lease(2.0).annotations == {}


@pytest.mark.looptime
async def test_who_inherits_waits_before_the_pods_are_read() -> None:
    election = Still()
    election.inherited = True
    leadership = Leader(election)  # type: ignore[arg-type]  # what it reads of one
    before_s = asyncio.get_running_loop().time()
    await leadership.won()
    assert asyncio.get_running_loop().time() - before_s == 4.0


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("inherited", "after_s", "given_up"), [(True, 1.0, False), (True, 5.0, True), (False, 0.1, True)]
)
async def test_who_ends_while_it_waits_for_the_one_before_leaves_the_wait_to_the_next(
    *, inherited: bool, after_s: float, given_up: bool
) -> None:
    election = Still()
    election.inherited = inherited
    leadership = Leader(election)  # type: ignore[arg-type]  # what it reads of one
    waiting = asyncio.create_task(leadership.won())
    await asyncio.sleep(after_s)
    await leadership.release()
    assert election.given_up == given_up
    waiting.cancel()


def test_belief_ends_early_enough_for_the_last_binding_to_end_too() -> None:
    lease = LeaseName("kube-system", "test")
    assert lease.duration_s * 0.9 - lease.renew_deadline_s >= 2.5
