"""The lease: at most one candidate leads, whatever happens to clocks, answers and the lease itself."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ascend.errors import ApiError, Conflict, LeadershipLost, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.lease import NOTE_S, Election, LeaseName, boot_time, new_identity
from ascend.kube.objects import LEASES, Lease, Resource
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig

pytestmark = pytest.mark.looptime
LEASE = LeaseName("kube-system", "test")


class Server:
    """The three calls of the API server that an election makes; a write names the version it is based on."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.broken = False
        self.lose_answers = 0
        self.lose_writes = False
        self.writes = 0

    async def get(self, _resource: Resource[Lease], name: str, namespace: str, *, timeout_s: float) -> Lease:
        assert (name, namespace) == ("test", "kube-system")
        await self._work(timeout_s)
        if self.lease is None:
            raise NotFound("none", status=404)
        return self._answer()

    async def create(self, _resource: Resource[Lease], body: dict[str, Any], _namespace: str) -> Lease:
        await self._work(1.0)
        if self.lease is not None:
            raise Conflict("there", status=409)
        self.lease = {"metadata": {"uid": f"u{self.version}"}, "spec": body["spec"]}
        return self._written()

    async def patch(
        self, _resource: Resource[Lease], _name: str, body: dict[str, Any], *, namespace: str, timeout_s: float
    ) -> Lease:
        assert namespace == "kube-system"
        await self._work(timeout_s)
        if self.lease is None:
            raise NotFound("none", status=404)
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("version", status=409)
        if self.lose_writes:
            raise Unreachable("the write is lost")
        notes = self.lease["metadata"].get("annotations", {}) | body["metadata"].get("annotations", {})
        metadata = {**self.lease["metadata"], "annotations": {key: note for key, note in notes.items() if note}}
        self.lease = {"metadata": metadata, "spec": self.lease["spec"] | body["spec"]}
        return self._written()

    async def _work(self, timeout_s: float) -> None:
        await asyncio.sleep(0.01)
        if self.broken:
            await asyncio.sleep(timeout_s)
            raise Unreachable("no answer")

    def _written(self) -> Lease:
        self.version += 1
        self.writes += 1
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unreachable("the answer is lost")
        return self._answer()

    def _answer(self) -> Lease:
        assert self.lease is not None
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return msgspec.convert(self.lease, Lease)


def candidate(server: object, name: str, clock: Callable[[], float] | None = None) -> Election:
    return Election(server, LEASE, name, clock=clock or asyncio.get_running_loop().time)  # type: ignore[arg-type]  # the three calls of an election


@asynccontextmanager
async def running(*elections: Election) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(each.run()) for each in elections]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_first_candidate_leads_while_it_renews() -> None:
    server = Server()
    a, b = candidate(server, "a"), candidate(server, "b")
    async with running(a):
        await a.won()
        assert asyncio.get_running_loop().time() < 1
        async with running(b):
            await asyncio.sleep(120)
            assert (a.leads, b.leads, b.holder, a.term) == (True, False, "a", 1)


async def test_a_released_lease_passes_at_once_and_another_when_it_expires() -> None:
    server = Server()
    a, b, c = (candidate(server, name) for name in "abc")
    loop = asyncio.get_running_loop()
    async with running(b):
        async with running(a):
            await asyncio.sleep(20)
            first, second = (a, b) if a.leads else (b, a)
        await a.release()
        if second is b:
            ended_s = loop.time()
            await b.won()
            assert loop.time() - ended_s < 2.5
            assert (b.term, b.inherited) == (2, False)
        assert first.leads != second.leads
    died_s = loop.time()
    async with running(c):
        await c.won()
    assert 13 < loop.time() - died_s < 15 + 2.5
    assert c.inherited


@pytest.mark.parametrize("leads_s", [5.0, NOTE_S + 5.0])
async def test_the_note_of_a_release_is_kept_for_a_while(leads_s: float) -> None:
    """So that it is read as well if the next holder dies at once."""
    server = Server()
    a, b, c = (candidate(server, name) for name in "abc")
    async with running(a):
        await a.won()
        assert a.note == ""
    await a.release("two pods")
    async with running(b):
        await b.won()
        assert b.note == "two pods"
        await asyncio.sleep(leads_s)
        assert bool(b.note) is (leads_s < NOTE_S)
    async with running(c):
        await c.won()
        assert (c.inherited, c.note) == (True, b.note)
    await c.release()
    d = candidate(server, "d")
    async with running(d):
        await d.won()
    assert (d.inherited, d.note) == (False, "")


async def test_one_of_many_candidates_gets_a_free_lease() -> None:
    server = Server()
    many = [candidate(server, f"c{number}") for number in range(20)]
    async with running(*many):
        await asyncio.sleep(60)
        assert sum(each.leads for each in many) == 1


async def test_never_two_candidates_lead_during_repeated_outages() -> None:
    server = Server()
    candidates = [candidate(server, name) for name in "ab"]
    leaders: list[Election] = []
    async with running(*candidates) as tasks:
        for tick in range(4000):
            await asyncio.sleep(0.1)
            server.broken = tick // 150 % 2 == 1 and tick % 7 != 0
            now = [each for each in candidates if each.remaining_s > 0]
            assert len(now) <= 1
            leaders += [each for each in now if each.leads and each not in leaders]
            for index, task in enumerate(tasks):
                if task.done():
                    assert isinstance(task.exception(), LeadershipLost)
                    candidates[index] = candidate(server, f"{index}-{tick}")
                    tasks[index] = asyncio.create_task(candidates[index].run())
    assert len(leaders) > 2


async def test_a_suspended_holder_stops_leading_at_once() -> None:
    server = Server()
    ahead_s = 0.0
    loop = asyncio.get_running_loop()
    a = candidate(server, "a", lambda: loop.time() + ahead_s)
    async with running(a) as (task,):
        await a.won()
        assert a.leads
        ahead_s = LEASE.renew_deadline_s + 1  # the process was suspended, and its event loop has not run since
        assert not a.leads
        assert a.remaining_s < 15 - LEASE.renew_deadline_s
        with pytest.raises(LeadershipLost, match="renewed"):
            await asyncio.wait_for(task, 5)
    assert a.remaining_s < 0
    await a.release()
    assert server.lease is not None
    assert server.lease["spec"]["holderIdentity"] == "a"  # not released, because it may be held by another


async def test_a_holder_whose_lease_was_taken_stops_with_an_error() -> None:
    server = Server()
    a = candidate(server, "a")
    async with running(a) as (task,):
        await a.won()
        assert server.lease is not None
        server.lease["spec"] = {**server.lease["spec"], "holderIdentity": "another"}
        server.version += 1
        with pytest.raises(LeadershipLost, match="another"):
            await asyncio.wait_for(task, 5)


async def test_a_deleted_lease_ends_its_holder_and_is_taken_after_it_expired() -> None:
    server = Server()
    a, b = candidate(server, "a"), candidate(server, "b")
    async with running(a, b) as tasks:
        await asyncio.sleep(20)
        leader, other = (a, b) if a.leads else (b, a)
        server.lease = None
        await other.won()
        assert not leader.leads
        assert isinstance(tasks[(a, b).index(leader)].exception(), LeadershipLost)


@pytest.mark.parametrize("lost", range(1, 4))
async def test_lost_answers_do_not_cost_the_lease(lost: int) -> None:
    server = Server()
    server.lose_answers = lost
    a = candidate(server, "a")
    async with running(a) as (task,):
        await asyncio.sleep(60)
        server.lose_answers = lost
        await asyncio.sleep(60)
        assert a.leads
        assert not task.done()


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("released", [False, True])
async def test_only_an_unreleased_lease_is_inherited_despite_lost_answers(*, lost: int, released: bool) -> None:
    server = Server()
    a, b = candidate(server, "a"), candidate(server, "b")
    async with running(a):
        await a.won()
    async with running(b):
        await asyncio.sleep(5)
        if released:
            await a.release()
        server.lose_answers = lost
        await b.won()
        assert (b.holder, b.inherited) == ("b", not released)


async def test_nothing_is_inherited_after_a_release_in_between() -> None:
    server = Server()
    dead, c = candidate(server, "dead"), candidate(server, "c")
    async with running(dead):
        await dead.won()
    server.lose_writes = True
    async with running(c):
        await asyncio.sleep(20)  # it has tried to take the lease, and its write was lost
        assert c.inherited
        server.lose_writes = False
        assert server.lease is not None
        server.lease["spec"] |= {"holderIdentity": "b", "leaseTransitions": 2}
        server.version += 1
        await asyncio.sleep(5)
        server.lease["spec"] |= {"holderIdentity": ""}
        server.version += 1
        await c.won()
        assert not c.inherited


async def test_a_deleted_lease_is_inherited_only_if_it_was_seen_held() -> None:
    server = Server()
    loop = asyncio.get_running_loop()
    dead, b, fresh = (candidate(server, name) for name in ("dead", "b", "fresh"))
    async with running(dead):
        await dead.won()
    async with running(b):
        await asyncio.sleep(5)
        server.lease = None
        await b.won()
        assert loop.time() > 14
        assert b.inherited
    server.lease = None
    before_s = loop.time()
    async with running(fresh):
        await fresh.won()
        assert loop.time() - before_s < 1
        assert not fresh.inherited


async def test_a_refused_request_is_retried() -> None:
    server = Server()
    a = candidate(server, "a")

    async def refuse(*_arguments: object, **_more: object) -> Lease:
        raise ApiError("not allowed", status=403)

    working, server.get = server.get, refuse  # type: ignore[method-assign]
    async with running(a):
        await asyncio.sleep(10)
        assert not a.leads
        server.get = working  # type: ignore[method-assign]
        await asyncio.wait_for(a.won(), 5)


def test_identities_are_unique_and_the_clock_advances() -> None:
    assert new_identity() != new_identity()
    before_s = boot_time()
    assert boot_time() >= before_s


async def test_the_lease_has_the_format_of_kubernetes(tmp_path: Path) -> None:
    async with (
        ApiServer(tokens=TOKENS) as server,
        await KubeClient.connect(str(write_kubeconfig(tmp_path, server, "secret"))) as client,
    ):
        a = Election(client, LEASE, "a")
        b = Election(client, LeaseName("kube-system", "test", 3), "b")
        async with running(a):
            await a.won()
            stored = await client.get(LEASES, "test", "kube-system")
            assert (stored.spec.holder_identity, stored.spec.lease_duration_seconds) == ("a", 15)
            assert stored.spec.renew_time is not None
            assert stored.spec.renew_time.endswith("Z")
        await a.release()
        async with running(b):
            await b.won()
            assert (await client.get(LEASES, "test", "kube-system")).spec.lease_transitions == 2
