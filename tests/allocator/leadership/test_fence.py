"""The fence names the leader, and a suspended former leader can't write its name again."""

import asyncio
from typing import Any, cast

import pytest

from allocator.leadership.fence import PERIOD_S, Fence
from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import KubeObject, Metadata, Resource

pytestmark = pytest.mark.looptime


class Server:
    """The API server: one object with a version."""

    def __init__(self) -> None:
        self.holder = ""
        self.version = 0
        self.errors: list[ApiError | Unreachable] = []
        self.before_write: list[Any] = []

    async def get(self, resource: Resource[KubeObject], name: str, namespace: str) -> KubeObject:
        assert (resource.plural, name, namespace) == ("leaders", "allocator", "kube-system")
        if not self.holder:
            raise NotFound("none", status=404)
        return self._answer()

    async def patch(self, _resource: object, _name: str, body: dict[str, Any], *, namespace: str) -> KubeObject:
        assert namespace == "kube-system"
        if self.before_write:
            self.before_write.pop()()
        if self.errors:
            raise self.errors.pop()
        if not self.holder:
            raise NotFound("none", status=404)
        if body["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("version", status=409)
        return self._put(body)

    async def create(self, _resource: object, body: dict[str, Any], _namespace: str) -> KubeObject:
        if self.holder:
            raise Conflict("there", status=409)
        return self._put(body)

    def _put(self, body: dict[str, Any]) -> KubeObject:
        if self.holder != body["spec"]["holder"]:
            self.version += 1
        self.holder = body["spec"]["holder"]
        return self._answer()

    def _answer(self) -> KubeObject:
        return KubeObject(metadata=Metadata(name="allocator", resource_version=str(self.version)))


class Candidate:
    """An allocator that leads, or does not."""

    def __init__(self, server: Server, name: str) -> None:
        self.leads = True
        self.fence = Fence(cast("KubeClient", server), "kube-system", "allocator", name, lambda: self.leads)


async def test_the_fence_is_closed_and_kept_closed() -> None:
    server = Server()
    server.errors = [Unreachable("away"), ApiError("no", status=500)]
    one = Candidate(server, "one")
    await one.fence.close()
    assert server.holder == "one"
    task = asyncio.create_task(one.fence.keep())
    server.holder, server.errors = "", []
    await asyncio.sleep(PERIOD_S + 1)
    assert server.holder == "one"
    other = Candidate(server, "other")
    one.leads = False
    await other.fence.close()
    await asyncio.sleep(PERIOD_S + 1)
    assert server.holder == "other"
    assert task.done()


async def test_a_suspended_leader_does_not_overwrite_its_successor() -> None:
    server = Server()
    old, new = Candidate(server, "old"), Candidate(server, "new")
    await old.fence.close()

    def suspend() -> None:
        # Between reading the clock and the request another allocator takes over.
        old.leads = False
        server.holder, server.version = "new", server.version + 1

    server.before_write = [suspend]
    await old.fence.close()
    assert server.holder == "new"
    await new.fence.close()
    assert server.holder == "new"
