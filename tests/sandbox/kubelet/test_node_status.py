"""The sandbox's kubelet updates its Node at fixed times, as a real one does."""

import asyncio
from typing import cast

import pytest

from ascend.chips import RESOURCE
from ascend.errors import Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Node, NodeStatus
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet.ledger import ResourceLedger
from sandbox.kubelet.node_status import NodeStatusUpdater
from tests.device_plugin.api import running

PERIOD_S = 10.0


class Client:
    """An API server that keeps when a Node was updated, on the loop's clock."""

    def __init__(self) -> None:
        self.updated_s: list[float] = []
        self.refusing = 0
        """How many of the next updates are refused."""

    async def create(self, _resource: object, _body: object) -> Node:
        return Node()

    async def patch(
        self, _resource: object, _name: str, body: dict[str, dict[str, dict[str, str]]], **_: object
    ) -> Node:
        if self.refusing:
            self.refusing -= 1
            raise Unreachable("the API server is away")
        self.updated_s.append(asyncio.get_running_loop().time())
        status = body["status"]
        return Node(status=NodeStatus(capacity=status["capacity"], allocatable=status["allocatable"]))


def node_status(client: Client, ledger: ResourceLedger) -> NodeStatusUpdater:
    return NodeStatusUpdater(
        cast("KubeClient", client),
        "n1",
        ledger=ledger,
        changed=lambda: None,
        reset=False,
        version="v1.34.4",
        period_s=PERIOD_S,
    )


def devices(number: int) -> list[pb.Device]:
    return [pb.Device(ID=str(each), health="Healthy") for each in range(number)]


@pytest.mark.parametrize(
    ("changes_s", "shown_s"), [([3.0], [10.0]), ([3.0, 4.0, 12.0], [10.0, 20.0]), ([35.0], [40.0])]
)
@pytest.mark.looptime
async def test_a_change_is_shown_at_the_next_look(changes_s: list[float], shown_s: list[float]) -> None:
    client, ledger, loop = Client(), ResourceLedger(), asyncio.get_running_loop()
    ledger.report(RESOURCE, devices(8))
    updater = node_status(client, ledger)
    began_s = loop.time()
    async with running(updater.run()):
        for number, at_s in enumerate(changes_s):
            await asyncio.sleep(began_s + at_s - loop.time())
            ledger.report(RESOURCE, devices(number))
            updater.refresh()
        await asyncio.sleep(30)
    assert [round(each - began_s, 3) for each in client.updated_s] == [0.0, *shown_s]


@pytest.mark.parametrize(("refusing", "left"), [(0, "0"), (1, "8")])
@pytest.mark.looptime
async def test_what_is_removed_while_the_node_can_not_be_updated_is_allocatable_for_good(
    refusing: int, left: str
) -> None:
    client, ledger = Client(), ResourceLedger()
    ledger.report(RESOURCE, devices(8))
    updater = node_status(client, ledger)
    async with running(updater.run()):
        await asyncio.sleep(1)
        ledger.disconnect(RESOURCE)
        updater.refresh()
        await asyncio.sleep(2 * PERIOD_S)
        assert (updater.node.status.capacity[RESOURCE], updater.node.status.allocatable[RESOURCE]) == ("8", "0")
        client.refusing = refusing
        ledger.purge(RESOURCE)
        updater.refresh()
        await asyncio.sleep(2 * PERIOD_S)
        assert (updater.node.status.capacity[RESOURCE], updater.node.status.allocatable[RESOURCE]) == (left, left)
