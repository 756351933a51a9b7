"""All records of a pod's chips agree after random admissions, while the plugin's watch is late."""

import random
from collections.abc import Callable

import pytest

from ascend.kube.client import KubeClient
from tests.conformance.node import GatedNode
from tests.conformance.random_admissions import Admissions, make_runtime_class

LATE_S = 3.0


@pytest.mark.parametrize("count", [50, pytest.param(10_000, marks=(pytest.mark.long, pytest.mark.timeout(3600)))])
async def test_after_random_admissions_all_records_agree(
    node: GatedNode, count: int, record_testsuite_property: Callable[[str, object], None]
) -> None:
    late = random.Random(count)
    make_runtime_class(node.cluster)
    async with await KubeClient.connect(str(node.cluster.kubeconfig_path)) as client:
        admissions = Admissions(node.node, client, random.Random(count))
        with node.proxy.late_watches(lambda: late.choice((0.0, 0.0, late.uniform(0.0, LATE_S)))):
            await admissions.run(count)
    record_testsuite_property("random admissions", str(admissions.tally))
    assert admissions.tally.pods.total() >= count
    assert admissions.tally.agreed > count / 2
    assert admissions.tally.looked_into
    log = node.plugin.process.log.read_text()
    assert "the watch is behind" in log
    assert "an allocation belongs to another pod" not in log
