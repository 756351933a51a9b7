"""The Node's condition about its device plugin has what ``/readyz`` says, and no more writes than it has changes."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES
from device_plugin.app import Plugin
from device_plugin.publish import readiness as module
from device_plugin.publish.node_conditions import LONGEST_MESSAGE, NOT_READY, Lack
from device_plugin.publish.readiness import Readiness
from tests.device_plugin.api import NODE, RecordingClient, node_manifest, running, seen, until
from tests.device_plugin.whole import whole_node


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)


async def shown(client: KubeClient) -> dict[str, Any]:
    """The condition as the API server has it; empty if it has none."""
    found = json.loads(await client.request("GET", NODES.path(name=NODE)))["status"].get("conditions", ())
    return next((each for each in found if each["type"] == NOT_READY), {})


async def becomes(client: KubeClient, status: str, reason: str) -> dict[str, Any]:
    """Wait until the condition is so; return it."""
    return await seen(
        lambda: shown(client), lambda found: (found.get("status"), found.get("reason")) == (status, reason)
    )


class Lacking:
    """What a plugin lacks; ``looks`` is how often it was asked."""

    def __init__(self, lacks: Mapping[Lack, str] | None) -> None:
        self.now, self.looks = lacks, 0

    def __call__(self) -> Mapping[Lack, str] | None:
        self.looks += 1
        return self.now

    async def looked(self) -> None:
        """Wait for some more looks."""
        until_looks = self.looks + 5
        await until(lambda: self.looks > until_looks)


@asynccontextmanager
async def telling(client: KubeClient, lacks: Mapping[Lack, str] | None) -> AsyncIterator[Lacking]:
    """A readiness that tells of this."""
    lacking = Lacking(lacks)
    await client.create(NODES, node_manifest())
    async with running(Readiness(client, NODE, lacking).run()):
        yield lacking


def writes(client: RecordingClient) -> int:
    return len([each for each in client.sent if each.method == "PATCH"])


async def test_what_the_plugin_lacks_is_told_until_it_lacks_nothing(client: RecordingClient) -> None:
    async with telling(client, {}) as lacking:
        await becomes(client, "False", "NoFault")
        lacking.now = {Lack.REPORT: "it is immutable", Lack.CLAIMS: "denied"}
        found = await becomes(client, "True", "Report,Claims")
        assert found["message"] == "report: it is immutable; claims: denied"
        lacking.now = {}
        await becomes(client, "False", "NoFault")


async def test_a_sentence_that_changes_alone_writes_nothing(client: RecordingClient) -> None:
    async with telling(client, {Lack.DRIVER: "silent for 1 s"}) as lacking:
        await becomes(client, "True", "Driver")
        lacking.now = {Lack.DRIVER: "silent for 2 s"}
        await lacking.looked()
        assert writes(client) == 1


async def test_the_message_is_bounded(client: RecordingClient) -> None:
    async with telling(client, {Lack.START: "x" * 2000}):
        assert len((await becomes(client, "True", "Start"))["message"]) == LONGEST_MESSAGE


async def test_an_instance_beside_the_one_that_works_tells_nothing(client: RecordingClient) -> None:
    async with telling(client, None) as lacking:
        await lacking.looked()
        assert writes(client) == 0
        lacking.now = {}
        await becomes(client, "False", "NoFault")


async def test_a_plugin_that_waits_for_a_right_says_so_on_the_node(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.cluster.server.fail_next("GET", "/configmaps/", 403, times=10_000)
        async with running(Plugin(whole.settings()).run()):
            found = await becomes(whole.client, "True", "Start")
            assert found["message"].startswith("start: the site's fault rules can't be read: injected failure 403")
        await becomes(whole.client, "Unknown", "DevicePluginEnded")


async def test_a_kubelet_that_lists_no_pods_is_told_and_the_end_of_the_plugin_too(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.node.kubelet.pods_answer.forbidden = True
        async with whole.plugin():
            found = await becomes(whole.client, "True", "KubeletsPods")
            assert "answered 403 Forbidden" in found["message"]
        await becomes(whole.client, "Unknown", "DevicePluginEnded")
