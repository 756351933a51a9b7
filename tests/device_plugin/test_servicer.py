"""The answers to the kubelet over the socket."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from ascend.annotations import ALLOCATED
from ascend.errors import NotFound, Unreachable
from ascend.kube.objects import Pod
from device_plugin.device_types import DeviceType
from device_plugin.driver import ChipFacts
from device_plugin.health.snapshot import Snapshot
from device_plugin.pods import admission_matcher as allocation_module
from device_plugin.pods.container_edits import make_edits
from device_plugin.publish import order as order_module
from device_plugin.serving import servicer as servicer_module
from device_plugin.serving.servicer import device_list
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from tests.device_plugin.api import until
from tests.device_plugin.builders import pod, server, snapshot
from tests.device_plugin.node import HEALTHY, Face, first_list, served

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import DevicePluginAsyncStub

GARBAGE = ["", "npu-0", "Ascend910-", "Ascend910-256", "Ascend910-2c-100-1", "Ascend910-01", "𝟘", "x" * 4096]


@pytest.fixture
def face(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Face:
    monkeypatch.setattr(allocation_module, "PREFER_CAP_S", 0.05)
    monkeypatch.setattr(allocation_module, "LIST_AFTER_S", 0.05)
    return Face(folder)


@pytest.fixture
async def stub(face: Face) -> AsyncIterator["DevicePluginAsyncStub"]:
    async with served(face) as dialled:
        yield dialled


async def prefer(
    stub: "DevicePluginAsyncStub", available: list[str], must_include: list[str], size: int
) -> list[list[str]]:
    request = pb.ContainerPreferredAllocationRequest(
        available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
    )
    answer = await stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
    return [list(each.deviceIDs) for each in answer.container_responses]


async def allocate(stub: "DevicePluginAsyncStub", *ids: str) -> pb.ContainerAllocateResponse:
    request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
    (given,) = (await stub.Allocate(request)).container_responses
    return given


async def test_the_options_include_preferred_allocation(stub: "DevicePluginAsyncStub") -> None:
    options = await stub.GetDevicePluginOptions(pb.Empty())
    assert (options.get_preferred_allocation_available, options.pre_start_required) == (True, False)
    await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=["Ascend910-0"]))


async def test_every_chip_is_listed_and_a_faulty_one_is_unhealthy(face: Face, stub: "DevicePluginAsyncStub") -> None:
    assert await first_list(stub) == HEALTHY
    face.order.reported_unhealthy.set(0b100)
    face.snapshots.set(snapshot(2))
    assert await first_list(stub) == HEALTHY | {"Ascend910-2": "Unhealthy"}


async def test_nothing_is_listed_before_the_driver_was_read(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.snapshots.set(None)
    listed = asyncio.ensure_future(first_list(stub))
    await until(lambda: face.servicers[-1]._streams == 1)
    face.snapshots.set(snapshot())
    assert await listed == HEALTHY


async def test_an_unchanged_list_is_not_sent_again(face: Face, stub: "DevicePluginAsyncStub") -> None:
    stream = aiter(stub.ListAndWatch(pb.Empty()))
    await anext(stream)
    for _ in range(10):
        face.snapshots.set(snapshot())
        await asyncio.sleep(0)
    face.order.reported_unhealthy.set(0b1)
    face.snapshots.set(snapshot(0))
    assert (await anext(stream)).devices[0].health == "Unhealthy"


async def test_a_pod_bound_between_two_lists_was_not_found_at_the_start(
    face: Face, stub: "DevicePluginAsyncStub"
) -> None:
    stream = aiter(stub.ListAndWatch(pb.Empty()))
    await anext(stream)
    face.pods.on_apply(pod("late", 1, 1, time=1))
    face.order.reported_unhealthy.set(0b1)
    face.snapshots.set(snapshot(0))
    await anext(stream)
    assert await prefer(stub, ["Ascend910-2"], [], 1) == [[]]
    assert (await allocate(stub, "Ascend910-2")).envs["ASCEND_VISIBLE_DEVICES"] == "1"


async def test_a_second_stream_does_not_end_the_first(face: Face, stub: "DevicePluginAsyncStub") -> None:
    # A new kubelet may open a stream before the old one's is cancelled (docs/spec/kubelet.md#listandwatch).
    servicer = face.servicers[-1]
    one, two = stub.ListAndWatch(pb.Empty()), stub.ListAndWatch(pb.Empty())
    await asyncio.gather(anext(aiter(one)), anext(aiter(two)))
    one.cancel()
    await until(lambda: servicer._streams == 1)
    assert not servicer.broken.is_set()
    two.cancel()
    await servicer.broken.wait()


@pytest.mark.parametrize("size", [-(2**31), -1, 0, 1, 2, 8, 2**31 - 1])
@pytest.mark.parametrize("ids", [[], GARBAGE, ["Ascend910-0"] * 3], ids=["none", "garbage", "repeated"])
@pytest.mark.parametrize("waiting", [False, True], ids=["no pod", "pods"])
async def test_a_preference_is_never_an_error(
    face: Face, stub: "DevicePluginAsyncStub", ids: list[str], size: int, *, waiting: bool
) -> None:
    if waiting:
        for name, count in (("one", 1), ("two", 2), ("eight", 8), ("none", 0)):
            face.pods.on_apply(pod(name, count, *range(count), time=1))
        face.pods.on_apply(pod("strange", 2, annotations={ALLOCATED: "chip0"}))
    for available, must_include in ((ids, []), (ids, ids), ([], ids)):
        (preferred,) = await prefer(stub, available, must_include, size)
        assert len(preferred) in {0, size}
        assert set(preferred) <= {*available, *must_include}


async def test_a_preference_for_no_container_is_empty(stub: "DevicePluginAsyncStub") -> None:
    assert not (await stub.GetPreferredAllocation(pb.PreferredAllocationRequest())).container_responses


async def test_a_container_gets_its_chips_in_the_written_order(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.pods.on_apply(pod("one", 2, 5, 4, time=1))
    assert await prefer(stub, list(HEALTHY), [], 2) == [["Ascend910-5", "Ascend910-4"]]
    given = await allocate(stub, "Ascend910-4", "Ascend910-5")
    assert dict(given.envs) == {"ASCEND_VISIBLE_DEVICES": "5,4", "ASCEND_RUNTIME_OPTIONS": ""}
    assert [each.pod for each in face.claimed] == ["default/one"]
    assert face.allocated("granted") == 1
    assert face.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 0


async def test_other_ids_of_the_kubelet_are_counted(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.pods.on_apply(pod("one", 2, 5, 4, time=1))
    given = await allocate(stub, "Ascend910-0", "Ascend910-1")
    assert given.envs["ASCEND_VISIBLE_DEVICES"] == "5,4"
    assert face.metrics.registry.get_sample_value("ascend_dp_allocation_mismatches_total") == 1


def unreachable() -> list[Pod]:
    raise Unreachable("GET http://10.0.0.1/api/v1/pods: connection refused")


def forbidden() -> list[Pod]:
    raise NotFound("pods is forbidden", status=403)


def prepare(face: Face, case: str) -> list[str]:
    """Cause a refusal; return the ids to allocate."""
    match case:
        case "UnknownDevice":
            return [GARBAGE[-1]]
        case "NotReady":
            face.snapshots.set(None)
            face.pods.on_apply(pod("one", 1, 0, time=1))
        case "NotPlaced":
            face.pods.on_apply(pod("one", 1))
        case "MalformedAnnotation":
            face.pods.on_apply(pod("one", 1, annotations={ALLOCATED: ",".join(["Ascend910-0"] * 99)}))
        case "ChipUnhealthy":
            face.snapshots.set(snapshot(0))
            face.pods.on_apply(pod("one", 1, 0, time=1))
        case "UnknownChip":
            face.pods.on_apply(pod("one", 1, 9, time=1))
        case "unreachable":
            face.api_pods = unreachable
        case "forbidden":
            face.api_pods = forbidden
    return ["Ascend910-0"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("no pod", "NoSuchPod"),
        ("unreachable", "ApiServerAway"),
        ("forbidden", "ApiServerAway"),
        ("UnknownDevice", "UnknownDevice"),
        ("NotReady", "NotReady"),
        ("NotPlaced", "NotPlaced"),
        ("MalformedAnnotation", "MalformedAnnotation"),
        ("ChipUnhealthy", "ChipUnhealthy"),
        ("UnknownChip", "UnknownChip"),
    ],
)
async def test_a_refusal_is_short_and_starts_with_its_reason(
    face: Face, stub: "DevicePluginAsyncStub", case: str, reason: str
) -> None:
    ids = prepare(face, case)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await allocate(stub, *ids)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    details_text = refused.value.details() or ""
    assert details_text.startswith(f"{reason}: ")
    assert len(details_text) <= 200
    assert "\n" not in details_text
    assert face.allocated(reason) == 1
    assert not list(face.allocations)


async def test_refused_calls_are_timed_as_well(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.pods.on_apply(pod("one", 1, 0, time=1))
    await allocate(stub, "Ascend910-0")
    with pytest.raises(grpc.aio.AioRpcError):
        await allocate(stub, "npu")
    registry = face.metrics.registry
    await until(lambda: registry.get_sample_value("ascend_dp_allocate_duration_seconds_count") == 2)


def fail(*_: object) -> None:
    raise ZeroDivisionError("an internal error")


async def test_an_internal_error_in_a_preference_is_empty_and_counted(
    face: Face, stub: "DevicePluginAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    face.pods.on_apply(pod("one", 1, 0, time=1))
    monkeypatch.setattr(face.devices, "prefer", fail)
    assert await prefer(stub, list(HEALTHY), [], 1) == [[]]
    assert face.preferred("failed") == 1
    monkeypatch.undo()
    assert await prefer(stub, list(HEALTHY), [], 1) == [["Ascend910-0"]]
    assert (face.preferred("failed"), face.preferred("answered")) == (1, 1)


async def test_an_internal_error_in_allocate_fails_one_pod_with_a_reason(
    face: Face, stub: "DevicePluginAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    face.pods.on_apply(pod("one", 1, 0, time=1))
    monkeypatch.setattr(face.devices, "realize", fail)
    with pytest.raises(grpc.aio.AioRpcError, match="Internal: the device plugin failed: ZeroDivisionError"):
        await allocate(stub, "Ascend910-0")
    assert face.allocated("Internal") == 1
    monkeypatch.undo()
    assert (await allocate(stub, "Ascend910-0")).envs["ASCEND_VISIBLE_DEVICES"] == "0"


async def test_preferences_follow_the_order_of_decisions(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.pods.on_apply(pod("late", 2, 0, 1, time=9))
    face.pods.on_apply(pod("early", 2, 5, 4, time=1))
    assert await prefer(stub, list(HEALTHY), [], 2) == [["Ascend910-5", "Ascend910-4"]]
    assert await prefer(stub, list(HEALTHY), ["Ascend910-4"], 2) == [["Ascend910-5", "Ascend910-4"]]
    assert await prefer(stub, list(HEALTHY), ["Ascend910-0"], 2) == [[]]
    assert await prefer(stub, ["Ascend910-5", "npu-0"], [], 2) == [[]]


async def test_an_answer_names_its_cdi_devices(face: Face, stub: "DevicePluginAsyncStub") -> None:
    face.pods.on_apply(pod("one", 2, 5, 4, time=1))
    face.devices._inject = lambda chips, _type: make_edits(chips, "cdi", Path("/dev"), lambda _folder: ())
    given = await allocate(stub, "Ascend910-4", "Ascend910-5")
    assert [each.name for each in given.cdi_devices] == ["huawei.com/npu=5", "huawei.com/npu=4"]
    assert (dict(given.envs), list(given.devices)) == ({}, [])


@pytest.mark.parametrize(
    ("nodes", "sent"),
    [((0, 0), [[0], [0]]), ((0, 1), [[], []]), ((0, None), [[], []]), ((None, None), [[], []])],
)
def test_the_numa_node_is_sent_only_if_all_chips_share_it(nodes: tuple[int | None, ...], sent: list[list[int]]) -> None:
    chips = (ChipFacts(chip_id, chip_id, numa_node=node) for chip_id, node in enumerate(nodes))
    message = device_list(snapshot(of=server(*chips)))
    assert [[node.ID for node in each.topology.nodes] for each in message.devices] == sent


async def test_a_failed_stream_is_noticed_although_another_one_continues(
    face: Face, stub: "DevicePluginAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = stub.ListAndWatch(pb.Empty()), stub.ListAndWatch(pb.Empty())
    await asyncio.gather(anext(aiter(one)), anext(aiter(two)))
    real, calls = servicer_module.device_list, itertools.count()

    def fail_once(snapshot: Snapshot, device_type: DeviceType) -> pb.ListAndWatchResponse:
        if next(calls) == 0:
            raise ZeroDivisionError("an internal error")
        return real(snapshot, device_type)

    monkeypatch.setattr(servicer_module, "device_list", fail_once)
    face.snapshots.set(snapshot())
    await face.servicers[-1].broken.wait()
    assert face.servicers[-1]._streams == 1


async def test_a_stream_that_is_ended_does_not_wait_for_the_report(
    face: Face, stub: "DevicePluginAsyncStub", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order_module, "REPORT_WAIT_S", 60.0)
    stream = aiter(stub.ListAndWatch(pb.Empty()))
    await anext(stream)
    face.snapshots.set(snapshot(3))
    await asyncio.sleep(0)
    face.servicers[-1].end_streams()
    assert [each async for each in stream] == []
