"""The readers that are fuzzed. Each takes any bytes: a value comes of them, or an error of the project."""

import asyncio
import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.admission.objects import FlavorSpec, Workload
from allocator.admission.workload_pods import OwningJob, owners, pods_of
from allocator.rescheduling import storage
from allocator.rules.node_constraints import untolerated
from allocator.serving import extender_wire, volcano_wire, webhook
from allocator.settings import Settings as AllocatorSettings
from allocator.state.cluster_info import ClusterInfo
from allocator.state.kinds import KINDS
from allocator.state.report import read_agent_health, read_report
from ascend import annotations, base_device_infos, deviceinfo, pod_devices
from ascend.daemon.settings import fixed_settings
from ascend.errors import UNREADABLE, AscendError
from ascend.kube.objects import ConfigMap, Node, OwnerReference, Pod, Taint, read_object
from ascend.leaf_switches import read_switches
from ascend.serving.frames import PREFACE, BrokenError
from ascend.serving.http2 import Http2, Stream
from ascend.turn import at_once
from device_plugin.driver.dcmi.dividing_calls import DividingCalls
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.health.fault_rules_file import default_rules, read_rules
from device_plugin.kubelet.pods_api import _PodList, parse_registrations
from device_plugin.ledger.node_pods import is_static, read_pod, requested_types
from device_plugin.pods import cdi_file
from device_plugin.publish.restore import read_known
from device_plugin.reset.reset_info import read_resets, write_resets
from device_plugin.settings import Settings as PluginSettings
from npuctl.offline_allocator import OfflineAllocator
from npuctl.plan.placement import Planning
from npuctl.plan.workloads import expand
from npuctl.reading.manifests import read_manifests
from npuctl.reading.objects import ClusterObjects

NOW_NS: Final = 1_767_225_600 * 10**9
_EXAMPLES: Final = Path(__file__).parents[2] / "deploy" / "examples"

Target: TypeAlias = Callable[[bytes], None]


def _object(data: bytes, kind: type[Any]) -> Any:
    """Decode an object as the API server sends it; the reflector skips one that it can't decode."""
    try:
        return read_object(data, kind)
    except UNREADABLE:
        return kind()


def report(data: bytes) -> None:
    """A node's report, and what else is in its ConfigMap."""
    config_map = _object(data, ConfigMap)
    for read in (deviceinfo.decode_report, deviceinfo.read_upgrades, deviceinfo.read_update_time):
        with suppress(AscendError):
            read(config_map.data)
    deviceinfo.read_manually_separated(config_map.data)
    read_report(config_map)
    read_agent_health(config_map)


def cluster_info(data: bytes) -> None:
    """ClusterD's ConfigMaps: first one, then its successor."""
    info = ClusterInfo()
    for line in data.split(b"\n"):
        for name in info.apply(_object(line, ConfigMap)):
            info.combine(name, read_report(ConfigMap()))


def pod_annotations(data: bytes) -> None:
    """The annotations that tenants can write."""
    pod = _object(data, Pod)
    written = pod.metadata.annotations
    reads: tuple[Callable[[], object], ...] = (
        lambda: pod_devices.read_grant(written),
        lambda: annotations.read_predicate_time(written),
        lambda: annotations.read_block(written),
        lambda: annotations.read_switch_use(written),
        lambda: pod_devices.held_chips(written),
        lambda: base_device_infos.read_base_device_infos(written.get(base_device_infos.BASE_DEVICE_INFOS, "")),
        lambda: pod_devices.read_vnpu_grant(written),
        lambda: pod_devices.read_cores_grant(written, 8),
        lambda: pod_devices.read_held(written),
        lambda: untolerated([Taint(key="k", effect="NoSchedule")], pod.spec.tolerations),
    )
    for read in reads:
        with suppress(AscendError):
            read()


def node(data: bytes) -> None:
    """The annotations of a Node that an earlier plugin wrote."""
    read = _object(data, Node)
    read_known(read)
    resets = read_resets(read.metadata.annotations)
    write_resets([], resets.third_party, resets.times_s)


def kueue_workload(data: bytes) -> None:
    """A workload of Kueue and its job, a line each."""
    first, _, second = data.partition(b"\n")
    workload = _object(first, Workload)
    workload.states({"chips"})
    workload.retries({"chips"})
    job = _object(second, OwningJob)
    for kind, version in owners():
        owning = (OwnerReference(version, kind, job.name, job.uid, controller=True),)
        owned = replace(workload, metadata=replace(workload.metadata, owner_references=owning))
        with suppress(AscendError):
            pods_of(owned, job, {}, {"ascend": FlavorSpec({"a": "b"}, ({"key": "c"},))})


@cache
def _allocator() -> OfflineAllocator:
    reading = read_manifests([str(_EXAMPLES / "cluster.yaml")])
    return OfflineAllocator(reading.objects, AllocatorSettings(), NOW_NS)


@contextmanager
def _fresh() -> Iterator[OfflineAllocator]:
    """An allocator with the nodes of the example; what it has reserved is given back at the end."""
    allocator = _allocator()
    try:
        yield allocator
    finally:
        for plan in [*allocator.ledger.plans]:
            allocator.ledger.drop_plan(plan)
        for reservation in [*allocator.ledger]:
            allocator.ledger.release(reservation.uid)


def admission_review(data: bytes) -> None:
    """What the API server asks of the webhooks: an author's pod, a scheduler's Binding, a question."""
    try:
        review = msgspec.json.decode(data, type=webhook._Review).request
        with suppress(*UNREADABLE):
            binding, _ = webhook._binding_of(review)
            webhook._patch(binding.metadata, {annotations.ALLOCATED: "Ascend910-0", "target": binding.target.name})
        with suppress(*UNREADABLE):
            webhook._asked_of(review)
        pod = webhook._pod_of(review)
    except UNREADABLE:
        return
    with _fresh() as allocator, suppress(AscendError):
        allocator.engine.validate(pod)
        allocator.engine.warnings(pod)


class _Call(msgspec.Struct):
    pod: Pod = msgspec.field(name="Pod", default_factory=Pod)


def extender_call(data: bytes) -> None:
    """The bodies of filter, preempt and bind; a pod of the first is placed."""
    for kind in (extender_wire.PreemptionArgs, extender_wire.BindingArgs, extender_wire.MetaVictims):
        with suppress(AscendError):
            extender_wire.decode(data, kind)
    _, names = extender_wire.read_args(data)
    list(names)
    pod = _object(data, _Call).pod  # as if the API server had the same
    with _fresh() as allocator:
        if allocator.engine.handles(pod):
            at_once(allocator.engine.place_or_explain(pod, names))


def volcano_call(data: bytes) -> None:
    """The bodies of Volcano's extender plugin."""
    for kind in (
        volcano_wire.PredicateArgs,
        volcano_wire.PrioritizeArgs,
        volcano_wire.EvictArgs,
        volcano_wire.JobArgs,
        volcano_wire.TaskArgs,
    ):
        with suppress(AscendError):
            volcano_wire.decode(data, kind)


def fault_rules(data: bytes) -> None:
    """The ConfigMap with which administrators change the rules of faults."""
    read_rules(_object(data, ConfigMap).data, default_rules())


def switch_table(data: bytes) -> None:
    """The ConfigMap with the leaf switches and their servers."""
    read_switches(_object(data, ConfigMap))


def rescheduling_memory(data: bytes) -> None:
    """What another leader has written of rescheduling."""
    kept, _ = storage.decode(_object(data, ConfigMap).data, NOW_NS / 1e9)
    storage.MemoryPacking(kept).pack()


def _in_a_file(data: bytes) -> Path:
    path = Path(tempfile.gettempdir()) / f"fuzzed-{_process()}"
    path.write_bytes(data)
    return path


@cache
def _process() -> int:
    return os.getpid()


def settings_file(data: bytes) -> None:
    """The file with a program's settings."""
    path = _in_a_file(data)
    for kind in (AllocatorSettings, PluginSettings):
        with suppress(AscendError):
            fixed_settings(kind, path, {})


def simulated_chips(data: bytes) -> None:
    """The file with simulated chips."""
    driver = SimulatedDriver(_in_a_file(data))
    for chip in driver.discover().chips:
        driver.read(chip)


def manifests(data: bytes) -> None:
    """The files of `npuctl plan`."""
    reading = read_manifests([str(_in_a_file(data))])
    # A job of a million pods is planned in its time; here only reading and expanding is tried for small ones.
    if len(data) < _MOST_PLANNED and not _asks_for_many(data):
        expansion = expand(reading.unsubmitted, reading.objects)
        asyncio.run(Planning(expansion.objects, AllocatorSettings(), NOW_NS).rest())


_MOST_PLANNED: Final = 20_000


def _asks_for_many(data: bytes) -> bool:
    return re.search(rb"[0-9]{3}|[0-9][eEkMGTP]", data) is not None


def watched_objects(data: bytes) -> None:
    """All that the allocator watches: objects by kind, each as the API server sends it; then its waiting pods."""
    try:
        found = msgspec.json.decode(data, type=dict[str, list[msgspec.Raw]])
    except UNREADABLE:
        return
    by_kind: dict[str, list[Any]] = {}
    for kind in KINDS:
        for raw in found.get(kind.name, [])[:8]:
            with suppress(*UNREADABLE):
                by_kind.setdefault(kind.name, []).append(msgspec.json.decode(raw, type=kind.resource.type))
    objects = ClusterObjects({kind: tuple(read) for kind, read in by_kind.items()})
    allocator = OfflineAllocator(objects, AllocatorSettings(), NOW_NS)
    for pod in objects.pods:
        with suppress(AscendError):
            if allocator.waits(pod):
                allocator.engine.without_effect(pod)
                allocator.engine.place(pod)


def kubelet_pods(data: bytes) -> None:
    """The pods that the kubelet lists."""
    try:
        listed = msgspec.json.decode(data, type=_PodList).items or []
    except UNREADABLE:
        return
    for order, pod in enumerate(listed):
        is_static(pod)
        for device_type in requested_types(pod):
            read_pod(pod, order, device_type)


def kubelet_metrics(data: bytes) -> None:
    """The kubelet's page of metrics."""
    parse_registrations(data.decode(errors="replace"), "huawei.com/Ascend910")


def cdi(data: bytes) -> None:
    """A file of CDI devices."""
    cdi_file._names(data)


class _Requests:
    """Answers each request at once."""

    http2: Http2

    def awaits(self) -> bool:
        return True

    def grown(self, _stream: Stream, _size: int) -> bool:
        return True

    def on_request(self, stream: Stream) -> None:
        self.http2.answer(stream, 200, {"Content-Type": "text/plain"}, bytes(stream.body) or b"-")

    def on_end(self, _stream: Stream) -> None:
        """Do nothing."""


def http2_frames(data: bytes) -> None:
    """What follows the preface of a connection over HTTP/2."""
    requests = _Requests()
    requests.http2 = Http2(requests)
    with suppress(BrokenError):
        requests.http2.receive(PREFACE + data)


class _Function:
    """A function of the driver's library that fills what it is given with fuzzed bytes."""

    argtypes: tuple[Any, ...] = ()
    restype: Any = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, *arguments: Any) -> int:
        for argument in arguments:
            target = getattr(argument, "_obj", argument)
            if isinstance(target, (ctypes._SimpleCData, ctypes.Structure, ctypes.Array)):
                size = ctypes.sizeof(target)
                filled = (self._data * (size // max(len(self._data), 1) + 1))[:size]
                ctypes.memmove(ctypes.addressof(target), filled, len(filled))
                self._data = self._data[size:] or self._data
        return 0


class _Library:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def __getattr__(self, name: str) -> _Function:
        # Each function begins elsewhere, so that not all of them answer the same.
        at = sum(name.encode()) % max(len(self._data), 1)
        return _Function(self._data[at:] + self._data[:at])


def dcmi(data: bytes) -> None:
    """The answers of the driver's library."""
    calls = DividingCalls(_Library(data), lambda *_: None)  # type: ignore[arg-type] # its functions alone are used
    for read in (
        calls.version, calls.cards, lambda: calls.devices(0), lambda: calls.phy_id(0), lambda: calls.chip_info((0, 0)),
        lambda: calls.roce_address((0, 0)), lambda: calls.super_pod((0, 0)), lambda: calls.resources((0, 0)),
        lambda: calls.virtual_npu((0, 0), 1, 0), lambda: calls.cpu_affinity((0, 0)), lambda: calls.fault_codes((0, 0)),
        lambda: calls.pci_address((0, 0)), lambda: calls.processes((0, 0)), lambda: calls.health((0, 0)),
    ):  # fmt: skip
        with suppress(AscendError):
            read()


_ALL: Final[tuple[Target, ...]] = (
    report, cluster_info, pod_annotations, node, admission_review, extender_call, volcano_call, fault_rules,
    switch_table, rescheduling_memory, settings_file, simulated_chips, manifests, watched_objects, kubelet_pods,
    kubelet_metrics, cdi, dcmi, http2_frames, kueue_workload,
)  # fmt: skip
TARGETS: Final = {target.__name__: target for target in _ALL}


def run(name: str, data: bytes) -> None:
    """Give bytes to a target; its errors of the project are its answers."""
    with suppress(AscendError):
        TARGETS[name](data)
