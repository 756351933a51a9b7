"""The sandbox's kubelet updates its Node at fixed times, as a real one does."""

import asyncio
from typing import cast

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import Node, NodeStatus
from sandbox.kubelet.ledger import Ledger
from sandbox.kubelet.node_status import NodeStatusUpdater

PERIOD_S = 10.0


class Client:
    """An API server that keeps when a Node was updated, on the loop's clock."""

    def __init__(self) -> None:
        self.updated_s: list[float] = []

    async def create(self, _resource: object, _body: object) -> Node:
        return Node()

    async def patch(
        self, _resource: object, _name: str, body: dict[str, dict[str, dict[str, str]]], **_: object
    ) -> Node:
        self.updated_s.append(asyncio.get_running_loop().time())
        status = body["status"]
        return Node(status=NodeStatus(capacity=status["capacity"], allocatable=status["allocatable"]))


class Devices:
    def __init__(self) -> None:
        self.number = 8

    def capacities(self) -> dict[str, tuple[int, int]]:
        return {"huawei.com/Ascend910": (8, self.number)}


@pytest.mark.parametrize(
    ("changes_s", "shown_s"), [([3.0], [10.0]), ([3.0, 4.0, 12.0], [10.0, 20.0]), ([35.0], [40.0])]
)
@pytest.mark.looptime
async def test_a_change_is_shown_at_the_next_look(changes_s: list[float], shown_s: list[float]) -> None:
    client, devices, loop = Client(), Devices(), asyncio.get_running_loop()
    updater = NodeStatusUpdater(
        cast("KubeClient", client),
        "n1",
        ledger=cast("Ledger", devices),
        changed=lambda: None,
        reset=False,
        version="v1.34.4",
        period_s=PERIOD_S,
    )
    began_s = loop.time()
    task = asyncio.create_task(updater.run())
    for at_s in changes_s:
        await asyncio.sleep(began_s + at_s - loop.time())
        devices.number -= 1
        updater.refresh()
    await asyncio.sleep(30)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [round(each - began_s, 3) for each in client.updated_s] == [0.0, *shown_s]
