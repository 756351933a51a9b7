"""At the start, takes over the site's fault rules and what an earlier plugin reported, before any chip is judged."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
import structlog

from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, read_base_device_infos
from ascend.deviceinfo import DEVICE_INFO, DeviceReport, decode_report, read_manually_separated, read_upgrades
from ascend.errors import ApiError, InvalidReport, InvalidValue, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Node
from ascend.rate_limiters import Backoff
from ascend.vnpus import parse_vnpu
from device_plugin.chips.fault_config import FaultConfig
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.driver import VirtualNpu
from device_plugin.health.snapshot import EarlierState
from device_plugin.publish.device_info_configmap import DeviceInfoConfigMap
from device_plugin.publish.node_object import NodeWriter
from device_plugin.publish.readmission_labels import CHIPS, PORTS, read_label
from device_plugin.publish.report import read_faulty, read_harmless, read_reasons

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

R = TypeVar("R")


async def restore(
    client: KubeClient,
    node_object: NodeWriter,
    fault_config: FaultConfig,
    config_map: DeviceInfoConfigMap,
    health: HealthMonitor,
    *,
    unread: dict[str, str],
) -> Node:
    """Take over the fault rules, the earlier report and the Node's labels; retry until the API server answers.

    Args:
        client: the API server.
        node_object: reads this node's object.
        fault_config: reads the fault rules.
        config_map: reads the earlier report.
        health: receives what an earlier plugin reported.
        unread: gets what can't be read, and why; what was read goes.

    Returns:
        This node's object.
    """
    async with asyncio.TaskGroup() as reads:
        learning = reads.create_task(node_object.learn())
        reads.create_task(_retried("the site's fault rules", lambda: fault_config.fetch(client), unread))
        fetching = reads.create_task(_retried("the earlier report", config_map.fetch, unread))
    node, data = learning.result(), fetching.result()
    try:
        upgrades = read_upgrades(data)
    except InvalidReport as error:
        log.warning("the earlier report's upgrade reasons are lost", error=str(error))
        upgrades = {}
    labels, earlier = node.metadata.labels, _report(data)
    known, known_vnpus = read_known(node) if config_map.was_signed else ({}, {})
    # The labels list chips without faults only. With manual readmission, a chip that was faulty has to wait too.
    faulty, faulty_network = read_faulty(earlier) if earlier is not None else (0, 0)
    health.restore(
        EarlierState(
            manually_separated=read_manually_separated(data)[0],
            cordoned=config_map.cordoned,
            reasons=read_reasons(upgrades),
            awaiting=read_label(labels, CHIPS) | faulty,
            network_awaiting=read_label(labels, PORTS) | faulty_network,
            known=known,
            known_vnpus=known_vnpus,
            faulty=faulty,
            harmless=read_harmless(earlier.faults) if earlier is not None and config_map.was_signed else {},
        )
    )
    return node


def read_known(node: Node) -> tuple[dict[int, ChipAddress], dict[int, tuple[VirtualNpu, ...]]]:
    """Read the chips that an earlier plugin advertised, and the vNPUs, both by physical id.

    There are none if the annotation is missing or unreadable.
    """
    text = node.metadata.annotations.get(BASE_DEVICE_INFOS)
    if text is None:
        return {}, {}
    try:
        addresses = dict(read_base_device_infos(text).addresses)
        names = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except InvalidValue as error:
        log.warning("the chips that an earlier plugin advertised are unknown", error=str(error))
        return {}, {}
    vnpus: dict[int, tuple[VirtualNpu, ...]] = {}
    for name in names:
        with contextlib.suppress(InvalidValue):
            vnpu = parse_vnpu(name)
            vnpus[vnpu.chip] = (*vnpus.get(vnpu.chip, ()), VirtualNpu.of_vnpu(vnpu))
    return addresses, vnpus


def _report(data: Mapping[str, str]) -> DeviceReport | None:
    if DEVICE_INFO not in data:
        return None
    try:
        return decode_report(data)
    except InvalidReport as error:
        log.warning("the earlier report's faults are lost", error=str(error))
        return None


async def _retried(what: str, read: Callable[[], Awaitable[R]], unread: dict[str, str]) -> R:
    backoff = Backoff(limit_s=5.0)
    while True:
        try:
            found = await read()
            unread.pop(what, None)
            return found
        except (ApiError, Unreachable) as error:
            unread[what] = str(error)
            log.warning("initial read failed, retrying", what=what, error=str(error))
            await asyncio.sleep(backoff.next_s())
