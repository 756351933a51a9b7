"""The leader ends in peace while a slow webhook of somebody else holds up a Binding with chips of the leader."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from ascend.errors import ApiError
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import Setup, World

SETUP = Setup(by_webhook=True, allocators=2)

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"

pytestmark = pytest.mark.parametrize(
    "shared_world", [pytest.param("real", marks=pytest.mark.real)], indirect=True, scope="module"
)


class Slow:
    """A validating webhook that answers once it may.

    Attributes:
        reached: set once a Binding waits for it.
        opened: set it to admit all Bindings.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def answer(self, request: web.Request) -> web.Response:
        """Answer an AdmissionReview."""
        review: dict[str, Any] = await request.json()
        self.reached.set()
        await self.opened.wait()
        response = {"uid": review["request"]["uid"], "allowed": True}
        return web.json_response({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


@asynccontextmanager
async def slow_webhook(world: World) -> AsyncIterator[Slow]:
    """Have the API server send all Bindings to a slow validating webhook, after the allocator's."""
    slow = Slow()
    app = web.Application()
    app.router.add_post("/slow", slow.answer)
    pair = world.authority.sign("slow", "IP:127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.cert, pair.key)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    host, port = runner.addresses[0][:2]
    webhook = {
        "name": "slow.ascend-affinity.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "url": f"https://{host}:{port}/slow",
            "caBundle": base64.b64encode(world.authority.cert.read_bytes()).decode(),
        },
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "timeoutSeconds": 30,
    }
    body = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "slow"},
        "webhooks": [webhook],
    }
    await world.client.request("POST", CONFIGURATIONS, body=body)
    try:
        yield slow
    finally:
        slow.opened.set()
        await world.client.request("DELETE", f"{CONFIGURATIONS}/slow")
        await runner.cleanup()


@pytest.mark.long
async def test_chips_of_a_binding_that_is_held_up_are_handed_over(world: World) -> None:
    node = world.nodes[0].name
    async with slow_webhook(world) as slow:
        here = {"kubernetes.io/hostname": node}
        await world.create("first", 8, nodeSelector=here)
        async with asyncio.timeout(20):
            await slow.reached.wait()
        await world.stop_leader()
        await world.eventually(world.allocator_ready, "the other allocator leads")
        # kube-scheduler would not try it, since it counts the first one.
        thief = await world.create("thief", 8, nodeSelector=here, schedulerName="none")
        with pytest.raises(ApiError, match="NotEnoughChips: 8 chips requested, 0 free of 8 healthy"):
            await world.client.bind(
                namespace="default", name="thief", uid=thief.uid, node=node, annotations={}, timeout_s=20.0
            )
        slow.opened.set()
        await check_hand_over(world, "first", 8)
    assert not (await world.pod("thief")).spec.node_name
