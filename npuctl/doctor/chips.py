"""The checks of the driver, its chips, their device nodes, and of how containers get them."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from ascend.chips import ChipSet, chip_ids, chip_name, join_names
from ascend.errors import DriverError
from ascend.grammar import count
from device_plugin.driver import Driver
from device_plugin.driver.dcmi.file_permissions import resolve_protected
from device_plugin.driver.dcmi.library import find
from device_plugin.driver.resetting import ResettingDriver, reset_groups
from device_plugin.health.snapshot import Snapshot
from device_plugin.inventory import CHIP_S, DISCOVER_S, Scan, scan
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.pods.container_edits import CDI_FILE, MANAGER_NODE, RUNTIME_MARK, Injection, detect
from device_plugin.reset.steps import UNKNOWN_USERS, lasting, obstacles, wanting
from device_plugin.reset.users import Users
from device_plugin.settings import Settings
from npuctl.doctor.finding import Check, Finding, ok, problem, warning

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


RESETS_S: Final = 60.0

RUNTIME: Final = Path("/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime")
"""Where the installer of ascend-docker-runtime puts it."""


def checks(settings: Settings, environment: Mapping[str, str]) -> list[Check]:
    """Return the checks; each one can explain the findings of the next."""
    scans: list[Scan] = []
    driver = settings.make_driver()
    libraries: list[bool] = []

    def library() -> Sequence[Finding]:
        found = check_library(settings, environment)
        libraries.append(not any(finding.severity == "problem" for finding in found))
        return found

    async def chips() -> Sequence[Finding]:
        if not all(libraries):
            return [warning("skipped: without its library the driver can't be asked")]
        return await check_chips(settings, driver, scans.append)

    def device_nodes() -> Sequence[Finding]:
        if not all(libraries):
            return [warning("skipped: the driver's library comes first")]
        return check_device_nodes(
            settings, [chip.phy_id for scanned in scans for chip in scanned.server.chips], environment
        )

    return [
        Check(
            "driver library",
            "`libdcmi.so` is missing, or other users than root can write to it; or the chips are simulated",
            library,
            deadline_s=15.0,
        ),
        Check(
            "chips",
            "the driver does not answer or lists no chips, a card was not ready, a chip can't be read or has faults",
            chips,
            deadline_s=DISCOVER_S + CHIP_S + 5.0,
        ),
        Check(
            "resets",
            "chips need a reset: which ones go together, and what prevents it now",
            lambda: check_resets(settings, driver, lambda: scans[-1].snapshot if scans else None),
            deadline_s=RESETS_S,
        ),
        Check("device nodes", "nodes of the chips in `/dev` are missing, or can't be opened", device_nodes),
        Check(
            "containers",
            "the way in which containers get their chips (`injection`) does not work on this node",
            lambda: check_injection(settings, environment),
        ),
    ]


def check_library(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Check that a usable library exists; the next check shows whether it works."""
    if settings.driver == "simulated":
        advice = "set `driver: dcmi` on a server with real chips"
        return [warning(f"the chips are simulated by {settings.simulated_state}", advice)]
    try:
        path = resolve_protected(settings.dcmi_library) if settings.dcmi_library is not None else find(environment)
    except DriverError as error:
        advice = {
            "LibraryNotFound": "install the NPU driver; in a container, mount /usr/local/Ascend/driver",
            "UntrustedFile": "make root the owner of the file and of the folders above it, writable by nobody else",
        }.get(error.reason, "")
        return [problem(error.message, advice)]
    return [ok(f"found at {path}")]


async def check_chips(settings: Settings, driver: Driver, found: Callable[[Scan], None]) -> Sequence[Finding]:
    """Check that the driver answers, and the health of each chip."""
    try:
        scanned = await scan(driver)
    except DriverError as error:
        advice = "`npu-smi info` calls the same driver; `dmesg` may say more"
        return [problem(error.message, "" if settings.driver == "simulated" else advice)]
    found(scanned)
    server = scanned.server
    version = f", driver {server.driver_version}" if server.driver_version else ""
    if not server.chips:
        return [problem(f"the driver lists no chips{version}", "`npu-smi info -m` lists them")]
    findings = [ok(f"{count(len(server.chips), 'chip')} of type {server.chip_type}{version}")]
    advice = "until it is ready the device plugin initializes the driver again; reset the card if that does not help"
    findings += [warning(sentence, advice) for sentence in server.problems]
    for phy_id, wrong in sorted(scanned.problems.items()):
        findings.append(problem(f"{chip_name(phy_id)}: {wrong}", "reset the chip, or restart the server"))
    for chip in scanned.snapshot.chips:
        if chip.chip_id not in scanned.problems and not (chip.healthy and chip.network_healthy):
            sentence = chip.sentence or "its network is unhealthy: not for distributed jobs"
            advice = "Huawei's documentation explains the fault codes; pods get other chips until it recovers"
            findings.append(warning(f"{chip_name(chip.chip_id)}: {sentence}", advice))
    return findings


def check_device_nodes(settings: Settings, chips: Sequence[int], environment: Mapping[str, str]) -> Sequence[Finding]:
    """Check the device nodes, which the driver opens and containers get."""
    root = settings.device_root
    way = _way(settings, environment)
    if settings.driver == "simulated" and way == "runtime":
        return [ok("none are needed: the chips are simulated")]
    wanted = [MANAGER_NODE, *(f"davinci{chip}" for chip in chips)]
    missing = [name for name in wanted if not (root / name).exists()]
    if missing:
        advice = "load the driver (`npu-smi info` does); only a privileged container sees them"
        return [problem(f"missing in {root}: {', '.join(missing)}", advice)]
    closed = [name for name in wanted if not os.access(root / name, os.R_OK | os.W_OK)]
    if closed:
        return [problem(f"can't be opened in {root}: {', '.join(closed)}", "run as root; in a container, privileged")]
    plain = [name for name in wanted if not stat.S_ISCHR((root / name).stat().st_mode)]
    if plain:
        sentence = f"not device nodes, but other files: {', '.join(plain)}"
        return [warning(sentence, "this is only normal if chips are simulated")]
    return [ok(f"{len(wanted)} in {root}")]


def _way(settings: Settings, environment: Mapping[str, str]) -> Injection:
    """Return how containers get their chips: the plugin has written the CDI file if it has detected CDI."""
    return detect(settings.injection, environment, cdi=(settings.cdi_dir / CDI_FILE).exists())


def check_injection(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Check that the way containers get their chips works here."""
    way = _way(settings, environment)
    said = f"containers get their chips by {way}" + (" (detected)" if settings.injection == "auto" else "")
    wraps = environment.get(RUNTIME_MARK) == "True"
    if way in {"runtime", "both"} and not wraps and not RUNTIME.exists():
        sentence = f"{said}, but ascend-docker-runtime is not visible here"
        advice = (
            f"install it, or set `injection: devices`; a container that it runs has {RUNTIME_MARK}=True"
            if way == "runtime"
            else "harmless: containers get device nodes too"
        )
        return [warning(sentence, advice) if way == "runtime" else Finding("", "ok", sentence, advice)]
    if way in {"devices", "cdi"} and wraps:
        sentence = f"{said}, but ascend-docker-runtime runs this container: it may add devices of its own"
        return [warning(sentence, "set `injection: runtime` or `auto`")]
    if way == "cdi":
        return [_cdi(settings.cdi_dir, said)]
    return [ok(said)]


def _cdi(folder: Path, said: str) -> Finding:
    file = folder / CDI_FILE
    if file.exists():
        return ok(f"{said}, defined in {file}")
    if os.access(folder if folder.exists() else folder.parent, os.W_OK):
        return warning(f"{said}, but {file} does not exist yet", "the plugin writes it when it runs")
    advice = "mount the folder writable, or set `injection: devices`"
    return problem(f"{said}, but {folder} can't be written to", advice)
