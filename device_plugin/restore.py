"""At the start: the site's rules, and what an earlier plugin knew of the chips, are taken up before any is judged."""

import asyncio

import structlog

from ascend.deviceinfo import read_manually_separated, read_upgrades
from ascend.errors import ApiError, InvalidReport, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import Node
from device_plugin.board import Board
from device_plugin.fault_config import FaultConfig
from device_plugin.health import HealthKeeper
from device_plugin.readmission import CHIPS, PORTS, read_label
from device_plugin.rules.report import read_upgrades as read_reasons

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def restore(
    client: KubeClient, node: Node, fault_config: FaultConfig, board: Board, health: HealthKeeper
) -> None:
    """Take up the rules, and what is in the report and on the node's labels; tries until the API server tells.

    Args:
        client: the API server.
        node: this node's object.
        fault_config: told of the rules.
        board: the report.
        health: told of what an earlier plugin knew.
    """
    backoff = Backoff(limit_s=5.0)
    while True:
        try:
            await fault_config.fetch(client)
            data = await board.fetch()
            break
        except (ApiError, Unreachable) as error:
            log.warning("rules and the earlier report can't be read yet", error=str(error))
            await asyncio.sleep(backoff.next_s())
    try:
        upgrades = read_upgrades(data)
    except InvalidReport as error:
        log.warning("the earlier report's reasons are lost", error=str(error))
        upgrades = {}
    labels = node.metadata.labels
    health.restore(
        manually_separated=read_manually_separated(data)[0],
        reasons=read_reasons(upgrades),
        awaiting=read_label(labels, CHIPS),
        network_awaiting=read_label(labels, PORTS),
    )
