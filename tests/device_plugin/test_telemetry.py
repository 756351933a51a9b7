"""Chip telemetry: names and labels of MindCluster's npu-exporter, and who holds each chip, on a whole node."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ascend.chips import RESOURCE
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue
from ascend.kube.objects import PODS
from ascend.slices import ContainerKind, ContainerRequest, deal, effective_request
from device_plugin.app import Plugin
from device_plugin.driver.simulated_file import SimulatedChip, SimulatedServer
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry
from device_plugin.driver.telemetry import LIMITS, Quantity, plausible
from device_plugin.ledger.allocations import Allocation, ContainerPart
from device_plugin.settings import Settings
from device_plugin.telemetry.collector import LABELS, SEVERAL, Holder, holders
from sandbox.cluster import save_server
from tests.device_plugin.api import until
from tests.device_plugin.test_probes import ask
from tests.device_plugin.whole import Whole, asking, whole_node

SPEC = Path(__file__).parents[2] / "docs" / "spec" / "telemetry.md"
WHO = ("namespace", "pod_name", "container_name")


def exporters_metrics() -> dict[str, tuple[str, ...]]:
    """The names and labels of npu-exporter's metrics that this project has, from the facts about it."""
    text = SPEC.read_text()
    chip = re.search(r"\*chip\* stands for the labels (.*), in this order", text)
    assert chip is not None
    general = tuple(re.findall(r"`(\w+)`", chip[1]))
    kinds = {
        "*chip*": general,
        "-": (),
        "`id`, `name`, and from `vdie_id` on *chip*": ("id", "name", *general[2:]),
    }
    found: dict[str, tuple[str, ...]] = {}
    for names, labels in re.findall(r"^\| (`\w.*) \| (.*) \| .* \| yes \|$", text, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", re.sub(r"`(\w+_)1` to `\1(\d)`", _each, names)):
            found[name] = kinds[labels]
    return found


def _each(span: re.Match[str]) -> str:
    return ", ".join(f"`{span[1]}{number}`" for number in range(1, int(span[2]) + 1))


async def scrape(plugin: Plugin) -> dict[str, list[Sample]]:
    """The samples of all chip metrics by name."""
    status, text = await ask(plugin, "/metrics")
    assert status == 200
    families = [
        each
        for each in text_string_to_metric_families(text)
        if each.name.startswith(("npu_", "container_", "machine_"))
    ]
    assert {each.type for each in families} <= {"gauge"}
    return {each.name: each.samples for each in families}


def by_chip(samples: Iterable[Sample]) -> dict[int, float]:
    return {int(each.labels["id"]): each.value for each in samples}


def who(samples: Iterable[Sample]) -> dict[int, tuple[str, ...]]:
    """Namespace, pod and container by chip."""
    return {int(each.labels["id"]): tuple(each.labels[label] for label in WHO) for each in samples}


@asynccontextmanager
async def measured_node(folder: Path, **changes: Any) -> AsyncIterator[tuple[Whole, Plugin]]:
    async with (
        whole_node(folder) as whole,
        whole.plugin(**{"telemetry": True, "telemetry_interval_s": 0.5, **changes}) as plugin,
    ):
        yield whole, plugin


def measure(whole: Whole, **telemetry: Any) -> None:
    """Let chip 3 measure this."""
    whole.node.edit_chip(3, telemetry=SimulatedTelemetry(**telemetry))


async def until_scraped(plugin: Plugin, name: str, values: dict[int, float]) -> None:
    """Wait until a metric has these values."""
    async with asyncio.timeout(20.0):
        while by_chip((await scrape(plugin)).get(name, ())) != values:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.05)


async def test_names_and_labels_are_those_of_npu_exporter(folder: Path) -> None:
    async with whole_node(folder) as whole:
        server = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
        server = SimulatedServer("910B", [SimulatedChip(each.id) for each in server.chips])
        # Faults without a level of their own, so that chips stay healthy and the pod gets them.
        codes = [f"8C{number:06X}" for number in range(12)]
        server.chips[7] = SimulatedChip(7, health="Unhealthy", fault_codes=codes)
        save_server(server, whole.node.state_file)
        plugin = Plugin(whole.settings(telemetry=True))
        task = asyncio.create_task(plugin.run())
        try:
            await until(lambda: whole.node.kubelet.allocatable(RESOURCE) == 7 or task.done(), timeout_s=20.0)
            await whole.bind("train", 0, 1)
            await whole.claimed("train")
            found = await scrape(plugin)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    expected = exporters_metrics()
    assert len(expected) == 35
    # The simulated driver knows nothing of links.
    assert found.keys() == expected.keys() - {"npu_chip_info_link_status"}
    for name, samples in found.items():
        for sample in samples:
            assert sample.labels.keys() == set(expected[name]), name
            assert sample.timestamp is None
    assert expected["npu_chip_info_power"] == LABELS
    assert [found[f"npu_chip_info_error_code{suffix}"][0].value for suffix in ("", "_1", "_9")] == [
        0x8C000000,
        0x8C000001,
        0x8C000009,
    ]
    (labels,) = [each.labels for each in found["npu_chip_info_power"] if each.labels["id"] == "1"]
    assert labels == {
        "id": "1",
        "model_name": "910B3-Ascend-V1",
        "vdie_id": "00000001-00000000-00000000-00000000-00000000",
        "pcie_bus_info": "0000:01:00.0",
        "namespace": "default",
        "pod_name": "train",
        "container_name": "main",
    }


async def test_without_the_setting_nothing_is_measured(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        assert await scrape(plugin) == {}


async def test_labels_follow_the_pods_that_hold_chips(folder: Path) -> None:
    async with measured_node(folder) as (whole, plugin):
        found = await scrape(plugin)
        assert who(found["npu_chip_info_utilization"]) == dict.fromkeys(range(8), ("", "", ""))
        assert "container_npu_utilization" not in found
        await whole.bind("train", 4, 5)
        await whole.claimed("train")
        await whole.bind("serve", 0)
        await whole.claimed("serve")
        train, serve = ("default", "train", "main"), ("default", "serve", "main")
        found = await scrape(plugin)
        held = {0: serve, 4: train, 5: train}
        assert who(found["npu_chip_info_utilization"]) == dict.fromkeys(range(8), ("", "", "")) | held
        for name in ("container_npu_utilization", "container_npu_used_memory", "container_npu_total_memory"):
            assert who(found[name]) == held
        assert by_chip(found["container_npu_total_memory"]) == {0: 32768, 4: 32768, 5: 32768}
        await whole.client.delete(PODS, "train", "default")
        await until(
            lambda: (
                whole.find("train") is None and not [each for each in plugin.allocations if each.pod == "default/train"]
            )
        )
        assert who((await scrape(plugin))["container_npu_utilization"]) == {0: serve}


async def test_each_chip_has_the_container_that_keeps_it(folder: Path) -> None:
    asks = asking("i4 s1 a2 a1")
    async with measured_node(folder) as (whole, plugin):
        await whole.bind("train", 0, 1, 2, 3, asks=asks)
        await whole.claimed("train")
        found = who((await scrape(plugin))["npu_chip_info_power"])
        names = {chip: name for chip, (_, _, name) in found.items() if name}
        kept = {name: {chip for chip in names if names[chip] == name} for name in names.values()}
        assert kept == {ask.container: {*whole.visible("train", ask.container)} for ask in asks if ask.keeps}


async def test_values_are_those_of_the_driver_and_absent_if_it_has_none(folder: Path) -> None:
    async with measured_node(folder) as (whole, plugin):
        assert by_chip((await scrape(plugin))["npu_chip_info_power"]) == dict.fromkeys(range(8), 92.5)
        measure(whole, power=301.5, temperature=71, utilization=99)
        idle = dict.fromkeys(range(8), 0.0)
        await until_scraped(plugin, "npu_chip_info_utilization", idle | {3: 99})
        found = await scrape(plugin)
        assert by_chip(found["npu_chip_info_power"])[3] == 301.5
        assert by_chip(found["npu_chip_info_temperature"])[3] == 71
        measure(whole, power=None)
        del idle[3]
        await until_scraped(plugin, "npu_chip_info_power", dict.fromkeys(idle, 92.5))
        assert not plugin.metrics.registry.get_sample_value("ascend_dp_telemetry_failures_total", {"value": "power"})
        measure(whole, error="simulated: out of order")
        await until_scraped(plugin, "npu_chip_info_utilization", idle)
        assert plugin.metrics.registry.get_sample_value("ascend_dp_telemetry_failures_total", {"value": "utilization"})
        measure(whole)
        await until_scraped(plugin, "npu_chip_info_utilization", idle | {3: 0})


async def test_a_chip_whose_measuring_hangs_is_healthy_allocated_and_ends_with_the_plugin(folder: Path) -> None:
    async with measured_node(folder) as (whole, plugin):
        await scrape(plugin)
        measure(whole, delay_s=3600)
        await until_scraped(plugin, "npu_chip_info_power", {chip: 92.5 for chip in range(8) if chip != 3})
        await whole.bind("train", 2, 3)
        await whole.claimed("train")
        snapshot = plugin.snapshots.value
        assert snapshot is not None
        assert snapshot.unhealthy == 0
        assert (await ask(plugin, "/readyz"))[0] == 200
        found = await scrape(plugin)
        assert by_chip(found["npu_chip_info_name"]).keys() == set(range(8))
        assert found["machine_unknown_npu_nums"][0].value == 1
    # The plugin has ended although its calls have not returned.


@pytest.mark.parametrize("setting", [{"telemetry_interval_s": 0.4}, {"telemetry_interval_s": 301}])
def test_the_interval_is_bounded(setting: dict[str, float]) -> None:
    with pytest.raises(InvalidValue, match="telemetry_interval_s"):
        fixed_settings(Settings, None, {"node_name": "n1", **setting})


@given(st.dictionaries(st.sampled_from(Quantity), st.floats() | st.integers(-(1 << 63), 1 << 64).map(float)))
def test_only_values_that_a_chip_can_have_are_kept(values: dict[Quantity, float]) -> None:
    kept, problem = plausible(values)
    assert kept.items() <= values.items()
    assert bool(problem) == (len(kept) < len(values))
    for quantity, value in kept.items():
        low, high = LIMITS[quantity]
        assert low <= value <= high
    total = kept.get(Quantity.HBM_TOTAL_MEMORY)
    assert total is None or kept.get(Quantity.HBM_USED_MEMORY, 0.0) <= total


def allocation(pod: str, *parts: ContainerPart) -> Allocation:
    chips = tuple(dict.fromkeys(chip for part in parts for chip in part.chips))
    return Allocation.of_parts(f"uid-{pod}", pod, chips, parts)


def test_a_chip_of_two_pods_names_neither() -> None:
    first = allocation("a/one", ContainerPart("main", keeps=True, chips=(0, 1), kubelet_ids=(0, 1)))
    second = allocation("b/other", ContainerPart("main", keeps=True, chips=(1, 2), kubelet_ids=(1, 2)))
    found = holders([first, second])
    assert found == {
        0: Holder("a", "one", "main"),
        1: Holder(SEVERAL, SEVERAL, SEVERAL),
        2: Holder("b", "other", "main"),
    }
    assert [found[chip].is_one for chip in range(3)] == [True, False, True]


def test_the_chips_that_the_kubelet_counts_do_not_matter() -> None:
    found = holders([allocation("a/one", ContainerPart("main", keeps=True, chips=(0, 1), kubelet_ids=(4, 5)))])
    assert found.keys() == {0, 1}


_KINDS: tuple[ContainerKind, ...] = ("init", "sidecar", "app")
_ASKS = st.lists(st.tuples(st.sampled_from(_KINDS), st.integers(0, 4)), min_size=1, max_size=5).map(
    lambda asks: [ContainerRequest(f"c{number}", kind, count) for number, (kind, count) in enumerate(asks)]
)


@given(_ASKS)
def test_a_chip_belongs_to_its_keeper_else_to_the_last_init_container(asks: list[ContainerRequest]) -> None:
    asks.sort(key=lambda ask: ask.kind == "app")  # the kubelet's order: app containers last
    slices = deal(asks, range(effective_request(asks)))
    parts = [ContainerPart(ask.container, ask.keeps, slices[ask.container], slices[ask.container]) for ask in asks]
    found = holders([allocation("default/pod", *parts)])
    for chip in range(effective_request(asks)):
        users = [ask for ask in asks if chip in slices[ask.container]]
        if not users:
            assert chip not in found
            continue
        keepers = [ask for ask in users if ask.keeps]
        assert len(keepers) <= 1
        assert found[chip] == Holder("default", "pod", (keepers or users)[-1].container)
