"""The state of the device manager: the devices, their health, and the containers that hold them."""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb

HEALTHY = "Healthy"
NO_NUMA_NODE = -1


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """The devices of one resource that a container holds.

    Attributes:
        pod_uid: the pod.
        container: the container's name.
        resource: the resource.
        devices: device ids by NUMA node; ``NO_NUMA_NODE`` for devices without one.
        response: the plugin's Allocate response, used at every restart of the container.
    """

    pod_uid: str
    container: str
    resource: str
    devices: Mapping[int, tuple[str, ...]]
    response: pb.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        """All device ids."""
        return frozenset(chip_id for ids in self.devices.values() for chip_id in ids)


class ResourceLedger:
    """Devices by resource and allocations by container.

    During an Allocate call ``in_use`` already contains its devices; if the call fails, it is rebuilt from the
    allocations (docs/spec/kubelet.md#no-rollback: earlier containers of the pod keep their devices).
    """

    def __init__(self) -> None:
        self.healthy: dict[str, set[str]] = {}
        self.unhealthy: dict[str, set[str]] = {}
        self.in_use: dict[str, set[str]] = {}
        self._removed: set[str] = set()
        self._devices: dict[str, dict[str, pb.Device]] = {}
        self._allocations: dict[tuple[str, str, str], ContainerAllocation] = {}

    @property
    def allocations(self) -> Iterable[ContainerAllocation]:
        """All allocations, including those of finished pods that are not yet freed."""
        return self._allocations.values()

    def report(self, resource: str, devices: Iterable[pb.Device]) -> None:
        """Replace the devices of a resource by those of a ListAndWatch message. An id can be in both sets.

        See docs/spec/kubelet.md#listandwatch.
        """
        devices = list(devices)
        self._devices[resource] = {device.ID: device for device in devices}
        self.healthy[resource] = {device.ID for device in devices if device.health == HEALTHY}
        self.unhealthy[resource] = {device.ID for device in devices if device.health != HEALTHY}

    def restore(self, resources: Iterable[str], allocations: Iterable[ContainerAllocation]) -> None:
        """Restore a checkpoint; the resources have no devices until their plugins register again.

        See docs/spec/kubelet.md#restarts.
        """
        for resource in resources:
            self.healthy[resource] = set()
            self.unhealthy[resource] = set()
        for allocation in allocations:
            self._allocations[allocation.pod_uid, allocation.container, allocation.resource] = allocation
        self.rebuild_in_use()

    def disconnect(self, resource: str) -> None:
        """Mark all devices of a resource unhealthy, because the plugin's stream ended.

        See docs/spec/kubelet.md#listandwatch.
        """
        lost = self.healthy.get(resource, set())
        if resource in self.healthy:
            self.healthy[resource] = set()
        self.unhealthy[resource] = self.unhealthy.get(resource, set()) | lost

    def purge(self, resource: str) -> None:
        """Remove a resource whose plugin did not come back in time."""
        self.healthy.pop(resource, None)
        self.unhealthy.pop(resource, None)
        self._removed.add(resource)

    def take_removed(self) -> set[str]:
        """Return the resources that were removed since the last call."""
        removed, self._removed = self._removed, set()
        return removed

    def knows(self, resource: str) -> bool:
        """Whether a device plugin registered the resource; requests for others are ignored.

        See docs/spec/kubelet.md#allocation.
        """
        return resource in self.healthy or resource in self.in_use

    def capacities(self) -> dict[str, tuple[int, int]]:
        """Return capacity and allocatable of every resource, as in the Node's status."""
        resources = self.healthy.keys() | self.unhealthy.keys()
        healthy = {resource: len(self.healthy.get(resource, ())) for resource in resources}
        return {
            resource: (healthy[resource] + len(self.unhealthy.get(resource, ())), healthy[resource])
            for resource in sorted(resources)
        }

    def health(self) -> dict[str, dict[str, str]]:
        """Return the health of every device by resource and id."""
        return {
            resource: {
                **dict.fromkeys(sorted(self.healthy.get(resource, ())), HEALTHY),
                **dict.fromkeys(sorted(self.unhealthy.get(resource, ())), "Unhealthy"),
            }
            for resource in self.healthy.keys() | self.unhealthy.keys()
        }

    def _numa_nodes(self, resource: str, device: str) -> tuple[int, ...]:
        known = self._devices.get(resource, {}).get(device)
        return tuple(node.ID for node in known.topology.nodes) if known is not None else ()

    def by_numa(self, resource: str, devices: Iterable[str]) -> dict[int, tuple[str, ...]]:
        """Group devices by NUMA node, as checkpoint and pod-resources API do."""
        groups: dict[int, tuple[str, ...]] = {}
        for device in sorted(devices):
            for node in self._numa_nodes(resource, device) or (NO_NUMA_NODE,):
                groups[node] = (*groups.get(node, ()), device)
        return groups

    def get(self, pod_uid: str, container: str, resource: str) -> ContainerAllocation | None:
        """Return the allocation of a container for a resource, or None."""
        return self._allocations.get((pod_uid, container, resource))

    def of_container(self, pod_uid: str, container: str) -> Iterator[ContainerAllocation]:
        """Return all allocations of a container."""
        return (
            allocation
            for allocation in self.allocations
            if allocation.pod_uid == pod_uid and allocation.container == container
        )

    def holds_any(self, pod_uid: str) -> bool:
        """Whether a container of the pod has an allocation."""
        return any(allocation.pod_uid == pod_uid for allocation in self.allocations)

    def record(self, allocation: ContainerAllocation) -> None:
        """Add an allocation."""
        self._allocations[allocation.pod_uid, allocation.container, allocation.resource] = allocation
        self.in_use.setdefault(allocation.resource, set()).update(allocation.ids)

    def free_all_but(self, active: AbstractSet[str]) -> bool:
        """Remove the allocations of inactive pods; return whether there were any."""
        gone = [key for key in self._allocations if key[0] not in active]
        for key in gone:
            del self._allocations[key]
        if gone:
            self.rebuild_in_use()
        return bool(gone)

    def rebuild_in_use(self) -> None:
        """Set ``in_use`` to the devices of the allocations."""
        self.in_use = {}
        for allocation in self.allocations:
            self.in_use.setdefault(allocation.resource, set()).update(allocation.ids)
