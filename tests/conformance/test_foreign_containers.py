"""Containers that were started beside the kubelet are told apart from the node's own processes, on a real runtime."""

from pathlib import Path

import pytest

from device_plugin.processes import owner_of
from tests.cluster.images import BUSYBOX_IMAGE
from tests.conformance.node import PATIENCE_S, PluginNode

pytestmark = pytest.mark.long


def process_with(argument: str) -> int:
    """The id of the process whose last argument this is."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if file.read_bytes().rstrip(b"\0").split(b"\0")[-1] == argument.encode():
                return int(file.parent.name)
        except OSError:
            continue  # it has ended
    return 0


@pytest.mark.parametrize("name", ["tool", 64 * "a"])
def test_a_container_that_the_kubelet_does_not_know_is_no_process_of_the_node(node: PluginNode, name: str) -> None:
    """People name those of ``ctr``."""
    ctr = f"ctr --address {node.node.folder / 'containerd.sock'} --namespace k8s.io"
    seconds = f"10000{len(name)}"
    run = f"{ctr} run --detach --snapshotter native {BUSYBOX_IMAGE} {name} sleep {seconds}"
    running = node.node.process("ctr", ["sh", "-ec", run])
    running.start()
    assert running.wait(timeout_s=PATIENCE_S) == 0, running.log_tail()
    try:
        node.wait_until(lambda: process_with(seconds) > 0, "it runs")
        assert owner_of(process_with(seconds)).kind == "container"
    finally:
        end = f"{ctr} tasks rm --force {name}; {ctr} containers rm {name}"
        ending = node.node.process("ctr-end", ["sh", "-c", end])
        ending.start()
        ending.wait(timeout_s=PATIENCE_S)
