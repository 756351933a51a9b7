"""Pods get chips of their own whatever the kubelet's list of pods is like."""

from collections.abc import Iterator

import pytest

from ascend.annotations import REAL
from ascend.chips import ChipSet, chip_set, parse_names
from tests.conformance.node import ALL, PluginNode
from tests.conformance.pods_list import MANNERS, Manner, PodsList

pytestmark = pytest.mark.long
ROUNDS = 3


@pytest.fixture
def pods_list(node: PluginNode) -> Iterator[PodsList]:
    """The list that a plugin reads that runs instead of the node's."""
    made = PodsList(node.node.server)
    with made.served(), node.plugin_instead("other-list", "--kubelet-pods-url", made.url):
        node.wait_until_allocatable()
        yield made


@pytest.mark.parametrize("manner", MANNERS)
def test_pods_in_the_order_of_their_bindings_have_the_chips_written_on_them(
    node: PluginNode, pods_list: PodsList, manner: Manner
) -> None:
    pods_list.manner = manner
    for number in range(ROUNDS):
        for chip in range(0, 8, 2):
            node.place(f"pod-{number}-{chip}", chip, chip + 1)
        for chip in range(0, 8, 2):
            node.check(f"pod-{number}-{chip}", chip, chip + 1)
        node.clear()
        node.wait_until(lambda: node.report().free == ALL, "all chips are free")


@pytest.mark.parametrize("manner", MANNERS)
def test_pods_against_that_order_get_no_chip_twice_and_claim_what_they_have(
    node: PluginNode, pods_list: PodsList, manner: Manner
) -> None:
    """Where the plugin has to guess which one is admitted, pods get each other's chips, or some are refused."""
    pods_list.manner = manner
    names = [f"pod-{chip}" for chip in range(0, 8, 2)]
    for name in names:
        node.create(name, 2)
    node.bind_together(0.0, *((name, (2 * place, 2 * place + 1), 9 - place) for place, name in enumerate(names)))
    held = 0
    for name in outcomes(node, names, runs=True):
        node.wait_until(lambda name=name: claimed(node, name) == visible(node, name), f"{name} claims what it has")
        has = visible(node, name)
        assert has.bit_count() == node.ledger()[name, "main"].bit_count() == 2
        assert not has & held
        held |= has
    refused = outcomes(node, names, runs=False)
    assert all("ChipHeld" in why or "ChipNotFreed" in why for why in refused.values()), refused
    assert held == ALL or (refused and manner != "as it is")
    node.wait_until(lambda: node.report().free == ALL & ~held, "all other chips are free")


def outcomes(node: PluginNode, names: list[str], *, runs: bool) -> dict[str, str]:
    """Wait until each pod runs or has failed; return those that run, or those that have failed with the reason."""
    node.wait_until(lambda: all(node.phase(name) in {"Running", "Failed"} for name in names), "all pods are decided")
    status = {name: node.pod(name)["status"] for name in names}
    return {name: each.get("message", "") for name, each in status.items() if (each["phase"] == "Running") == runs}


def claimed(node: PluginNode, name: str) -> ChipSet:
    """The chips that a pod claims."""
    return chip_set(parse_names(node.annotations(name).get(REAL, "")))


def visible(node: PluginNode, name: str) -> ChipSet:
    """The chips in a container."""
    seen = node.container(name)
    assert seen.visible is not None
    assert sorted(seen.visible) == list(seen.devices)
    return chip_set(seen.visible)
