"""Records everything that the plugin writes and sends, so that a wrong value is seen even if it lasts for a moment."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import RESOURCE, ChipSet
from ascend.deviceinfo import DEVICE_INFO, NAMESPACE, DeviceReport, decode_report
from ascend.kube.objects import CONFIG_MAPS, NODES, ConfigMap, KubeObject, Node
from ascend.kube.reflector import Reflector
from sandbox.kubelet.ledger import ResourceLedger
from tests.device_plugin.api import running
from tests.device_plugin.whole import Whole


@dataclass
class Writes:
    """What was written, each version once, in order.

    Attributes:
        reports: the node's report.
        products: the value of the label ``servertype``, and the chips in the annotation ``baseDeviceInfos``.
        lists: the devices that the kubelet was sent.
    """

    reports: list[DeviceReport] = field(default_factory=list)
    products: list[tuple[str | None, ChipSet]] = field(default_factory=list)
    lists: list[frozenset[str]] = field(default_factory=list)

    def on_apply(self, obj: KubeObject) -> None:
        """Take note of an object."""
        if isinstance(obj, Node):
            annotation = obj.metadata.annotations.get(BASE_DEVICE_INFOS)
            chips = read_base_device_infos(annotation).chips if annotation is not None else 0
            self.products.append((obj.metadata.labels.get("servertype"), chips))
        elif isinstance(obj, ConfigMap) and DEVICE_INFO in obj.data:
            self.reports.append(decode_report(obj.data))

    def on_delete(self, obj: KubeObject) -> None:
        """Nothing is deleted."""
        raise AssertionError(f"{obj.key} is deleted")


@asynccontextmanager
async def recorded(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Writes]:
    """Record what is written while the block runs."""
    writes = Writes()
    report = ResourceLedger.report

    def noted(ledger: ResourceLedger, resource: str, devices: Any) -> None:
        listed = list(devices)
        if resource == RESOURCE:
            writes.lists.append(frozenset(each.ID for each in listed))
        report(ledger, resource, listed)

    monkeypatch.setattr(ResourceLedger, "report", noted)
    nodes = Reflector(whole.client, NODES, writes)
    config_maps = Reflector(whole.client, CONFIG_MAPS, writes, namespace=NAMESPACE)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(nodes.run()))
        await stack.enter_async_context(running(config_maps.run()))
        await nodes.synced.wait()
        await config_maps.synced.wait()
        yield writes
        await nodes.refresh()
        await config_maps.refresh()
