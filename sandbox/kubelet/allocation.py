"""The kubelet's device manager, which chooses and allocates devices (docs/spec/kubelet.md).

Steps and error messages are those of devicemanager/manager.go in kubelet 1.34; the status of a failed pod shows one of
these messages, or the error of the plugin. A failed allocation is not rolled back.
"""

import logging
import random
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal

from ascend.errors import AscendError
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.kubelet.checkpoint import write_checkpoint
from sandbox.kubelet.endpoint import PluginFailure
from sandbox.kubelet.ledger import ContainerAllocation, ResourceLedger
from sandbox.kubelet.registration import Plugins
from sandbox.pods import ContainerSpec, FullPod

log = logging.getLogger(__name__)

TopologyPolicy = Literal["none", "best-effort"]
"""With ``none``, the kubelet's default, no device is aligned, and the kubelet calls GetPreferredAllocation even without
a choice. With another policy it does so only if there are more aligned devices than needed."""


class AllocationFailure(AscendError):
    """The device manager cannot allocate; the text is the kubelet's own message."""


class DeviceManager:
    """Allocates devices to containers.

    Args:
        ledger: devices and allocations.
        plugins: called for GetPreferredAllocation and Allocate.
        directory: of the checkpoint.
        rng: replaces the random order of Go maps.
        active: returns the uids of the pods that may hold devices.
        already_running: whether a container (by pod uid and name) ran when the kubelet started; it matters until the
            pods of that moment are admitted.
        topology_policy: see ``TopologyPolicy``.
        changed: called after every change of the ledger.
    """

    def __init__(
        self,
        ledger: ResourceLedger,
        plugins: Plugins,
        directory: Path,
        *,
        rng: random.Random,
        active: Callable[[], AbstractSet[str]],
        already_running: Callable[[str, str], bool],
        topology_policy: TopologyPolicy,
        changed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._plugins = plugins
        self._directory = directory
        self._rng = rng
        self._active = active
        self._already_running = already_running
        self._topology_policy = topology_policy
        self._changed = changed
        self.sources_ready = False
        """Whether the pods of the kubelet's start have been through admission; until then nothing is freed."""

    async def admit(self, pod: FullPod) -> None:
        """Allocate devices to all containers of a pod: init containers in order, then app containers.

        Raises:
            AscendError: the kubelet or the plugin refuses.
        """
        reusable: dict[str, set[str]] = {}
        for container in pod.init_containers:
            await self._allocate(pod, container, reusable)
            for allocation in self._ledger.of_container(pod.uid, container.name):
                kept = reusable.setdefault(allocation.resource, set())
                # Later containers reuse the devices of a finished init container; a sidecar keeps its own
                # (docs/spec/kubelet.md#containers-of-a-pod).
                (kept.difference_update if container.is_sidecar else kept.update)(allocation.ids)
        for container in pod.containers:
            await self._allocate(pod, container, reusable)
            for allocation in self._ledger.of_container(pod.uid, container.name):
                reusable.setdefault(allocation.resource, set()).difference_update(allocation.ids)

    async def container_options(self, pod: FullPod, container: ContainerSpec) -> list[pb.ContainerAllocateResponse]:
        """Return the cached Allocate responses of a container; called at each of its starts.

        See docs/spec/kubelet.md#using-the-response.

        Raises:
            AscendError: a plugin's PreStartContainer failed, or the Allocate for a missing allocation.
        """
        missing = False
        for resource, count in container.extended_resources.items():
            if not count or not self._ledger.knows(resource):
                continue
            held = self._ledger.get(pod.uid, container.name, resource)
            endpoint = self._plugins.endpoint(resource)
            if endpoint is not None and endpoint.options.pre_start_required:
                if held is None:
                    raise AllocationFailure(
                        f"no devices found allocated in local cache for pod {pod.uid}, container {container.name},"
                        f" resource {resource}"
                    )
                await endpoint.pre_start(self._shuffle(held.ids))
            missing = missing or held is None
        if missing and pod.uid in self._active():
            await self._allocate(pod, container, {})
        return [allocation.response for allocation in self._ledger.of_container(pod.uid, container.name)]

    def free_inactive(self) -> None:
        """Free the devices of inactive pods; the kubelet does it only here, lazily.

        See docs/spec/kubelet.md#freed-devices.
        """
        if self.sources_ready and self._ledger.free_all_but(self._active()):
            self._changed()

    async def _allocate(self, pod: FullPod, container: ContainerSpec, reusable: dict[str, set[str]]) -> None:
        allocated = False
        requests = list(container.extended_resources.items())
        self._rng.shuffle(requests)
        for resource, count in requests:
            if not self._ledger.knows(resource):
                # Silent skip: the container runs without devices (docs/spec/kubelet.md#silent-skip).
                continue
            self.free_inactive()
            devices = await self._choose(pod, container, resource, count, reusable.get(resource, set()))
            if devices:
                await self._call_allocate(pod, container, resource, devices)
                allocated = True
        if allocated:
            write_checkpoint(self._directory, self._ledger)
            self._changed()

    async def _call_allocate(self, pod: FullPod, container: ContainerSpec, resource: str, devices: set[str]) -> None:
        endpoint = self._plugins.endpoint(resource)
        try:
            if endpoint is None:
                raise AllocationFailure(f"unknown Device Plugin {resource}")
            response = await endpoint.allocate(self._shuffle(devices))
        except AscendError:
            self._ledger.rebuild_in_use()
            raise
        groups = self._ledger.by_numa(resource, devices)
        self._ledger.record(ContainerAllocation(pod.uid, container.name, resource, groups, response))
        self._changed()

    async def _choose(
        self, pod: FullPod, container: ContainerSpec, resource: str, count: int, reusable: set[str]
    ) -> set[str]:
        held = self._ledger.get(pod.uid, container.name, resource)
        held_ids = held.ids if held is not None else frozenset()
        if held is not None and len(held_ids) != count:
            raise AllocationFailure(
                f'pod "{pod.uid}" container "{container.name}" changed request for resource "{resource}"'
                f" from {len(held_ids)} to {count}"
            )
        if not self.sources_ready and self._already_running(pod.uid, container.name):
            return set()
        healthy = self._ledger.healthy.get(resource)
        if healthy is None:
            raise AllocationFailure(f"cannot allocate unregistered device {resource}")
        if not healthy:
            raise AllocationFailure(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not held_ids <= healthy:
            raise AllocationFailure(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )
        needed = count - len(held_ids)
        return await self._choose_new(resource, needed, reusable) if needed else set()

    async def _choose_new(self, resource: str, needed: int, reusable: set[str]) -> set[str]:
        in_use = self._ledger.in_use.setdefault(resource, set())
        chosen = self._sample(reusable, needed)
        in_use |= chosen
        missing = needed - len(chosen)
        if not missing:
            return chosen
        available = self._ledger.healthy[resource] - in_use
        if len(available) < missing:
            raise AllocationFailure(
                f"requested number of devices unavailable for {resource}."
                f" Requested: {missing}, Available: {len(available)}"
            )
        if self._topology_policy == "none" or len(available) > missing:
            preferred = await self._ask_preferred(resource, available | chosen, chosen, needed)
            chosen |= self._sample(preferred & available, missing)
        chosen |= self._sample(available - chosen, needed - len(chosen))
        self._ledger.in_use.setdefault(resource, set()).update(chosen)
        return chosen

    async def _ask_preferred(self, resource: str, available: set[str], chosen: set[str], size: int) -> frozenset[str]:
        endpoint = self._plugins.endpoint(resource)
        if endpoint is None:
            raise PluginFailure(f"endpoint not found in cache for a registered resource: {resource}")
        if not endpoint.options.get_preferred_allocation_available:
            return frozenset()
        return await endpoint.prefer(self._shuffle(available), self._shuffle(chosen), size)

    def _sample(self, devices: Iterable[str], count: int) -> set[str]:
        return set(self._shuffle(devices)[:count])

    def _shuffle(self, devices: Iterable[str]) -> list[str]:
        # Sorted first, so that the result depends on the seed and not on string hashes.
        ordered = sorted(devices)
        self._rng.shuffle(ordered)
        return ordered
