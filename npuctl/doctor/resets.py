"""The check of chips that need a reset: the reset groups, and what prevents their reset now."""

from collections.abc import Callable, Sequence

from ascend.chips import ChipSet, chip_ids, chip_name, join_names
from ascend.grammar import count
from device_plugin.driver.reset_groups import reset_groups
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.health.snapshot import Snapshot
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.reset.rules import lasting, obstacles, wanting
from device_plugin.reset.steps import UNKNOWN_USERS
from device_plugin.reset.users import Users
from device_plugin.settings import Settings
from npuctl.doctor.finding import Finding, ok, warning

_BY_HAND = "reset it by hand (`npu-smi set -t reset`), or restart the server"


async def check_resets(
    settings: Settings, driver: ResettingDriver, scanned: Callable[[], Snapshot | None]
) -> Sequence[Finding]:
    """Check which chips need a reset, and whether they can be reset now."""
    snapshot = scanned()
    if snapshot is None:
        return []
    users = Users(driver, lambda: read_ledger(settings.pod_resources_socket))
    try:
        groups = reset_groups(snapshot.server, await users.call(lambda: driver.partner_cards(snapshot.server)))
        wanted = {group: faults for group in groups if (faults := wanting(snapshot, group))}
        findings = [await _check_group(settings, users, snapshot, group, faults) for group, faults in wanted.items()]
    finally:
        users.close()
    grouped = {chip for group in groups for chip in chip_ids(group)}
    for chip, named in wanting(snapshot, snapshot.all_chips).items():
        if chip not in grouped:
            sentence = f"{chip_name(chip)} needs a reset ({named}); which chips are reset with it is unknown"
            findings.append(warning(sentence, _BY_HAND))
    findings += [
        warning(f"{chip_name(chip)} has a fault that the device plugin does not reset", _BY_HAND)
        for chip in chip_ids(lasting(snapshot))
    ]
    return findings or [ok(f"none of {count(len(snapshot.chips), 'chip')} needs a reset")]


async def _check_group(
    settings: Settings, users: Users, snapshot: Snapshot, group: ChipSet, faults: dict[int, str]
) -> Finding:
    named = "; ".join(f"{chip_name(chip)} ({names})" for chip, names in sorted(faults.items()))
    needs = f"{named} needs a reset of {join_names(chip_ids(group))}"
    found = await users.of([chip for chip in snapshot.server.chips if group >> chip.phy_id & 1], ())
    why = [UNKNOWN_USERS] if found is None else [*found, *obstacles(snapshot, group, {})]
    if why:
        return warning(f"{needs}: {'; '.join(why)}", "it can be reset once nobody uses these chips")
    advice = {
        "off": "set `hot_reset: on`, or " + _BY_HAND,
        "dry-run": "set `hot_reset: on`: a dry run resets nothing",
        "on": "the device plugin resets them after `hot_reset_idle_s`, within its limit; see the Node's Events",
    }[settings.hot_reset]
    return warning(f"{needs}: nobody uses them", advice)
