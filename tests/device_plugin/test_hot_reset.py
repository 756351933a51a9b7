"""The whole plugin on a sandbox node resets chips."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ascend.annotations import RESET_INFO, RESETS
from ascend.chips import RESOURCE
from ascend.kube.objects import EVENTS, NODES, PODS
from device_plugin.app import Plugin
from device_plugin.driver.simulated_resets import SimulatedReset
from device_plugin.reset import group_reset
from tests.device_plugin.api import NODE, sample, until
from tests.device_plugin.whole import Whole, check_hand_over, whole_node

RESTART = "80A18008"  # RestartNPU
SEPARATE = "80E18402"  # SeparateNPU
QUICK = SimulatedReset(down_s=0.3, start_s=0.3)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits themselves are tested on a virtual clock."""
    for name, seconds in {"SETTLE_S": 0.3, "POLL_S": 0.05, "SLOW_POLL_S": 0.2, "RECHECK_S": 0.1, "LAG_S": 0.5}.items():
        monkeypatch.setattr(group_reset, name, seconds)


@asynccontextmanager
async def node(folder: Path, *, mode: str = "on", how: SimulatedReset = QUICK) -> AsyncIterator[tuple[Whole, Plugin]]:
    """A 910A node, whose chips are reset in rings of four."""
    async with whole_node(folder) as whole:
        whole.node.edit_server(reset=how)
        async with whole.plugin(hot_reset=mode, hot_reset_idle_s=0.2, recovery_hold_s=0.1) as plugin:
            yield whole, plugin


def resets(plugin: Plugin, result: str) -> float:
    return sample(plugin.metrics, "ascend_dp_hot_resets_total", {"result": result})


def unhealthy(whole: Whole) -> set[str]:
    """What the kubelet thinks."""
    return {name for name, health in whole.node.kubelet.devices(RESOURCE).items() if health != "Healthy"}


async def reset_info(whole: Whole) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await whole.client.get(NODES, NODE)).metadata.annotations[RESET_INFO])
    return found


async def events(whole: Whole) -> set[str]:
    """The reasons of the Events about resets."""
    found = json.loads(await whole.client.request("GET", EVENTS.path()))["items"]
    return {each["reason"] for each in found if each["reason"].startswith(("NPUReset", "NPUWithheld", "NPUStarting"))}


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until an awaited condition holds."""
    async with asyncio.timeout(15.0):
        while not await condition():  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.02)


async def reported(whole: Whole, *, free: int, unhealthy: int = 0, recovering: int = 0) -> None:
    """Wait until the node reports this."""

    async def is_so() -> bool:
        found = await whole.report()
        return (found.free, found.unhealthy, found.recovering) == (free, unhealthy, recovering)

    await eventually(is_so)


async def said(whole: Whole, *reasons: str) -> None:
    """Wait until there are these Events about resets, and no others."""

    async def is_so() -> bool:
        return await events(whole) == {*reasons}

    await eventually(is_so)


async def failed(whole: Whole, name: str) -> str:
    """Wait until a pod has failed, and return why."""
    await until(lambda: (found := whole.find(name)) is not None and found.status.phase == "Failed")
    pod = whole.find(name)
    assert pod is not None
    return pod.status.message


async def test_an_idle_ring_with_a_fault_is_withheld_reset_and_used_again(folder: Path) -> None:
    async with node(folder) as (whole, plugin):
        await whole.bind("other-ring", 4, 5)
        await whole.claimed("other-ring")
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await until(lambda: unhealthy(whole) == {f"Ascend910-{chip}" for chip in range(4)})

        await reported(whole, free=0b11000000, unhealthy=0b0100, recovering=0b1111)
        await until(lambda: not unhealthy(whole), timeout_s=15.0)
        assert resets(plugin, "succeeded") == 1
        await reported(whole, free=0b11001111)
        await said(whole, "NPUWithheld", "NPUResetStarted", "NPUReset")
        await whole.bind("next", 0, 1, 2, 3)
        check_hand_over(whole, await whole.claimed("next"))
        pod = whole.find("other-ring")
        assert pod is not None
        check_hand_over(whole, pod)
        assert await reset_info(whole) == {"ThirdPartyResetDevs": None, "ManualResetDevs": None}
        assert [*json.loads((await whole.client.get(NODES, NODE)).metadata.annotations[RESETS])] == ["0"]


async def test_a_ring_that_a_pod_holds_is_reset_once_the_pod_has_ended(folder: Path) -> None:
    async with node(folder) as (whole, plugin):
        await whole.bind("holder", 0)
        await whole.claimed("holder")
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await said(whole, "NPUResetWaiting")
        await until(lambda: unhealthy(whole) == {"Ascend910-2"})
        await whole.client.delete(PODS, "holder", "default")
        await until(lambda: resets(plugin, "succeeded") == 1, timeout_s=15.0)


async def test_a_ring_that_a_process_uses_is_not_withheld(folder: Path) -> None:
    async with node(folder) as (whole, plugin):
        whole.node.edit_chip(1, processes=(4711,))
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await said(whole, "NPUResetWaiting")
        await until(lambda: unhealthy(whole) == {"Ascend910-2"})
        whole.node.edit_chip(1, processes=())
        await until(lambda: resets(plugin, "succeeded") == 1, timeout_s=15.0)


async def test_a_pod_that_comes_during_a_reset_is_refused_and_others_are_served(folder: Path) -> None:
    async with node(folder, how=SimulatedReset(delay_s=5.0, down_s=0.1, start_s=0.1)) as (whole, plugin):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await said(whole, "NPUWithheld", "NPUResetStarted")
        await whole.bind("late", 1)
        assert "ChipResetting: Ascend910-1 is being reset" in await failed(whole, "late")
        await whole.bind("other", 5)
        check_hand_over(whole, await whole.claimed("other"))
        whole.node.edit_chip(6, fault_codes=[SEPARATE])
        await until(lambda: "Ascend910-6" in unhealthy(whole))
        assert resets(plugin, "succeeded") == 0
        await until(lambda: resets(plugin, "succeeded") == 1, timeout_s=15.0)


async def test_a_hanging_reset_does_not_delay_the_end_of_the_plugin(folder: Path) -> None:
    async with node(folder, how=SimulatedReset(delay_s=20.0)) as (whole, _):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await said(whole, "NPUWithheld", "NPUResetStarted")
        ending_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() < ending_s + 5.0


async def test_a_refused_reset_releases_the_ring_and_asks_for_people(folder: Path) -> None:
    async with node(folder, how=SimulatedReset(error="the reset failed")) as (whole, plugin):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await until(lambda: resets(plugin, "failed") == 1)
        await until(lambda: unhealthy(whole) == {"Ascend910-2"})
        await reported(whole, free=0b11111011, unhealthy=0b0100)
        device = {"CardId": 2, "DeviceId": 0, "AssociatedCardId": 0, "PhyID": 2, "LogicID": 2}

        async def recorded() -> bool:
            return bool((await reset_info(whole))["ManualResetDevs"] == [device])

        await eventually(recorded)
        whole.node.edit_chip(2, fault_codes=[])

        async def cleared() -> bool:
            return (await reset_info(whole))["ManualResetDevs"] is None

        await eventually(cleared)


async def test_a_fault_that_survives_the_reset_is_left_to_people(folder: Path) -> None:
    async with node(folder, how=SimulatedReset(down_s=0.1, start_s=0.1, ends_faults=False)) as (whole, plugin):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await until(lambda: resets(plugin, "failed") == 1)
        await until(lambda: unhealthy(whole) == {"Ascend910-2"})
        await said(whole, "NPUWithheld", "NPUResetStarted", "NPUResetFailed")


async def test_a_chip_with_a_fault_that_no_reset_ends_is_only_recorded(folder: Path) -> None:
    async with node(folder) as (whole, plugin):
        whole.node.edit_chip(2, fault_codes=[SEPARATE])

        async def recorded() -> bool:
            annotations = (await whole.client.get(NODES, NODE)).metadata.annotations
            return '"PhyID":2' in annotations.get(RESET_INFO, "")

        await eventually(recorded)
        assert await events(whole) == set()
        assert resets(plugin, "succeeded") == 0


async def test_a_dry_run_says_what_would_be_reset_and_withholds_nothing(folder: Path) -> None:
    async with node(folder, mode="dry-run") as (whole, plugin):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await said(whole, "NPUResetPlanned")
        await until(lambda: unhealthy(whole) == {"Ascend910-2"})
        await whole.bind("next", 0, 1)
        check_hand_over(whole, await whole.claimed("next"))
        assert RESET_INFO not in (await whole.client.get(NODES, NODE)).metadata.annotations
        assert resets(plugin, "succeeded") == 0


async def test_without_the_setting_nothing_is_reset_or_said(folder: Path) -> None:
    async with node(folder, mode="off") as (whole, _):
        whole.node.edit_chip(2, fault_codes=[RESTART])
        await reported(whole, free=0b11111011, unhealthy=0b0100)
        assert await events(whole) == set()
        assert RESET_INFO not in (await whole.client.get(NODES, NODE)).metadata.annotations


async def test_a_restart_of_the_plugin_does_not_forget_the_limit(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.node.edit_server(reset=QUICK)
        changes = {"hot_reset": "on", "hot_reset_idle_s": 0.2, "hot_resets_per_hour": 1, "recovery_hold_s": 0.1}
        async with whole.plugin(**changes) as plugin:
            whole.node.edit_chip(2, fault_codes=[RESTART])
            await until(lambda: resets(plugin, "succeeded") == 1, timeout_s=15.0)
            await reported(whole, free=0xFF)
            whole.node.edit_chip(2, fault_codes=[])
        async with whole.plugin(**changes) as plugin:
            whole.node.edit_chip(2, fault_codes=[RESTART])
            await said(whole, "NPUWithheld", "NPUResetStarted", "NPUReset", "NPUResetWaiting")
            assert resets(plugin, "succeeded") == 0
            await until(lambda: unhealthy(whole) == {"Ascend910-2"})
