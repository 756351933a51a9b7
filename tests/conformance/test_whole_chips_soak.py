"""No chip is given twice or lost while pods come and go, and parts of the node fail and restart at random moments."""

import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.clock import Clock
from tests.conformance.node import PluginNode
from tests.conformance.random_admissions import make_runtime_class
from tests.conformance.whole_chips_soak import Soak

ROUNDS = 150


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
def test_all_records_agree_after_each_of_many_random_events(
    node: PluginNode, tmp_path: Path, seed: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    make_runtime_class(node.cluster)
    clock = Clock(tmp_path / "clock")
    with node.plugin_instead("soak", "--recovery-hold-s", "0", environment=clock.environment):
        node.wait_until_allocatable()
        soak = Soak(node, clock, random.Random(seed))
        try:
            soak.run(ROUNDS)
        finally:
            sys.stdout.write(f"\nseed {seed}: {dict(soak.tally)}\n")
            node.clear()
    record_testsuite_property(f"soak of whole chips, seed {seed}", str(dict(soak.tally)))
