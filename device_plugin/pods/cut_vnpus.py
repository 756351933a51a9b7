"""The vNPUs that the driver has on the node's chips, as it listed them last."""

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from ascend.chips import chip_name
from ascend.daemon.observable import Observable
from ascend.errors import DriverError
from device_plugin.driver import Division, VirtualNpu
from device_plugin.pods.cutter import Cutter

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CALL_S: Final = 5.0
"""How long the driver may take for an answer, outside a call of the kubelet."""
HANDING_OVER_S: Final = 6.0
"""How long an instance of the plugin before this one may still answer a call, and the kubelet may take to note that."""


class CutVnpus:
    """Lists, creates and destroys vNPUs, and knows since when each of them is listed.

    Args:
        cutter: makes the driver's calls.
        chips: returns the physical ids of the node's chips that may be asked about.
    """

    def __init__(self, cutter: Cutter, chips: Callable[[], list[int]]) -> None:
        self._cutter = cutter
        self._chips = chips
        self._listed: dict[int, tuple[VirtualNpu, ...]] = {}
        self._first_seen_s: dict[tuple[int, int], float] = {}
        self._not_given: set[tuple[int, int]] = set()
        self.leftovers: Observable[None] = Observable(None)
        """Set when there is another vNPU that no pod has got."""
        cutter.on_late = self.not_given

    def __iter__(self) -> Iterator[VirtualNpu]:
        return iter([vnpu for vnpus in self._listed.values() for vnpu in vnpus])

    def __contains__(self, vnpu: VirtualNpu) -> bool:
        return vnpu in self._listed.get(vnpu.phy_id, ())

    @property
    def usable(self) -> set[int]:
        """The chips that may be asked about now."""
        return {*self._chips()}

    @property
    def has_not_given(self) -> bool:
        """Whether there are created vNPUs without a pod."""
        return bool(self._not_given)

    def is_known(self, chip: int) -> bool:
        """Return whether the driver has been asked about a chip."""
        return chip in self._listed

    def on(self, chip: int) -> tuple[VirtualNpu, ...]:
        """Return the vNPUs on a chip."""
        return self._listed.get(chip, ())

    def replacing(self, vnpu: VirtualNpu) -> VirtualNpu | None:
        """Return the vNPU with the same chip and id as a given one; the size may differ."""
        return next((present for present in self.on(vnpu.phy_id) if present.vdev_id == vnpu.vdev_id), None)

    def not_given(self, vnpu: VirtualNpu) -> None:
        """Note that no pod has got a vNPU."""
        self._not_given.add((vnpu.phy_id, vnpu.vdev_id))
        self.leftovers.set(None)

    def is_not_given(self, vnpu: VirtualNpu) -> bool:
        """Return whether it is known that no pod has got a vNPU."""
        return (vnpu.phy_id, vnpu.vdev_id) in self._not_given

    def is_new(self, vnpu: VirtualNpu) -> bool:
        """Return whether the instance before this one may be giving a vNPU to a pod right now.

        That is so also if another instance has died in between.
        """
        seen_s = self._first_seen_s.get((vnpu.phy_id, vnpu.vdev_id), math.inf)
        return asyncio.get_running_loop().time() < seen_s + HANDING_OVER_S

    def has_owner(self, vnpu: VirtualNpu) -> None:
        """Note that a pod is known to have a vNPU: once that has ended, the vNPU is unused at once."""
        self._first_seen_s[vnpu.phy_id, vnpu.vdev_id] = -math.inf

    def old_at_s(self) -> list[float]:
        """Return the times on the loop's clock at which vNPUs are, or were, no longer new."""
        return [seen_s + HANDING_OVER_S for seen_s in self._first_seen_s.values()]

    async def create(self, chip: int, template: str, within_s: float) -> VirtualNpu:
        """Cut a vNPU out of a chip, or raise DriverError."""
        vnpu = await self._cutter.create(chip, template, within_s)
        self._not_given.discard((chip, vnpu.vdev_id))
        self.has_owner(vnpu)
        self._listed[chip] = (*self.on(chip), vnpu)
        return vnpu

    async def destroy(self, vnpu: VirtualNpu, within_s: float) -> bool:
        """Destroy a vNPU, or raise DriverError; return False if a container has it."""
        if await self._cutter.destroy(vnpu, within_s) == "in use":
            return False
        self._not_given.discard((vnpu.phy_id, vnpu.vdev_id))
        self._first_seen_s.pop((vnpu.phy_id, vnpu.vdev_id), None)  # another instance may create one with its id
        self._listed[vnpu.phy_id] = tuple(
            present for present in self.on(vnpu.phy_id) if present.vdev_id != vnpu.vdev_id
        )
        return True

    async def look(self, chip: int, within_s: float) -> Division:
        """Ask the driver how a chip is cut, or raise DriverError."""
        division = await self._cutter.division(chip, within_s)
        self._listed[chip] = division.vnpus
        now_s, keys = asyncio.get_running_loop().time(), [(chip, vnpu.vdev_id) for vnpu in division.vnpus]
        others = {key: seen_s for key, seen_s in self._first_seen_s.items() if key[0] != chip}
        self._first_seen_s = others | {key: self._first_seen_s.get(key, now_s) for key in keys}
        self._not_given = {key for key in self._not_given if key[0] != chip or key in keys}
        return division

    async def look_at_all(self) -> None:
        """Ask the driver about all chips at once."""
        async with asyncio.TaskGroup() as tasks:
            for chip in self._chips():
                tasks.create_task(self._try_to_look(chip))

    async def look_again(self) -> None:
        """Ask the driver about chips with vNPUs without a pod, and about chips that it lists for the first time."""
        usable = self.usable
        for chip in sorted(({chip for chip, _ in self._not_given} | usable - self._listed.keys()) & usable):
            await self._try_to_look(chip)

    async def _try_to_look(self, chip: int) -> None:
        try:
            await self.look(chip, CALL_S)
        except DriverError as error:
            log.warning("it is unknown how a chip is cut", chip=chip_name(chip), error=error.message)
