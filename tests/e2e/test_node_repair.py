"""The commands of docs/node-repair.md, run as they are there: a node is found, emptied, repaired and returned."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from ascend.kube.objects import NODES, PODS
from tests.cluster import binaries
from tests.cluster.cluster import Cluster
from tests.e2e.programs import BIN
from tests.e2e.real import real_world
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real

PAGE: Final = Path(__file__).parents[2] / "docs" / "node-repair.md"
PATIENCE_S: Final = 60.0
OWNER: Final = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "1", "controller": True}
"""kubectl does not drain pods without a controller."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as world:
        yield world


class Operator:
    """Runs the blocks of commands of the page.

    Args:
        kubeconfig: of an administrator.
        node: the node to repair.
    """

    def __init__(self, kubeconfig: Path, node: str) -> None:
        path = f"{binaries.path('kubectl').parent}:{BIN}:{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"}
        blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        self.find, self.empty, self.cordon, self.give_back = (re.sub(r"\bNODE\b(?!:)", node, each) for each in blocks)

    async def run(self, block: str) -> str:
        """Run the commands of a block one after the other; returns what they print.

        Only that which looks for problems may fail.
        """
        printed = [await asyncio.to_thread(self._run, line) for line in block.splitlines()]
        return "".join(printed)

    def _run(self, line: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", line],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        looks = line.startswith("npuctl doctor")
        assert done.returncode == 0 or looks, f"{line}: {done.stdout}{done.stderr}"
        return f"{done.stdout}exit status {done.returncode}\n" if looks else done.stdout


@pytest.mark.long
async def test_a_node_is_found_emptied_repaired_and_returned_by_the_commands_of_the_page(
    world: World, cluster: Cluster
) -> None:
    await world.create("train", 2)
    pod = await check_hand_over(world, "train", 2)
    await world.client.patch(PODS, "train", {"metadata": {"ownerReferences": [OWNER]}}, namespace="default")
    node = world.node(pod.spec.node_name)
    operator = Operator(cluster.kubeconfig_path, node.name)
    chip = int(pod.metadata.annotations["huawei.com/AscendReal"].split(",")[0].removeprefix("Ascend910-"))
    node.edit_chip(chip, health="Unhealthy", fault_codes=["80E18402"])

    async def found() -> str | None:
        printed = await operator.run(operator.find)
        return printed if f"Ascend910-{chip}: 80E18402 (SeparateNPU)" in printed else None

    try:
        printed = await world.eventually(found, "the page's commands find the node")
        assert "exit status 1" in printed
        assert f"node/{node.name} cordoned" in await operator.run(operator.cordon)
        assert "evicting pod default/train" in await operator.run(operator.empty)
        assert await world.gone("train")
        node.edit_chip(chip, health="Healthy", fault_codes=[])
        printed = await operator.run(operator.give_back)
        assert "uncordoned" in printed
        assert "exit status 0" in printed, printed
        for name in ("next", "other"):
            await world.create(name, 8)
            await check_hand_over(world, name, 8)
    finally:
        await world.client.patch(NODES, node.name, {"spec": {"unschedulable": None}})
