"""Breaks of docs/failures.md on a real cluster whose device plugins cut chips when pods start."""

from typing import Final

import pytest

from ascend.products import ASCEND_910B_8
from tests.cluster.cluster import Cluster
from tests.e2e.breaks_of_cores import BREAKS
from tests.e2e.lab import Lab
from tests.e2e.told_breaks import SLOW_S, check_break
from tests.e2e.world import Setup, World

SETUP: Final = Setup(product=ASCEND_910B_8, dynamic_vnpus=True)

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(SLOW_S + 90.0),
    pytest.mark.parametrize("shared_world", [pytest.param("real", marks=pytest.mark.real)], indirect=True),
]


@pytest.mark.parametrize("what", BREAKS)
async def test_a_break_has_the_line_of_its_row_until_it_is_mended(what: str, world: World, cluster: Cluster) -> None:
    await check_break(what, BREAKS[what], Lab(world, cluster), within_s=SLOW_S)
