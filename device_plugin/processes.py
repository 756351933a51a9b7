"""Looks for processes on chips that nobody was given, and tells the Node and the metrics.

The chip stays free: whoever starts such processes could take chips out of service otherwise. Whose a process is, its
control group and its namespace of process ids say.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

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

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PROC: Final = Path("/proc")


_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""systemd's names of control groups have underscores; the uid of a static pod is a hash."""


_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is.

    Attributes:
        kind: of a pod, of a container that is no pod's, of the node itself, or unknown: it has ended, or the node's
            processes can't be seen.
        uid: of the pod.
    """

    kind: Literal["pod", "container", "node", "unknown"]
    uid: str = ""


UNKNOWN: Final = Owner("unknown")


def owner_of(process: int, proc: Path = PROC) -> Owner:
    """Return whose a process is.

    Args:
        process: its id on the node.
        proc: where procfs is mounted.
    """
    try:
        text = (proc / str(process) / "cgroup").read_text(errors="replace")
    except OSError:
        return UNKNOWN
    if (pod := _POD.search(text)) is not None:
        return Owner("pod", pod[1].replace("_", "-"))
    return Owner("container" if _CONTAINER.search(text) or _has_ids_of_its_own(proc / str(process)) else "node")


def _has_ids_of_its_own(process: Path) -> bool:
    """Return whether a process has another id for itself than on the node: people name the containers of ``ctr``."""
    try:
        text = (process / "status").read_text(errors="replace")
    except OSError:
        return False
    return any(len(line.split()) > 2 for line in text.splitlines() if line.startswith("NSpid:"))  # noqa: PLR2004 - the name and one id


def sees_node(proc: Path = PROC) -> bool:
    """Return whether process ids here are those of the node: its second process is the kernel's."""
    try:
        return (proc / "2" / "comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


GRACE_S: Final = 60.0
"""How long a process must have been nobody's: it may end a little after its pod, or be a tool that people run."""


LOOKS: Final = 3
"""How often it must have been seen in that time."""


@dataclass(slots=True)
class _Sighting:
    since_s: float
    looks: int = 1


def is_nobodys(owner: Owner, holders: Collection[str]) -> bool:
    """Return whether a process on a chip has no right to it.

    On a chip that pods hold, one whose owner is unknown may be theirs, and one of the node itself may be a tool.

    Args:
        owner: whose the process is.
        holders: the uids of the pods that hold the chip, or parts of it.
    """
    if not holders:
        return True
    return owner.kind == "container" or (owner.kind == "pod" and owner.uid not in holders)


class Accounting:
    """The processes that are nobody's, chip by chip."""

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, _Sighting]] = {}

    def look(
        self, chip: int, processes: Iterable[int], owners: Mapping[int, Owner], holders: Collection[str], now_s: float
    ) -> tuple[int, ...]:
        """Take over the processes of a chip; return the processes that have been foreign for long, in order.

        Args:
            chip: its physical id.
            processes: their ids on the node.
            owners: whose they are; unknown by default.
            holders: the uids of the pods that hold the chip.
            now_s: a monotonic clock.
        """
        before = self._seen.get(chip, {})
        now: dict[int, _Sighting] = {}
        for process in processes:
            if is_nobodys(owners.get(process, UNKNOWN), holders):
                known = before.get(process)
                now[process] = _Sighting(known.since_s, known.looks + 1) if known else _Sighting(now_s)
        self._seen[chip] = now
        lasting = (
            key for key, sighting in now.items() if sighting.looks >= LOOKS and now_s - sighting.since_s >= GRACE_S
        )
        return tuple(sorted(lasting))

    def forget(self, chip: int) -> None:
        """Begin anew with a chip: it is being reset, or gone."""
        self._seen.pop(chip, None)


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
        log.warning("processes use a chip that they were not given", chip=chip_name(phy_id), processes=found, owners=of)
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
