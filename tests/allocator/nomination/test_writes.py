"""Nominations are written at a limited rate, and not while the API server throttles."""

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from allocator.nomination.writes import AT_ONCE, Writes
from ascend.annotations import NOMINATED, PLACEMENT_GATE
from ascend.errors import Conflict, Throttled
from ascend.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, UNVALIDATED, KubeClient
from ascend.kube.objects import Pod
from tests.allocator.builders import pod

pytestmark = pytest.mark.looptime


class PatchServer:
    """An API server that takes some time for each patch, and may refuse one."""

    def __init__(self, *, takes_s: float = 0.0) -> None:
        self.taken_s: list[float] = []
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.refusals: list[Exception] = []
        self.in_flight = self.most = 0
        self._takes_s = takes_s

    async def request(self, method: str, path: str, *, query: object, body: dict[str, Any], content_type: str) -> bytes:
        assert (method, query) == ("PATCH", UNVALIDATED)
        assert content_type in {MERGE_PATCH, STRATEGIC_MERGE_PATCH}
        self.taken_s.append(asyncio.get_running_loop().time())
        self.bodies.append(body)
        self.paths.append(path)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(self._takes_s)
        self.in_flight -= 1
        if self.refusals:
            raise self.refusals.pop(0)
        return b"{}"


def writes_to(api: PatchServer, *, per_s: float) -> Writes:
    return Writes(cast("KubeClient", api), per_s=per_s, monotonic=asyncio.get_running_loop().time)


async def test_a_burst_is_written_at_the_rate_and_with_few_requests_at_once() -> None:
    api = PatchServer(takes_s=0.3)
    writes = writes_to(api, per_s=100)
    pods = {name: pod(name) for name in (f"p{number}" for number in range(500))}
    done = [writes.start(writes.nominate(partial(pods.get, name), "n1"), name) for name in pods]
    assert all(await asyncio.gather(*done))
    assert api.most == AT_ONCE
    for number in range(len(pods) - 100):
        assert api.taken_s[number + 100] - api.taken_s[number] >= 0.99
    assert {body["status"]["nominatedNodeName"] for body in api.bodies} == {"n1"}


async def test_nothing_is_written_while_the_api_server_throttles() -> None:
    api = PatchServer()
    api.refusals = [Throttled("too many requests", status=429, retry_after_s=7.0)]
    writes = writes_to(api, per_s=1000)
    assert not await writes.nominate(lambda: pod("first"), "n1")
    assert await writes.nominate(lambda: pod("second"), "n1")
    assert api.taken_s[1] - api.taken_s[0] >= 7


async def test_a_pod_is_read_when_it_is_the_requests_turn() -> None:
    api = PatchServer()
    writes = writes_to(api, per_s=1)
    seen: list[Pod | None] = [pod("pod")]
    tasks = [writes.start(writes.nominate(lambda: seen[0], "n1"), "nominate") for _ in range(2)]
    await asyncio.sleep(0.5)
    seen[0] = None  # it was filtered meanwhile
    assert await asyncio.gather(*tasks) == [True, False]
    assert len(api.bodies) == 1


async def test_a_nomination_names_the_version_that_was_seen_and_a_gate_only_ours() -> None:
    api = PatchServer()
    api.refusals = [Conflict("the object has been modified", status=409)]
    writes = writes_to(api, per_s=1000)
    each = pod("pod")
    assert not await writes.nominate(lambda: each, "n1")
    assert await writes.nominate(lambda: each, "")
    assert await writes.lift(lambda: each)
    nominate, clear, lift = api.bodies
    assert nominate["metadata"] == {"uid": each.uid, "resourceVersion": "", "annotations": {NOMINATED: "n1"}}
    assert clear["status"] == {"nominatedNodeName": None}
    status = "/api/v1/namespaces/default/pods/pod/status"
    assert api.paths == [status, status, status.removesuffix("/status")]
    assert lift["spec"] == {"schedulingGates": [{"name": PLACEMENT_GATE, "$patch": "delete"}]}
    assert lift["metadata"] == {"uid": each.uid}
