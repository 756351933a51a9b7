"""An admission gets the chips of the pod under admission or a clear refusal; never another pod's, and never late."""

import json
import time

import grpc
import pytest

from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL, Grant
from ascend.chips import chip_name
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from tests.cluster.manifests import pod as pod_manifest
from tests.conformance.chips import HEALTH
from tests.conformance.node import ALL, GatedNode, PluginNode
from tests.conformance.wire import plugin_service

CAP_S = 5.0
"""The plugin's own limit is four seconds; the rest is a margin of the test."""
PAIRS = 17
"""As in the reference's measurements, in which 7 were swapped (docs/spec/measurements.md#two-pods-of-one-size)."""


def names(*chips: int) -> list[str]:
    return [chip_name(chip) for chip in chips]


def test_an_id_the_node_does_not_have_is_refused(node: PluginNode) -> None:
    """Scenario A5: the plugin is called with ids that a correct kubelet never sends."""
    (socket,) = node.plugin_sockets()
    for id_ in ("Ascend910-77", "Ascend310-0", "", "x" * 5000):
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=[id_])])
        with plugin_service(socket) as plugin, pytest.raises(grpc.RpcError) as refused:
            plugin.Allocate(request, timeout=CAP_S)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert len(refused.value.details() or "") <= 200
    node.place("next", 0)
    node.check("next", 0)


def test_a_pod_with_an_invalid_annotation_is_refused_with_a_sentence(node: PluginNode) -> None:
    """Scenario A5: the annotation names unhealthy or unknown chips, is missing or has the wrong number."""
    refusals = {
        "unhealthy": ((3,), "ChipUnhealthy: Ascend910-3 is unhealthy"),
        "unknown": ((9,), "UnknownChip: this node has no Ascend910-9"),
        "missing": ((), "NotPlaced: annotation huawei.com/Ascend910 is missing"),
        "too-much": ((4, 5), "WrongCount: annotation huawei.com/Ascend910 names 2 chips"),
    }
    node.chips.fail(3)
    node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
    for name, (chips, _) in refusals.items():
        node.create(name, 1)
        node.bind(name, *chips)
    node.place("good", 0)
    for name, (_, sentence) in refusals.items():
        assert sentence in node.failed(name)
        assert node.annotations(name).get(PREDICATE_TIME) != str(CLAIMED)
        assert REAL not in node.annotations(name)
    node.check("good", 0)


@pytest.mark.parametrize("chips", [(), (1,)], ids=["nothing written", "chips in its file"])
def test_a_static_pod_is_refused_and_takes_no_chip_of_other_pods(node: PluginNode, chips: tuple[int, ...]) -> None:
    name = f"static-{len(chips)}"
    annotations = Grant(chips, time.time_ns()).annotations() if chips else {}
    manifest = node.node.static_pod_dir / f"{name}.json"

    def status() -> dict[str, str]:
        """Its status in the kubelet's own list."""
        found = [each for each in node.node.pods() if each["metadata"]["name"] == f"{name}-{node.node.name}"]
        return dict(found[0]["status"]) if found else {}

    try:
        node.place("before", 0)
        node.check("before", 0)
        manifest.write_text(json.dumps(pod_manifest(name, 1, annotations=annotations)))
        node.wait_until(lambda: status().get("phase") == "Failed", "the static pod is refused")
        assert f"StaticPod: pod default/{name}" in status()["message"]
        for chip in (1, 2):
            node.place(f"after-{chip}", chip)
            node.check(f"after-{chip}", chip)
    finally:
        manifest.unlink(missing_ok=True)
    node.wait_until(lambda: not status(), "the kubelet has forgotten the static pod")


def test_without_the_api_server_a_pod_gets_its_chips_and_a_late_claim(
    node: PluginNode,
) -> None:
    """Scenario A6: kubelet and plugin have seen the pod before the API server stops responding."""
    with node.node.kubelet.paused():
        node.place("train", 4, 5)
        node.wait_until(lambda: node.report().free == ALL & ~0b110000, "the plugin has seen the pod")
        node.cluster.control_plane.apiserver.pause()
    node.wait_until(lambda: node.ledger().get(("train", "main")) == 0b110000, "the kubelet has the chips for the pod")
    assert node.plugin.metric("ascend_dp_claims_pending") == 1
    node.cluster.control_plane.apiserver.resume()
    node.check("train", 4, 5)


def test_without_the_api_server_an_unknown_pod_gets_its_chips(node: GatedNode) -> None:
    """Scenario A6: only the kubelet has seen the pod."""
    with (
        node.proxy.gate("GET", r"/pods\?.*watch=") as watching,
        node.proxy.gate("GET", r"/pods\?(?!.*watch=)") as listing,
    ):
        node.plugin.process.kill()
        node.plugin.process.start()
        listing.wait_until_reached()
        listing.open()
        watching.wait_until_reached()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 8), "all chips are allocatable")
        with node.proxy.gate("GET", r"/pods\?(?!.*watch=)"):
            node.place("unseen", 4, 5)
            node.check("unseen", 4, 5)
            node.place("next", 4, 5)
            sentence = node.failed("next")
    assert "ChipHeld: Ascend910-4,Ascend910-5 are held by pod default/unseen" in sentence


@pytest.mark.parametrize(
    ("function", "serial"),
    [(HEALTH, False), ("dcmi_get_device_logic_id", False), (HEALTH, True)],
    ids=["health", "logic id", "one call at a time"],
)
def test_a_driver_that_hangs_delays_no_admission(node: PluginNode, function: str, *, serial: bool) -> None:
    """Scenario A7, and docs/spec/measurements.md#a-driver-call-that-hangs, all rows: the reference made pods wait for
    26 to 60 s.
    """
    node.create("first", 2)
    node.create("second", 1)
    if serial:
        node.chips.serialise()
    node.chips.hang(7, function)
    started_s = time.monotonic()
    node.bind("first", 0, 1)
    node.bind("second", 2)
    node.check("first", 0, 1)
    node.check("second", 2)
    assert time.monotonic() - started_s < CAP_S


def test_a_fault_is_reported_while_the_driver_hangs_for_another_chip(node: PluginNode) -> None:
    """docs/spec/measurements.md#a-driver-call-that-hangs, first row: the reference reported nothing for 25 s."""
    node.chips.hang(7)
    started_s = time.monotonic()
    node.chips.fail(2)
    node.wait_until(lambda: bool(node.report().unhealthy & 0b100), "the fault is reported")
    node.wait_until(lambda: node.counts()[1] < 8, "the chip is not allocatable")
    assert time.monotonic() - started_s < CAP_S


def test_a_preference_includes_the_required_ids_or_is_empty(node: PluginNode) -> None:
    """Scenario A8: chips of a finished init container are among those the kubelet requires."""
    (socket,) = node.plugin_sockets()

    def preferred(available: list[str], must_include: list[str]) -> list[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=2
        )
        answer = plugin.GetPreferredAllocation(
            pb.PreferredAllocationRequest(container_requests=[request]), timeout=CAP_S
        )
        return sorted(answer.container_responses[0].deviceIDs)

    with node.node.kubelet.paused(), plugin_service(socket) as plugin:
        assert preferred(names(*range(8)), []) == []  # no pod waits
        node.place("train", 4, 5)
        node.wait_until(lambda: node.report().free == ALL & ~0b110000, "the plugin has seen the pod")
        assert preferred(names(*range(8)), []) == names(4, 5)
        assert preferred(names(*range(8)), names(5)) == names(4, 5)
        assert preferred(names(0, 1, 4), names(5)) == names(4, 5)
        assert preferred(names(*range(8)), names(6)) == []
        assert preferred(names(0, 1, 2), []) == []
        assert preferred(["nonsense", *names(0)], ["Ascend910-99"]) == []
    node.check("train", 4, 5)


@pytest.mark.parametrize("count", [5, pytest.param(PAIRS, marks=pytest.mark.long)])
def test_pods_bound_against_their_predicate_times_are_never_swapped(node: PluginNode, count: int) -> None:
    """Scenario A9, and docs/spec/measurements.md#two-pods-of-one-size."""
    halves = ((0, 1), (2, 3)), ((4, 5), (6, 7))
    pairs = [(number, halves[number % 2]) for number in range(count)]
    for round_ in (pairs[start : start + 2] for start in range(0, count, 2)):
        expected = {
            f"{which}-{number}": chips for number, pair in round_ for which, chips in zip("ab", pair, strict=True)
        }
        for name in expected:
            node.create(name, 2)
        for number, (one, two) in round_:
            now = time.time_ns()
            node.bind_together(0.001, (f"a-{number}", one, now + 1_000_000), (f"b-{number}", two, now))
            node.wait_until(
                lambda number=number: {(f"a-{number}", "main"), (f"b-{number}", "main")} <= node.ledger().keys(),
                "the pair is admitted",
            )
        for name, chips in expected.items():
            node.check(name, *chips)
        node.clear()


def test_pods_of_one_size_bound_at_once_each_get_their_own_chips(node: PluginNode) -> None:
    """Scenario A9 with eight pods."""
    order = (5, 2, 7, 0, 3, 6, 1, 4)
    for chip in order:
        node.create(f"pod-{chip}", 1)
    now = time.time_ns()
    node.bind_together(0.0, *((f"pod-{chip}", (chip,), now - chip * 1_000_000) for chip in order))
    for chip in order:
        node.check(f"pod-{chip}", chip)
