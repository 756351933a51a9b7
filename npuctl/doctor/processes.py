"""The check of processes on chips that nobody was given, as far as one look at the node can tell."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from ascend.chips import chip_name
from ascend.errors import AscendError
from ascend.grammar import count, some
from ascend.kube.objects import Pod
from device_plugin.driver import ChipFacts
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.inventory import scan
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.ledger.allocations import Allocations
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.processes import UNKNOWN, is_nobodys, read_owners
from device_plugin.reset.users import Users
from device_plugin.settings import Settings
from npuctl.doctor.finding import Finding, ok, warning

AGAIN_S: Final = 5.0
"""The time between two looks at a chip: a process that is gone then was a tool, or about to end."""

_ADVICE: Final = (
    "`ps -o user,cmd -p PID` and `cat /proc/PID/cgroup` on the node say whose it is; end it, and deny its namespace "
    "the variables that name chips"
)


async def check_processes(settings: Settings, pods: Callable[[], Sequence[Pod] | None]) -> Sequence[Finding]:
    """Check that processes use only chips that their pods hold.

    Args:
        settings: of the device plugin.
        pods: returns the kubelet's live pods; None if they are unknown.
    """
    listed = pods()
    if listed is None:
        return [warning("skipped: the kubelet's pods are unknown, and with them who holds which chip")]
    allocations = Allocations()
    ledgers = Ledgers(NodePods(allocations.drop), allocations)
    for pod in listed:
        ledgers.on_apply(pod)
    driver = settings.make_driver()
    users = Users(driver, lambda: read_ledger(settings.pod_resources_socket))
    try:
        chips = [chip for chip in (await scan(driver)).server.chips if chip.is_listed]
        found = await _foreign(users, driver, chips, ledgers.holders)
        if found:
            await asyncio.sleep(AGAIN_S)
            again = await _foreign(users, driver, chips, ledgers.holders)
            found = {chip: lasting for chip, pids in found.items() if (lasting := pids & again.get(chip, frozenset()))}
    except AscendError as error:
        return [warning(f"the driver does not say which processes use its chips: {error}")]
    finally:
        users.close()
    findings = [
        warning(f"{chip_name(chip)}: {_which(processes)} it, and no pod that holds it is theirs", _ADVICE)
        for chip, processes in sorted(found.items())
    ]
    return findings or [ok(f"none uses a chip of another pod, or of nobody, among {count(len(chips), 'chip')}")]


async def _foreign(
    users: Users, driver: ResettingDriver, chips: Sequence[ChipFacts], holders: Mapping[int, frozenset[str]]
) -> dict[int, frozenset[int]]:
    found = {}
    for chip in chips:
        processes = await users.call(partial(driver.users, chip))
        owners, own = read_owners(processes), holders.get(chip.phy_id, frozenset())
        if foreign := frozenset(process for process in processes if is_nobodys(owners.get(process, UNKNOWN), own)):
            found[chip.phy_id] = foreign
    return found


def _which(processes: frozenset[int]) -> str:
    several = len(processes) > 1
    names = some([str(process) for process in sorted(processes)])
    return f"process{'es' if several else ''} {names} use{'' if several else 's'}"
