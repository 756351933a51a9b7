"""The plugin's ledger of one type of devices, and what keeps it: the kubelet and the driver answer what a test says.

Devices are numbered in the same way for each type: the first pod's are number 0, the next pod's number 1, and so on. A
number stands for two chips, for a vNPU that was cut beforehand, or for a vNPU that is cut out of a chip's AI cores.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from ascend.annotations import CLAIMED, PREDICATE_TIME, REAL
from ascend.daemon.observable import Observable
from ascend.errors import Unreachable
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from ascend.vnpus import Vnpu
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType, number_of
from device_plugin.driver import Division, VirtualNpu
from device_plugin.kubelet.pod_resources import PodResources
from device_plugin.ledger.allocations import Allocation, Allocations, ContainerPart, DeviceLedger
from device_plugin.ledger.cores import CoreLedger, core_allocation
from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics
from device_plugin.pods import core_keeper
from device_plugin.pods import reconciler as reconcile_module
from device_plugin.pods.container_edits import ContainerEdits, make_edits
from device_plugin.pods.core_devices import CoreDevices
from device_plugin.pods.core_keeper import CoreKeeper
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.cutter import Cutter, Outcome
from device_plugin.pods.devices import ChipDevices, Devices
from device_plugin.pods.notices import PodNotices
from device_plugin.pods.reconciler import Reconciler

TYPES: Final = (WHOLE_CHIPS, DeviceType("2c"), CORES)
TEMPLATE: Final = "vir05_1c_16g"
SUFFIX: Final = "5c.1cpu.16g"
CORES_EACH: Final = 5


class Cuts(Cutter):
    """A driver that has the vNPUs that a test says."""

    def __init__(self) -> None:
        self.vnpus: set[VirtualNpu] = set()
        self.in_containers: set[VirtualNpu] = set()

    async def division(self, chip: int, within_s: float) -> Division:  # noqa: ARG002 - it answers at once
        own = sorted((each for each in self.vnpus if each.phy_id == chip), key=lambda vnpu: vnpu.vdev_id)
        return Division(vnpus=tuple(own), free_cores=20 - CORES_EACH * len(own), free_cpus=6 - len(own))

    async def destroy(self, vnpu: VirtualNpu, within_s: float) -> Outcome:  # noqa: ARG002 - it has no deadline
        if vnpu in self.in_containers:
            return "in use"
        self.vnpus.remove(vnpu)
        return "destroyed"

    async def create(self, chip: int, template: str, within_s: float) -> VirtualNpu:  # noqa: ARG002 - at once
        vnpu = VirtualNpu.of_vnpu(Vnpu(SUFFIX, chip, 100 + chip))
        self.vnpus.add(vnpu)
        return vnpu


def _inject(numbers: tuple[int, ...], device_type: DeviceType) -> ContainerEdits:
    return make_edits(numbers, "runtime", Path("/dev"), lambda _folder: (), device_type=device_type)


class Books:
    """A reconciler and its data.

    Attributes:
        device_type: the type of devices.
        claimed: the allocations that were claimed.
        announced: what pods were told: pod, reason and sentence.
        kubelet_pods: the kubelet's list of its pods; None if it can't be asked.
        driver: has the vNPUs that were cut out of AI cores.
    """

    def __init__(self, device_type: DeviceType = WHOLE_CHIPS, socket: Path = Path("none")) -> None:
        self.device_type = device_type
        self.claimed: list[Allocation] = []
        self.on_event: list[tuple[str, str, str]] = []
        self.metrics = Metrics()
        self.kubelet_pods: list[Pod] | None = None
        self.driver = Cuts()
        self._vnpus = CutVnpus(self.driver, lambda: list(range(8)))
        self.keeper: CoreKeeper | None = None
        self.devices = self._cores() if device_type == CORES else self._chips()
        ledger = self.devices.ledger
        self.allocations, self.pods = ledger.allocations, ledger.pods
        self.reconciler = Reconciler(
            socket,
            self.devices,
            kubelet_pods=self._kubelet_pods,
            claim=lambda allocation, _others=None: self.claimed.append(allocation),
            metrics=self.metrics,
            notices=self.notices,
        )

    def _chips(self) -> Devices:
        allocations = Allocations()
        ledger = DeviceLedger(NodePods(allocations.drop, self.device_type), allocations)
        self.notices = self._pod_notices(ledger)
        return ChipDevices(ledger, _inject)

    def _cores(self) -> Devices:
        ledger = CoreLedger(Observable(None))
        self.notices = notices = self._pod_notices(ledger)
        self.keeper = CoreKeeper(
            ledger,
            self._vnpus,
            settle=lambda: self.reconciler.settle(),  # noqa: PLW0108 - made later
            others=set,
            notices=notices,
            announce_node=lambda *_whatever: None,
        )
        return CoreDevices(
            ledger, self._vnpus, self.keeper, others=set, whole=lambda: 0, inject=_inject, notices=notices
        )

    def _pod_notices(self, ledger: DeviceLedger) -> PodNotices:
        return PodNotices(
            ledger.pods,
            lambda pod, reason, sentence: self.on_event.append((pod.key, reason, sentence)),
            self.metrics,
        )

    async def run(self) -> None:
        """Follow the pods, and give back what no pod uses, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.reconciler.run())
            if self.keeper is not None:
                tasks.create_task(self.keeper.run())

    async def _kubelet_pods(self) -> list[Pod]:
        if self.kubelet_pods is None:
            raise Unreachable("the kubelet does not list its pods here")
        return self.kubelet_pods

    # What a number stands for.

    @property
    def count(self) -> int:
        """How many devices a pod requests."""
        return {WHOLE_CHIPS: 2, CORES: CORES_EACH}.get(self.device_type, 1)

    def vnpu(self, number: int) -> VirtualNpu:
        """The vNPU with a number, of a chip of its own."""
        return VirtualNpu.of_vnpu(Vnpu(SUFFIX, number, 100 + number))

    def ids(self, number: int) -> tuple[int, ...]:
        """The device ids with a number."""
        if self.device_type.suffix:
            return (number_of(Vnpu(self.device_type.suffix, number, 100 + number)),)
        return tuple(range(number * self.count, (number + 1) * self.count))

    def chips(self, number: int) -> tuple[int, ...]:
        """What a pod with the devices of a number has; for AI cores the chip."""
        return (number,) if self.device_type == CORES else self.ids(number)

    def name(self, number: int) -> str:
        """The name of the devices with a number, as in a claim."""
        if self.device_type == CORES:
            return f"Ascend910-{SUFFIX}-{100 + number}-{number}_0"
        return self.device_type.join(self.ids(number))

    def _number(self, numbers: tuple[int, ...], of: Callable[[int], tuple[int, ...]]) -> int:
        return next(number for number in range(8) if of(number) == tuple(sorted(numbers)))

    @property
    def entries(self) -> dict[str, int]:
        """By pod: the number of the devices that it has."""
        return {each.pod: self._number(each.chips, self.chips) for each in self.allocations}

    @property
    def given(self) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
        """By pod: its chips, and the kubelet's ids."""
        return {each.pod: (each.chips, each.kubelet_ids) for each in self.allocations}

    @property
    def counted(self) -> dict[str, int]:
        """By pod: the number of the devices that the kubelet counts for it."""
        return {each.pod: self._number(each.kubelet_ids, self.ids) for each in self.allocations}

    @property
    def claims(self) -> dict[str, int]:
        """By pod: the number of the devices that were claimed last."""
        return {each.pod: self._number(each.chips, self.chips) for each in self.claimed}

    @property
    def without(self) -> float | None:
        """How many pods run without their devices, by the metric."""
        labels = {"resource": self.device_type.resource}
        registry = self.metrics.registry
        return registry.get_sample_value("ascend_dp_pods_without_chips", labels) or registry.get_sample_value(
            "ascend_dp_pods_without_chips"
        )

    # What happens.

    def pod(
        self,
        name: str,
        number: int | None = None,
        *,
        claims: int | None = None,
        started: bool = False,
        uid: str = "",
        phase: str = "Pending",
    ) -> Pod:
        """A pod that requests devices.

        Args:
            name: its name.
            number: that of the devices that the allocator has written on it.
            claims: that of the devices of its claim.
            started: whether it has containers.
            uid: its uid; by default it follows from the name.
            phase: of its status.
        """
        resource = self.device_type.resource
        annotations = {}
        if number is not None:
            annotations = {resource: f"{number}-{TEMPLATE}" if self.device_type == CORES else self.name(number)}
            annotations[PREDICATE_TIME] = "1"
        if claims is not None:
            self.driver.vnpus.add(self.vnpu(claims))
            annotations |= {REAL: self.name(claims), PREDICATE_TIME: str(CLAIMED)}
        limits = {resource: str(self.count)}
        return Pod(
            metadata=Metadata(name=name, namespace="default", uid=uid or f"uid-{name}", annotations=annotations),
            spec=PodSpec(node_name="n1", containers=(Container("main", Resources(limits=limits)),)),
            status=PodStatus(phase=phase, container_statuses=(ContainerStatus("main"),) if started else ()),
        )

    def allocation(self, name: str, number: int, uid: str = "", *, ids: int | None = None) -> Allocation:
        """What a pod was given."""
        numbers = self.ids(number if ids is None else ids)
        self.driver.vnpus.add(self.vnpu(number))
        if self.device_type == CORES:
            pod = self.pods.read(self.pod(name, number, uid=uid), 0)
            return core_allocation(pod, numbers, self.chips(number), TEMPLATE, self.vnpu(number))
        part = ContainerPart("main", keeps=True, chips=self.chips(number), kubelet_ids=numbers)
        return Allocation.of_parts(uid or f"uid-{name}", f"default/{name}", part.chips, (part,), self.device_type)

    def answer(self, name: str, number: int, uid: str = "", *, ids: int | None = None) -> None:
        """Answer a call, and take it for a pod's."""
        allocation = self.allocation(name, number, uid, ids=ids)
        self.allocations.give(allocation, self.ids(number if ids is None else ids))

    def show(self, *pods: Pod) -> list[NodePod]:
        """Have the watch show pods."""
        for pod in pods:
            self.pods.on_apply(pod)
        return list(self.pods)

    def kubelet(
        self,
        held: Mapping[str, int | None] | Callable[[], Mapping[str, int | None]],
        ambiguous: Iterable[str] = (),
    ) -> Callable[..., Any]:
        """A reader of a kubelet's ledger in which pods have the devices of these numbers; None: the pod has nothing."""

        async def read(_socket: Path, _device_type: DeviceType) -> PodResources:
            await asyncio.sleep(0)  # as long as any answer takes
            found = held() if callable(held) else held
            pods = {
                f"default/{name}": {"main": self.ids(number)} if number is not None else {}
                for name, number in found.items()
            }
            return PodResources(pods, {f"default/{name}" for name in ambiguous})

        return read


def serve(monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any], retry_s: float | None = 0.001) -> None:
    """Have the kubelet's ledger read by a function."""
    monkeypatch.setattr(reconcile_module, "read_ledger", read)
    if retry_s is not None:
        for module in (reconcile_module, core_keeper):
            monkeypatch.setattr(module, "RETRY_S", retry_s)


async def silent(_socket: Path, _device_type: DeviceType) -> PodResources:
    """A kubelet that does not answer."""
    raise Unreachable("nobody there")
