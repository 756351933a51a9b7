"""The driver, its chips, their device nodes, and the way into containers."""

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ascend.chips import chip_name
from ascend.errors import DriverError
from device_plugin.doctor.finding import Check, Finding
from device_plugin.driver.dcmi.file_permissions import resolve_protected
from device_plugin.driver.dcmi.library import find
from device_plugin.inventory.entries import Scan
from device_plugin.inventory.inspector import CHIP_S, DISCOVER_S, Inspector
from device_plugin.pods.container_edits import CDI_FILE, MANAGER_NODE, RUNTIME_MARK, detect
from device_plugin.settings import Settings

LIBRARY, CHIPS, NODES, INJECTION = "driver library", "chips", "device nodes", "containers"

RUNTIME = Path("/usr/local/Ascend/Ascend-Docker-Runtime/ascend-docker-runtime")
"""Where its installer puts it."""

Found = Callable[[Scan], None]


def checks(settings: Settings, environment: Mapping[str, str]) -> Iterator[Check]:
    """The checks, in the order in which one explains the next."""
    scans: list[Scan] = []

    async def library() -> Sequence[Finding]:
        return look_for_library(settings, environment)

    async def chips() -> Sequence[Finding]:
        return await look_at_chips(settings, scans.append)

    async def nodes() -> Sequence[Finding]:
        ids = [chip.phy_id for scan in scans for chip in scan.server.chips]
        return look_at_nodes(settings, ids, environment)

    async def injection() -> Sequence[Finding]:
        return look_at_injection(settings, environment)

    yield Check(LIBRARY, library, deadline_s=15.0)
    yield Check(CHIPS, chips, deadline_s=DISCOVER_S + CHIP_S + 5.0)
    yield Check(NODES, nodes)
    yield Check(INJECTION, injection)


def look_for_library(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Whether there is a library that may be used; whether it works is the next check's."""
    if settings.driver == "simulated":
        told = f"the chips are simulated, by {settings.simulated_state}"
        return [Finding(LIBRARY, "warning", told, "set `driver: dcmi` on a server with real chips")]
    try:
        path = resolve_protected(settings.dcmi_library) if settings.dcmi_library is not None else find(environment)
    except DriverError as error:
        advice = {
            "LibraryNotFound": "install the NPU driver; in a container, mount /usr/local/Ascend/driver",
            "UntrustedFile": "let root own the file and the folders above it, and nobody else write to them",
        }.get(error.reason, "")
        return [Finding(LIBRARY, "problem", error.message, advice)]
    return [Finding(LIBRARY, "ok", f"found at {path}")]


async def look_at_chips(settings: Settings, found: Found) -> Sequence[Finding]:
    """Whether the driver works, and how the chips are."""
    try:
        scan = await Inspector(settings.make_driver()).scan()
    except DriverError as error:
        advice = "`npu-smi info` asks the same driver; `dmesg` may say more"
        return [Finding(CHIPS, "problem", error.message, "" if settings.driver == "simulated" else advice)]
    found(scan)
    server = scan.server
    version = f", driver {server.driver_version}" if server.driver_version else ""
    if not server.chips:
        return [Finding(CHIPS, "problem", f"the driver shows no chips{version}", "`npu-smi info -m` lists them")]
    findings = [Finding(CHIPS, "ok", f"{len(server.chips)} chips of {server.chip_type}{version}")]
    for phy_id, problem in sorted(scan.problems.items()):
        findings.append(
            Finding(CHIPS, "problem", f"{chip_name(phy_id)}: {problem}", "reset the chip, or restart the server")
        )
    for chip in scan.snapshot.chips:
        if chip.chip_id not in scan.problems and not (chip.healthy and chip.network_healthy):
            told = chip.sentence or "its network is not fit for distributed jobs"
            advice = "the fault codes are explained in Huawei's list; pods get other chips meanwhile"
            findings.append(Finding(CHIPS, "warning", f"{chip_name(chip.chip_id)}: {told}", advice))
    return findings


def look_at_nodes(settings: Settings, chips: Sequence[int], environment: Mapping[str, str]) -> Sequence[Finding]:
    """Whether the device nodes are there that containers are given, and that the driver opens itself."""
    root = settings.device_root
    way = detect(settings.injection, environment)
    if settings.driver == "simulated" and way == "runtime":
        return [Finding(NODES, "ok", "none are needed: the chips are simulated, and containers get none")]
    wanted = [MANAGER_NODE, *(f"davinci{chip}" for chip in chips)]
    missing = [name for name in wanted if not (root / name).exists()]
    if missing:
        told = f"missing below {root}: {', '.join(missing)}"
        advice = "load the driver (`npu-smi info` does); a container needs to be privileged to see them"
        return [Finding(NODES, "problem", told, advice)]
    closed = [name for name in wanted if not os.access(root / name, os.R_OK | os.W_OK)]
    if closed:
        told = f"may not be opened below {root}: {', '.join(closed)}"
        return [Finding(NODES, "problem", told, "run as root; in a container, privileged")]
    plain = [name for name in wanted if not stat.S_ISCHR((root / name).stat().st_mode)]
    if plain:
        told = f"no device nodes, but other files: {', '.join(plain)}"
        return [Finding(NODES, "warning", told, "expected where chips are simulated, and nowhere else")]
    return [Finding(NODES, "ok", f"{len(wanted)} below {root}")]


def look_at_injection(settings: Settings, environment: Mapping[str, str]) -> Sequence[Finding]:
    """Whether the way in which containers get their chips can work here."""
    way = detect(settings.injection, environment)
    said = f"containers get their chips by {way}" + (" (found out)" if settings.injection == "auto" else "")
    wraps = environment.get(RUNTIME_MARK) == "True"
    if way in {"runtime", "both"} and not wraps and not RUNTIME.exists():
        told = f"{said}, but ascend-docker-runtime is not seen here"
        advice = (
            f"install it, or set `injection: devices`; from a container it is seen by {RUNTIME_MARK}=True"
            if way == "runtime"
            else "harmless: containers get device nodes too"
        )
        return [Finding(INJECTION, "warning" if way == "runtime" else "ok", told, advice)]
    if way in {"devices", "cdi"} and wraps:
        told = f"{said}, and ascend-docker-runtime runs this container: it may add its own"
        return [Finding(INJECTION, "warning", told, "set `injection: runtime` or `auto`")]
    if way == "cdi":
        return [_cdi(settings.cdi_dir, said)]
    return [Finding(INJECTION, "ok", said)]


def _cdi(folder: Path, said: str) -> Finding:
    file = folder / CDI_FILE
    if file.exists():
        return Finding(INJECTION, "ok", f"{said}, described in {file}")
    if os.access(folder if folder.exists() else folder.parent, os.W_OK):
        return Finding(
            INJECTION, "warning", f"{said}, but {file} is not written yet", "the plugin writes it when it runs"
        )
    advice = "mount the folder writable, or set `injection: devices`"
    return Finding(INJECTION, "problem", f"{said}, but {folder} can't be written to", advice)
