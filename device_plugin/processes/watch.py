"""Looks for processes on chips that nobody was given, and tells the Node and the metrics.

The chip stays free: whoever starts such processes could take chips out of service otherwise.
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.daemon.observable import Observable
from ascend.grammar import some
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.metrics import Metrics
from device_plugin.processes.accounting import Accounting
from device_plugin.processes.owners import UNKNOWN, Owner, owner_of, sees_node

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S: Final = 20.0
TELL_S: Final = 600.0
"""The shortest time between two Events about a chip."""
FOREIGN: Final = "NPUForeignProcess"

Owners = Callable[[tuple[int, ...]], Mapping[int, Owner]]


def read_owners(processes: tuple[int, ...]) -> Mapping[int, Owner]:
    """Return whose processes are; nothing where the node's processes can't be seen."""
    return {process: owner_of(process) for process in processes} if processes and sees_node() else {}


class ProcessWatch:
    """Asks the driver every ``LOOK_S`` which processes use each chip, in a thread for each.

    Args:
        driver: lists the processes.
        snapshots: the node's chips.
        ledgers: which pods hold them.
        announce: receives a reason, a sentence, and whether it is a warning, for the Node.
        metrics: has the number of such processes of each chip.
        off_limits: returns the chips that must not be used now, because they are being reset.
        pauses: returns whether another plugin gives chips to pods, of which the ledgers do not know.
        owners: returns whose processes are.
    """

    def __init__(
        self,
        driver: ResettingDriver,
        snapshots: Observable[Snapshot | None],
        ledgers: Ledgers,
        announce: Callable[[str, str, bool], None],
        metrics: Metrics,
        *,
        off_limits: Callable[[], ChipSet] = lambda: 0,
        pauses: Callable[[], bool] = lambda: False,
        owners: Owners = read_owners,
    ) -> None:
        self._driver = driver
        self._snapshots = snapshots
        self._ledgers = ledgers
        self._announce = announce
        self._metrics = metrics
        self._off_limits = off_limits
        self._pauses = pauses
        self._owners = owners
        self._accounting = Accounting()
        self._threads: dict[int, CallThread] = {}
        self._calls: dict[int, asyncio.Future[tuple[tuple[int, ...], Mapping[int, Owner]]]] = {}
        self._found: dict[int, tuple[int, ...]] = {}
        self._told: dict[int, tuple[float, frozenset[int]]] = {}
        self._said_unread = False

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            for thread in self._threads.values():
                thread.close()

    def _look(self) -> None:
        snapshot, off_limits, pauses = self._snapshots.value, self._off_limits(), self._pauses()
        listed = {chip.phy_id: chip for chip in (snapshot.server.chips if snapshot is not None else ())}
        for phy_id in self._found.keys() - listed.keys():
            self._take(phy_id, ())
        for phy_id, chip in listed.items():
            if pauses or not chip.is_listed or off_limits >> phy_id & 1:
                self._accounting.forget(phy_id)
                self._take(phy_id, ())
            elif phy_id not in self._calls:  # the driver may not have answered since
                thread = self._threads.setdefault(phy_id, CallThread(f"processes {phy_id}"))
                call = self._calls[phy_id] = thread.call(partial(self._read, chip))
                call.add_done_callback(partial(self._settle, phy_id))

    def _read(self, chip: ChipFacts) -> tuple[tuple[int, ...], Mapping[int, Owner]]:
        """Read the processes of a chip, and whose they are; runs in its thread."""
        processes = self._driver.users(chip)
        return processes, self._owners(processes)

    def _settle(self, phy_id: int, call: "asyncio.Future[tuple[tuple[int, ...], Mapping[int, Owner]]]") -> None:
        del self._calls[phy_id]
        if call.cancelled():
            return
        if (error := call.exception()) is not None:
            if not self._said_unread:
                self._said_unread = True
                log.info("the processes of a chip can't be read", chip=chip_name(phy_id), error=str(error))
            return  # what was found stays until the driver says more
        if self._pauses() or self._off_limits() >> phy_id & 1:
            return
        processes, owners = call.result()
        holders = self._ledgers.holders.get(phy_id, frozenset())
        now_s = asyncio.get_running_loop().time()
        found = self._accounting.look(phy_id, processes, owners, holders, now_s)
        self._take(phy_id, found)
        told_s, told = self._told.get(phy_id, (-TELL_S, frozenset()))
        if set(found) - told and now_s - told_s >= TELL_S:
            self._told[phy_id] = now_s, frozenset(found)
            self._tell(phy_id, found, owners, is_held=bool(holders))

    def _take(self, phy_id: int, found: tuple[int, ...]) -> None:
        if found or phy_id in self._found:
            self._metrics.foreign_processes.labels(chip=chip_name(phy_id)).set(len(found))
            self._found[phy_id] = found

    def _tell(self, phy_id: int, found: tuple[int, ...], owners: Mapping[int, Owner], *, is_held: bool) -> None:
        of = sorted({who for pid in found if (who := self._owner_name(owners.get(pid, UNKNOWN)))})
        whose = f" ({some(of)})" if of else ""
        sentence = (
            f"{chip_name(phy_id)}: process{'es' if len(found) > 1 else ''} {some([str(pid) for pid in found])}"
            f"{whose} use{'' if len(found) > 1 else 's'} it, but "
            f"{'it was given to another pod' if is_held else 'no pod was given it'}: a container may have named the "
            "chip in its environment, or mounted its device"
        )
        log.warning("processes use a chip that they were not given", chip=chip_name(phy_id), processes=found, of=of)
        self._announce(FOREIGN, sentence, True)  # noqa: FBT003 - a callback's plain word

    def _owner_name(self, owner: Owner) -> str:
        match owner.kind:
            case "pod":
                pod = self._ledgers.whole.pods.get(owner.uid)
                return f"pod {pod.key}" if pod is not None else f"a pod with the uid {owner.uid}"
            case "container":
                return "a container that is no pod's"
            case "node":
                return "the node itself"
            case _:
                return ""
