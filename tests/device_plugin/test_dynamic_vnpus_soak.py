"""Pods with vNPUs come and go at random, with kills of the plugin in between: all ledgers agree afterwards."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from ascend.annotations import REAL
from ascend.templates import RESOURCE_CORES, TEMPLATES
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.ledger.pod_annotations import read_given
from tests.device_plugin.api import until
from tests.device_plugin.test_dynamic_vnpus import (
    CORES,
    LARGE,
    SMALL,
    bind,
    cores_node,
    end,
    healthy_cores,
    plugin_on,
    vnpus,
)
from tests.device_plugin.whole import Whole

CHIPS: Final = range(3)
CHIP_CORES: Final = 20


class Soak:
    """Pods on some chips; the test plays the allocator."""

    def __init__(self, whole: Whole, seed: int) -> None:
        self.whole = whole
        self.rng = random.Random(seed)
        self.pods: dict[str, tuple[int, str]] = {}
        self.number = 0
        self.plugin = AsyncExitStack()

    async def step(self) -> None:
        what = self.rng.random()
        if what < 0.45:
            await self.begin()
        elif what < 0.85 and self.pods:
            await self.end_one()
        elif what < 0.89:
            await self.kill()
        elif what < 0.91:
            await self.whole.node.kubelet.restart()
        elif what < 0.95:
            await self.fail()
        else:
            await self.agree()

    def free(self, chip: int) -> int:
        return CHIP_CORES - sum(
            TEMPLATES[template].cores if template else CHIP_CORES for own, template in self.pods.values() if own == chip
        )

    async def begin(self) -> str | None:
        """Bind a pod without waiting for it."""
        chip, template = self.rng.choice(CHIPS), self.rng.choice((SMALL, SMALL, LARGE, ""))
        cores = TEMPLATES[template].cores if template else CHIP_CORES
        if cores > self.free(chip):
            return None
        self.number += 1
        name = f"p{self.number}"
        self.pods[name] = (chip, template)
        await bind(self.whole, name, cores, f"{chip}-{template}" if template else str(chip))
        if self.rng.random() < 0.7:
            await self.started(name)
        return name

    async def started(self, name: str) -> bool:
        """Wait until a pod runs with its claim, or is refused; then it is deleted."""

        def is_there() -> bool:
            pod = self.whole.find(name)
            if pod is None or pod.status.phase == "Failed":
                return True
            return pod.status.phase == "Running" and REAL in pod.metadata.annotations

        await until(is_there, timeout_s=30.0)
        pod = self.whole.find(name)
        if pod is not None and pod.status.phase == "Running":
            return True
        await self.gone(name)
        return False

    async def gone(self, name: str) -> None:
        await end(self.whole, name)
        await until(lambda: self.whole.find(name) is None, timeout_s=30.0)
        del self.pods[name]

    async def end_one(self) -> None:
        await self.gone(self.rng.choice([*self.pods]))

    async def kill(self) -> None:
        """End the plugin at some moment, also during a creation, and start another."""
        if self.rng.random() < 0.5:
            self.whole.node.edit_server(cuts=SimulatedCuts(delay_s=0.05))
            await self.begin()
            await asyncio.sleep(self.rng.random() * 0.1)
            self.whole.node.edit_server(cuts=SimulatedCuts())
        await self.plugin.aclose()
        await self.start()

    async def start(self) -> None:
        self.plugin = AsyncExitStack()
        await self.plugin.enter_async_context(plugin_on(self.whole, healthy=None))

    async def fail(self) -> None:
        """Let creations or destructions fail for a while."""
        cuts = self.rng.choice((SimulatedCuts(error="no"), SimulatedCuts(destroy_error="no")))
        self.whole.node.edit_server(cuts=cuts)
        await self.begin()
        if self.pods and self.rng.random() < 0.5:
            await self.end_one()
        self.whole.node.edit_server(cuts=SimulatedCuts())

    async def agree(self) -> None:
        """Wait until driver, kubelet and annotations agree on what each pod has."""
        for name in [*self.pods]:
            await self.started(name)
        made = {}
        for name, (chip, template) in self.pods.items():
            pod = self.whole.find(name)
            assert pod is not None
            given = read_given(pod.metadata.annotations[REAL])
            assert given.chips == (chip,)
            container = self.whole.node.kubelet.container(f"default/{name}", "main")
            if given.vnpu is not None:
                assert container.env["ASCEND_VISIBLE_DEVICES"] == str(given.vnpu.vdev_id)
                assert (chip, given.vnpu.vdev_id) not in made
                made[chip, given.vnpu.vdev_id] = template
            else:
                assert container.env["ASCEND_VISIBLE_DEVICES"] == str(chip)
                assert not template
        await until(
            lambda: {(each.phy_id, each.vdev_id): each.template for each in vnpus(self.whole)} == made, timeout_s=45.0
        )
        cores = {name: TEMPLATES[each].cores if each else CHIP_CORES for name, (_, each) in self.pods.items()}
        await until(lambda: self.ledger() == cores, timeout_s=45.0)  # a kubelet may just have been restarted
        await until(lambda: healthy_cores(self.whole) == CORES, timeout_s=45.0)
        assert len(self.whole.node.kubelet.devices(RESOURCE_CORES)) == CORES

    def ledger(self) -> dict[str, int]:
        """How many AI cores each pod has in the kubelet's ledger, which after a restart has ended pods as well."""
        found = self.whole.node.kubelet.ledger().items()
        return {name: len(held) for (key, _), held in found if (name := key.removeprefix("default/")) in self.pods}


async def soak(folder: Path, seed: int, steps: int) -> None:
    async with cores_node(folder, seed=seed) as whole:
        run = Soak(whole, seed)
        await run.start()
        try:
            for _ in range(steps):
                await run.step()
            await run.agree()
            for name in [*run.pods]:
                await run.gone(name)
            await run.agree()
        finally:
            await run.plugin.aclose()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
async def test_ledgers_agree_after_random_creations_ends_and_kills(folder: Path, seed: int) -> None:
    await soak(folder, seed, 100)


@pytest.mark.long
@pytest.mark.timeout(7200)
async def test_ledgers_agree_after_ten_thousand_steps(folder: Path) -> None:
    await soak(folder, 99, 10_000)
