"""The chips of a node against the reference's own test cases."""

import json
from typing import Any

import pytest

from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import NAME_PREFIX, chip_set, parse_names
from ascend.errors import InvalidValue
from ascend.kube.objects import Metadata, Node
from ascend.products import ASCEND_910B_8 as _EIGHT
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod
from tests.allocator.reference import reference_cases

CASES = reference_cases("families")["plugin"]
FREE_LISTS = CASES["self_maintained_free_list"]


@pytest.mark.parametrize("case", FREE_LISTS["cases"], ids=lambda case: f"free-{case['free']}")
def test_free_chips_agree_with_the_reference(case: dict[str, Any]) -> None:
    world = World()
    world.add(node("n1", chips=FREE_LISTS["node_chips"]))
    for name in ("pod1", "pod2"):
        # The reference's rows name a chip twice in one list; here such a list is refused (test_node).
        chips = list(dict.fromkeys(case[name]))
        if chips:
            world.add(pod(name, len(chips), node="n1", chips=chips, phase="Running"))
    assert world.vacancy().free == chip_set(case["free"])


LEFT = CASES["remove_from_node_list"]["cases"]


@pytest.mark.parametrize("case", LEFT, ids=str)
def test_chips_left_by_pods_agree_with_the_reference(case: dict[str, Any]) -> None:
    names = case["list"]
    infos = None if names is None else json.dumps({name: {"IP": ""} for name in filter(None, names.split(","))})
    reporting = Node(
        metadata=Metadata(name="n1", annotations={} if infos is None else {BASE_DEVICE_INFOS: infos}),
        status=node("n1").status,
    )
    world = World()
    world.add(reporting, pod("holds", len(case["used"]), node="n1", chips=case["used"], phase="Running"))
    if case.get("error"):
        # A name that can't be read is an error of the list in the reference; here its entry is ignored.
        assert world.node_refusal().reason is Reason.NOT_AN_NPU_NODE
        return
    offer = world.cluster.nodes["n1"].offer
    left = offer.free if isinstance(offer, Vacancy) else 0
    assert left == chip_set(parse_names(case["result"]))


LISTS = CASES["parse_chip_list"]


@pytest.mark.parametrize("case", LISTS["cases"], ids=str)
def test_a_chip_list_is_read_as_a_whole_or_refused(case: tuple[str, list[int] | None]) -> None:
    text, ids = case
    # The reference's rows are of another family, whose chips have other names.
    names = text.replace(LISTS["prefix"], NAME_PREFIX)
    if ids is None:
        with pytest.raises(InvalidValue, match=names):
            parse_names(names)
    else:
        assert parse_names(names) == tuple(ids)


# vNPUs are not placed here.
STABLE = [case for case in CASES["resource_stable"] if "job" not in case]


@pytest.mark.parametrize("case", STABLE, ids=str)
def test_the_kubelets_count_need_not_equal_the_free_chips(case: dict[str, Any]) -> None:
    """Where the reference refuses the node altogether, as many chips are given as both have (docs/deviations.md)."""
    if case.get("capability") is None:
        without_chips = Node(metadata=Metadata(name="n1", annotations={BASE_DEVICE_INFOS: "{}"}))
        world = World()
        world.add(without_chips)
        world.node_refusal()
        return
    chips, idle = case.get("list_len", 1), case["idle"]
    verdict = judge(Vacancy(_EIGHT, 8, (1 << chips) - 1, idle), ChipRequest(chips))
    assert isinstance(verdict, Fit) == (chips <= idle)


@pytest.mark.parametrize("case", CASES["idle_count_check"][1:], ids=str)
def test_the_kubelet_must_have_enough_allocatable_chips(case: dict[str, Any]) -> None:
    idle = case.get("idle", case.get("idle_milli", 0) // 1000)
    verdict = judge(Vacancy(_EIGHT, 8, 0xFF, idle), ChipRequest(case["req"]))
    assert isinstance(verdict, Fit) == case["pass"]
