"""Gives back the vNPUs that no pod uses.

A vNPU is given back only when its pod has ended by the watch and the kubelet's ledger has no entry for it, when the
driver does not say that a container has it, and while no pod is known that could have it although the plugin does not
know which vNPU it has.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from ascend.chips import chip_name
from ascend.daemon.observable import wait_for_change
from ascend.errors import DriverError
from ascend.rate_limiters import Backoff, ItemBackoff, loop_time_s
from device_plugin.driver import Division, VirtualNpu
from device_plugin.ledger.cores import CoreLedger
from device_plugin.pods.cut_vnpus import CALL_S, CutVnpus
from device_plugin.pods.notices import WITHOUT, PodNotices
from device_plugin.pods.reconciler import RETRY_S

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S: Final = 60.0
"""How often the driver is asked for vNPUs if there is no other reason."""
RETRY_LIMIT_S: Final = 30.0
"""The longest wait before another attempt to resolve something."""
IN_USE: Final = "NPUSegmentInUse"


class CoreKeeper:
    """Gives back what nobody uses.

    Args:
        ledger: of AI cores.
        vnpus: what the driver has.
        settle: lets the kubelet's ledger decide which pod has what.
        others: returns the vNPUs of pods that request static vNPUs, as pairs of chip and id.
        notices: tells pods what does not match.
        announce_node: receives what is wrong with the node: a reason, a sentence, and whether it is a warning.
    """

    def __init__(
        self,
        ledger: CoreLedger,
        vnpus: CutVnpus,
        *,
        settle: Callable[[], Awaitable[bool]],
        others: Callable[[], set[tuple[int, int]]],
        notices: PodNotices,
        announce_node: Callable[[str, str, bool], None],
    ) -> None:
        self._ledger = ledger
        self._vnpus = vnpus
        self.settle = settle
        self._others = others
        self._notices = notices
        self._announce_node = announce_node
        self._cutting: Counter[int] = Counter()
        self._told: set[tuple[int, int]] = set()
        self._retries = ItemBackoff[tuple[int, int]](loop_time_s, RETRY_S, RETRY_LIMIT_S)

    # For calls of the kubelet.

    @contextmanager
    def cutting(self, chips: Iterable[int]) -> Iterator[None]:
        """Give back nothing of these chips meanwhile but what ``clear`` does."""
        own = list(chips)
        self._cutting.update(own)
        try:
            yield
        finally:
            self._cutting.subtract(own)

    async def clear(self, chip: int, within_s: float) -> Division:
        """Give back what nobody uses of a chip; return how it is cut then.

        Raises:
            DriverError: the driver does not answer in time.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        division = await self._vnpus.look(chip, until_s - loop.time())
        if any(self._is_unused(vnpu) for vnpu in division.vnpus):
            await self.settle()
            for vnpu in [unused for unused in division.vnpus if self._is_unused(unused)]:
                await self._give_back(vnpu, until_s - loop.time())
            division = await self._vnpus.look(chip, until_s - loop.time())
        return division

    # The loop.

    async def run(self) -> None:
        """Give back what nobody uses until cancelled."""
        loop = asyncio.get_running_loop()
        sources = (self._ledger.changes, self._vnpus.leftovers, self._ledger.is_settled)
        backoff = Backoff(first_s=RETRY_S, limit_s=RETRY_LIMIT_S)
        look_at_s = loop.time()
        while True:
            versions = [source.version for source in sources]
            self._tell_of_lost_vnpus()
            if loop.time() >= look_at_s:
                await self._vnpus.look_at_all()
                look_at_s = loop.time() + LOOK_S
            wait_s = look_at_s - loop.time()
            if await self.sweep():
                wait_s = min(backoff.next_s(), self._due_in_s())
            else:
                backoff.reset()
            await wait_for_change(sources, versions, max(wait_s, 0.0))

    def _tell_of_lost_vnpus(self) -> None:
        """Tell the pods whose vNPUs the driver did not list when it was last asked about their chips."""
        for allocation in self._ledger.allocations:
            pod, vnpu = self._ledger.pods.get(allocation.uid), allocation.vnpu
            if pod is None or vnpu is None or not self._vnpus.is_known(vnpu.phy_id) or vnpu in self._vnpus:
                continue
            why = f"the driver no longer has its vNPU {vnpu.vdev_id}"
            if (other := self._vnpus.replacing(vnpu)) is not None:
                why += f", but one of {other.template or 'an unknown size'} with its id"
            self._notices.tell(pod, WITHOUT, f"it runs without its vNPU: {why}; delete the pod")

    # What nobody uses.

    async def sweep(self) -> bool:
        """Give back what nobody uses; return whether something is left that should be given back."""
        usable = self._vnpus.usable
        await self._vnpus.look_again()
        listed = list(self._vnpus)
        for vnpu in listed:
            if self._ledger.owns(vnpu):
                self._vnpus.has_owner(vnpu)
        if any(self._is_unused(vnpu) and not self._retries.is_waiting((vnpu.phy_id, vnpu.vdev_id)) for vnpu in listed):
            await self.settle()  # what is given back is judged by what the kubelet's ledger says now
        left: dict[tuple[int, int], VirtualNpu] = {}
        for vnpu in self._vnpus:
            chip = vnpu.phy_id
            if self._belongs(vnpu) or self._cutting[chip] > 0:
                continue
            # Judged right before it is given back: a call of the kubelet may have come meanwhile.
            gone = chip in usable and self._is_unused(vnpu) and await self._try_removal(vnpu)
            if not gone and not self._belongs(vnpu) and vnpu in self._vnpus:
                left[chip, vnpu.vdev_id] = vnpu
        self._told &= left.keys()
        for key in self._retries:
            if key not in left:
                self._retries.forget(key)
        self._ledger.swept(left, {vnpu.phy_id for vnpu in self._vnpus if not self._belongs(vnpu)})
        return bool(left) or self._vnpus.has_not_given

    async def _try_removal(self, vnpu: VirtualNpu) -> bool:
        key = (vnpu.phy_id, vnpu.vdev_id)
        if self._retries.is_waiting(key):
            return False
        error = "a container has it"
        try:
            if await self._give_back(vnpu, CALL_S):
                return True
        except DriverError as refused:
            error = refused.message
        wait_s = self._retries.fail(key)
        name = chip_name(vnpu.phy_id)
        log.warning("a vNPU is left", chip=name, vdev_id=vnpu.vdev_id, error=error, retry_s=round(wait_s, 2))
        return False

    async def _give_back(self, vnpu: VirtualNpu, within_s: float) -> bool:
        """Give back a vNPU that nobody uses; return False if a container has it all the same."""
        if await self._vnpus.destroy(vnpu, within_s):
            return True
        key = (vnpu.phy_id, vnpu.vdev_id)
        if key not in self._told:
            self._told.add(key)
            self._announce_node(
                IN_USE,
                f"the vNPU {vnpu.vdev_id} of {chip_name(vnpu.phy_id)} belongs to no pod, but the driver says that a "
                "container has it: it is left, and its AI cores can't be used",
                True,  # noqa: FBT003 - a callback's plain word
            )
        return False

    def _is_unused(self, vnpu: VirtualNpu) -> bool:
        if self._belongs(vnpu):
            return False
        if self._vnpus.is_not_given(vnpu):
            return True
        settled = self._ledger.is_settled.value and not self._ledger.may_be_mistaken(vnpu)
        return settled and not self._vnpus.is_new(vnpu)

    def _belongs(self, vnpu: VirtualNpu) -> bool:
        """Return whether a vNPU is that of a pod, or a live pod claims it, whatever else is known of the pod."""
        key = (vnpu.phy_id, vnpu.vdev_id)
        return self._ledger.owns(vnpu) or key in self._others() or key in self._claimed_by_pods()

    def _claimed_by_pods(self) -> set[tuple[int, int]]:
        """Return the vNPUs that live pods claim, as pairs of chip and id."""
        return {(vnpu.chip, vnpu.vdev_id) for vnpu in self._ledger.claimed_vnpus}

    def _due_in_s(self) -> float:
        """Return how long it takes until another vNPU is no longer new, or may be tried again."""
        now_s, again_s = loop_time_s(), map(self._retries.due_s, self._retries)
        return min((at_s - now_s for at_s in (*self._vnpus.old_at_s(), *again_s) if at_s > now_s), default=math.inf)
