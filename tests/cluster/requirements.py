"""The requirements of the real cluster, and of building C: which of them this machine does not meet."""

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.cluster import binaries

BUSYBOX: Final = Path("/bin/busybox")
CNI_PLUGINS: Final = Path("/usr/lib/cni")
STDIO: Final = Path("/usr/include/stdio.h")

# Command -> its Debian package.
_COMMANDS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "mount": "mount",
    "promtool": "prometheus",
    "chromium": "chromium",
}
_CONTROLLERS: Final = ("cpu", "cpuset", "memory", "pids")
_PREPARE: Final = "run `python -m tests.cluster prepare`"


def missing() -> list[str]:
    """Return a sentence for every requirement that is not met; empty if the real cluster can run here."""
    found = [*missing_packages().values(), *missing_system()]
    if absent := binaries.absent():
        how = "there is no Go compiler on PATH to build them" if shutil.which("go") is None else _PREPARE
        found.append(f"Not built yet: {', '.join(absent)}; {how}.")
    return found


def in_ci() -> bool:
    """Whether this is CI, where an unmet requirement is an error."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def missing_packages() -> dict[str, str]:
    """Return the missing Debian packages, which `prepare` can install, with a sentence for each.

    Commands of other packages count as installed: Debian's containerd would replace Docker's and remove Docker.
    """
    advice = f"as root {_PREPARE}, which installs Debian packages"
    found = {
        package: f"The command {command} is not installed; {advice}."
        for command, package in _COMMANDS.items()
        if _which(command) is None
    }
    if not (CNI_PLUGINS / "loopback").exists():
        found["containernetworking-plugins"] = f"CNI plugins are not in {CNI_PLUGINS}; {advice}."
    if not (BUSYBOX.exists() and _is_static(BUSYBOX)):
        found["busybox-static"] = f"{BUSYBOX} is not a statically linked busybox; {advice}."
    return found


def missing_compiler() -> dict[str, str]:
    """Return the same for a C compiler, which only the tests of the real driver need."""
    advice = f"as root {_PREPARE}, which installs Debian packages"
    found = {}
    if _which("cc") is None:
        found["gcc"] = f"There is no C compiler (cc) to build the fake driver library; {advice}."
    if not STDIO.exists():
        found["libc6-dev"] = f"There are no C headers ({STDIO}) to build the fake driver library; {advice}."
    return found


def missing_system() -> list[str]:
    """Return sentences for requirements that cannot be installed: rights, and features of the kernel."""
    if sys.platform != "linux":
        return [f"The real cluster needs Linux; this is {sys.platform}."]
    if os.geteuid() != 0:
        return ["The real cluster needs root for containers, mounts and device nodes."]
    found = []
    if not Path("/dev/kmsg").exists():
        found.append("The kubelet needs /dev/kmsg, which does not exist.")
    if absent := [controller for controller in _CONTROLLERS if controller not in _mounted_controllers()]:
        found.append(f"cgroup controllers not mounted below /sys/fs/cgroup: {', '.join(absent)}.")
    if complaint := _namespaces_refused():
        found.append(f"This machine does not allow creating mount and PID namespaces: {complaint}.")
    return found


def _mounted_controllers() -> set[str]:
    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    if unified.exists():
        return set(unified.read_text().split())
    return {
        name
        for line in Path("/proc/mounts").read_text().splitlines()
        if (fields := line.split())[2] == "cgroup"
        for name in fields[3].split(",")
    }


@functools.cache
def _namespaces_refused() -> str:
    """Return why namespaces cannot be created; empty if they can. It tries, since rights, seccomp and LSMs matter."""
    if _which("unshare") is None:
        return ""  # reported as a missing command
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""


def _which(command: str) -> str | None:
    """Return the path of a command, also from the sbin folders that a user's PATH can lack."""
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def _is_static(program: Path) -> bool:
    """Whether an ELF file needs no interpreter; a dynamic busybox cannot run in an image that contains nothing else."""
    return b"ld-linux" not in program.read_bytes()[:4096] and b"ld-musl" not in program.read_bytes()[:4096]
