"""Several allocators: one answers and binds, and a former leader allocates no chip twice."""

import asyncio
import contextlib
import itertools
import time
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest

from allocator.binding.binding import BindingLease
from allocator.leadership.leader import Leader
from ascend.annotations import ALLOCATED, FENCE
from ascend.errors import LeadershipLost, Refusal
from ascend.kube.lease import LeaseName, boot_time
from ascend.reasons import Reason
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.harness import failure, node_manifest, pod_manifest, ref, review, running, until

ELECTION: dict[str, Any] = {"leader_election": True, "lease_duration_s": 3.0}


async def test_a_standby_names_the_leader_and_takes_over_when_it_ends(tmp_path: Path) -> None:
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
                assert (await second.bind(pod, "n1")).startswith("NotLeader: ")
                for call in (
                    second.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)),
                    second.stub.Filter(pb.FilterRequest(pod=ref(pod))),
                    second.stub.Release(pb.ReleaseRequest(pod_uid=pod["metadata"]["uid"])),
                ):
                    code, info = await failure(call)
                    assert (code, info.reason) == (grpc.StatusCode.UNAVAILABLE, Reason.NOT_LEADER)
                assert await first.schedule(pod, ["n1"]) == "n1"
                holder = (await first.read("a"))["metadata"]["annotations"][FENCE]
                assert holder in text
                await first.app.__aexit__(None, None, None)
                async with asyncio.timeout(5):
                    await second.app.wait_until_synced()
                assert await second.schedule(await second.pod("b", 4), ["n1"]) == "n1"
                bound = [(await second.read(name))["metadata"]["annotations"] for name in "ab"]
                assert bound[0][FENCE] != bound[1][FENCE]
                assert not set(bound[0][ALLOCATED].split(",")) & set(bound[1][ALLOCATED].split(","))


async def test_a_new_leader_sees_bindings_its_watch_has_not_shown(tmp_path: Path) -> None:
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
                    await second.app.wait_until_synced()
                assert await second.schedule(pods[2], ["n1"]) == ""
                server.resume_watches()


async def test_a_suspended_leader_posts_no_binding_and_exits(tmp_path: Path) -> None:
    ahead_s = 0.0
    posted = itertools.count()
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))

        async def count_bindings(_operation: str, _resource: object, subresource: str, document: Any) -> Any:
            if subresource == "binding":
                next(posted)
            return document

        server.admission.append(count_bindings)
        # Compared outside: within, a failed assertion would be one error of a group when the allocator exits.
        answers: list[str] = []

        async def suspend() -> None:
            nonlocal ahead_s
            async with running(server, tmp_path, boot_s=lambda: boot_time() + ahead_s, **ELECTION) as allocator:
                pod = await allocator.pod("a", 1)
                await allocator.filter(pod, ["n1"])
                assert len(allocator.app.ledger) == 1
                ahead_s = 2.5
                answers.append(await allocator.bind(pod, "n1"))
                await asyncio.sleep(5)

        with pytest.raises(ExceptionGroup) as ended:
            await suspend()
        assert ended.group_contains(LeadershipLost)
        assert [answer.partition(":")[0] for answer in answers] == [Reason.NOT_LEADER]
        assert next(posted) == 0


@pytest.mark.parametrize("front_end", ["gRPC", "webhook"])
async def test_a_lease_lost_during_a_call_is_reported_as_unavailable(tmp_path: Path, front_end: str) -> None:
    """And not as a refusal of the pod, so that the caller retries with the next leader."""
    ahead_s = 0.0
    is_deciding = False
    found: dict[str, object] = {}  # compared outside, as above

    def lose_lease() -> None:
        nonlocal ahead_s
        ahead_s = 6.5

    def now_ns() -> int:
        # The predicate time is made right before the lease for the Binding is requested.
        if is_deciding:
            lose_lease()
        return time.time_ns()

    async def call() -> None:
        nonlocal is_deciding
        election: dict[str, Any] = {"leader_election": True, "lease_duration_s": 9.0}
        clocks: dict[str, Any] = {"now_ns": now_ns, "boot_s": lambda: boot_time() + ahead_s}
        async with running(server, tmp_path, **clocks, **election) as allocator:
            pod = await allocator.pod("a", 1)
            if front_end == "gRPC":
                is_deciding = True
                code, info = await failure(allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), bind=True)))
                found["answer"] = code, info.reason
            else:
                server.pause_watches()  # so the next pod is read
                unseen = await server.create(pod_manifest("b", 1))
                server.delay("/pods/b$", 0.2)
                asyncio.get_running_loop().call_later(0.05, lose_lease)
                binding = {"metadata": {"name": "b", "uid": unseen["metadata"]["uid"]}, "target": {"name": "n1"}}
                status = (await review(allocator, "bindings", binding))["status"]
                found["answer"] = status["code"], status["message"].partition(":")[0]
                server.delay("/pods/b$", 0)
            found["node"] = (await allocator.read("a"))["spec"].get("nodeName")
            found["reserved"] = len(allocator.app.ledger)

    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        with contextlib.suppress(ExceptionGroup):  # it exits when it notices that the lease is lost
            await call()
    unavailable = grpc.StatusCode.UNAVAILABLE if front_end == "gRPC" else 503
    assert found == {"answer": (unavailable, Reason.NOT_LEADER), "node": None, "reserved": 0}


class FixedElection:
    """An election whose outcome and clock the test sets."""

    def __init__(self) -> None:
        self.leads = True
        self.remaining_s = 1.5
        self.identity = "me"
        self.holder = "me"
        self.term: int | None = 1
        self.inherited = False
        self.released = False

    async def won(self) -> None:
        """At once."""

    async def release(self, note: str) -> None:
        """At once."""
        assert note == "note"
        self.released = True


async def test_a_binding_lease_ends_before_another_can_lead() -> None:
    election = FixedElection()
    leader = Leader(election, AsyncMock())  # type: ignore[arg-type]  # the parts that it uses
    assert leader.missing() is not None
    await leader.won()
    lease = leader.lease(2.5)
    assert (lease.timeout_s, lease.annotations) == (1.5, {FENCE: "me"})
    assert leader.lease(1.0).timeout_s == 1.0
    election.leads = False
    election.term = None
    assert leader.missing() is not None
    election.term = 1
    with pytest.raises(Refusal) as refused:
        leader.lease(1.0)
    assert refused.value.reason is Reason.NOT_LEADER
    assert BindingLease(2.0).annotations == {}


@pytest.mark.looptime
async def test_a_leader_that_inherits_the_lease_waits_before_listing_pods() -> None:
    election = FixedElection()
    election.inherited = True
    leader = Leader(election, AsyncMock())  # type: ignore[arg-type]  # the parts that it uses
    before_s = asyncio.get_running_loop().time()
    await leader.won()
    assert asyncio.get_running_loop().time() - before_s == 4.0


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("inherited", "after_s", "released"), [(True, 1.0, False), (True, 5.0, True), (False, 0.1, True)]
)
async def test_a_leader_that_has_not_settled_does_not_release_the_lease(
    *, inherited: bool, after_s: float, released: bool
) -> None:
    election = FixedElection()
    election.inherited = inherited
    leader = Leader(election, AsyncMock())  # type: ignore[arg-type]  # the parts that it uses
    waiting = asyncio.create_task(leader.won())
    await asyncio.sleep(after_s)
    await leader.release("note")
    assert election.released == released
    waiting.cancel()


def test_the_lease_outlasts_the_last_binding_of_its_holder() -> None:
    lease = LeaseName("kube-system", "test")
    assert lease.duration_s * 0.9 - lease.renew_deadline_s >= 2.5
