"""The Service points to the leader, whatever happens to its EndpointSlice."""

import asyncio
from typing import Any, cast

import pytest
import structlog

from allocator.leadership.endpoint import PERIOD_S, ROUTED_S, STARTED, Endpoint, publish
from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import KubeObject, Metadata, Resource

pytestmark = pytest.mark.looptime
HERE = Endpoint("kube-system", "allocator", "10.1.2.3", {"http": 8443})


class Server:
    """The API server: a Service and its EndpointSlice."""

    def __init__(self) -> None:
        self.slice: dict[str, Any] | None = None
        self.status: dict[str, Any] = {}
        self.errors: list[ApiError | Unreachable] = []
        self.of_status: ApiError | None = None
        self.writes = 0

    async def patch(
        self,
        resource: Resource[KubeObject],
        name: str,
        body: dict[str, Any],
        *,
        namespace: str,
        content_type: str = "",
        subresource: str = "",
    ) -> None:
        if resource.plural == "services":
            assert (name, namespace, subresource) == ("allocator", "kube-system", "status")
            assert content_type == STRATEGIC_MERGE_PATCH  # conditions of others stay
            assert self.slice is not None
            if self.of_status is not None:
                raise self.of_status
            self.status = body["status"]
            return
        assert (resource.plural, name, namespace) == ("endpointslices", "allocator-leader", "kube-system")
        self.writes += 1
        if self.errors:
            raise self.errors.pop()
        if self.slice is None:
            raise NotFound("none", status=404)
        if self.slice["addressType"] != body["addressType"]:
            raise ApiError("addressType: field is immutable", status=422)
        self.slice |= body

    async def delete(self, resource: Resource[KubeObject], name: str, namespace: str) -> None:
        assert (resource.plural, name, namespace) == ("endpointslices", "allocator-leader", "kube-system")
        self.slice = None

    async def get(self, resource: Resource[KubeObject], name: str, _namespace: str) -> KubeObject:
        assert (resource.plural, name) == ("services", "allocator")
        return KubeObject(metadata=Metadata(name=name, uid="service-uid"))

    async def create(self, _resource: Resource[KubeObject], body: dict[str, Any], _namespace: str) -> None:
        if self.slice is not None:
            raise Conflict("it exists already", status=409)
        self.slice = body


async def test_the_endpoint_slice_is_restored_while_leading() -> None:
    server, leads = Server(), True
    server.errors = [Unreachable("away"), ApiError("not yet", status=403)]
    task = asyncio.create_task(publish(cast("KubeClient", server), HERE, lambda: leads))
    await asyncio.sleep(3)
    made = server.slice
    assert made is not None
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == "allocator"
    assert made["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
    assert (made["addressType"], made["endpoints"][0]["addresses"]) == ("IPv4", ["10.1.2.3"])
    assert made["ports"] == [{"name": "http", "port": 8443, "protocol": "TCP"}]
    made["endpoints"] = []
    await asyncio.sleep(PERIOD_S)
    assert made["endpoints"]
    server.slice = None
    await asyncio.sleep(PERIOD_S)
    assert server.slice is not None
    leads = False
    server.slice = None
    await asyncio.sleep(2 * PERIOD_S)
    assert server.slice is None  # another allocator leads
    assert task.done()


async def test_the_service_is_said_to_be_started_once_its_routes_have_followed() -> None:
    server = Server()
    task = asyncio.create_task(publish(cast("KubeClient", server), HERE, lambda: True))
    await asyncio.sleep(ROUTED_S - 1)
    assert server.slice
    assert not server.status
    await asyncio.sleep(2)
    (condition,) = written = server.status["conditions"]
    assert (condition["type"], condition["status"]) == (STARTED, "True")
    # The Service is deleted and made anew, and its EndpointSlice with it.
    server.slice, server.status = None, {}
    await asyncio.sleep(PERIOD_S)
    assert server.status["conditions"] == written  # no new time in each period: nothing to store
    task.cancel()


async def test_without_the_right_to_the_condition_the_endpoint_is_published_no_more_often() -> None:
    server = Server()
    server.of_status = ApiError("services/status is forbidden", status=403)  # an older chart grants no such right
    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(publish(cast("KubeClient", server), HERE, lambda: True))
        await asyncio.sleep(ROUTED_S + 3 * PERIOD_S + 1)
    assert server.slice
    assert server.writes <= 6
    told = [each["event"] for each in logs if each["log_level"] == "warning"]
    assert told
    assert not [each for each in told if "endpoint" in each]
    server.of_status = None
    await asyncio.sleep(PERIOD_S)
    assert server.status["conditions"]
    task.cancel()


async def test_an_address_of_the_other_family_recreates_the_slice() -> None:
    server = Server()
    for ip, kind in (("10.1.2.3", "IPv4"), ("fd00::5", "IPv6"), ("10.1.2.4", "IPv4")):
        here = Endpoint("kube-system", "allocator", ip, {"http": 8443})
        task = asyncio.create_task(publish(cast("KubeClient", server), here, lambda: True))
        await asyncio.sleep(PERIOD_S / 2)
        task.cancel()
        assert server.slice is not None
        assert (server.slice["addressType"], server.slice["endpoints"][0]["addresses"]) == (kind, [ip])
        assert server.slice["metadata"]["ownerReferences"][0]["uid"] == "service-uid"
