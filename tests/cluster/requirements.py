"""What keeps this machine from running the real cluster, or from building C, in sentences for people."""

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

# Command -> the Debian package that has it.
_COMMANDS: Final = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "openssl": "openssl",
    "unshare": "util-linux",
    "mount": "mount",
}
_CONTROLLERS: Final = ("cpu", "cpuset", "memory", "pids")
_PREPARE: Final = "run `python -m tests.cluster prepare`"


def missing() -> list[str]:
    """Sentences, one per obstacle; none means that the real cluster can run here."""
    found = [*missing_packages().values(), *missing_system()]
    if absent := binaries.absent():
        how = "and there is no Go compiler on PATH to build them" if shutil.which("go") is None else _PREPARE
        found.append(f"Not built yet: {', '.join(absent)}; {how}.")
    return found


def in_ci() -> bool:
    """Whether a machine that cannot run the real cluster is an error."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


def missing_packages() -> dict[str, str]:
    """Debian packages that `prepare` can install, each with a sentence saying what is not there.

    Only what is absent: installing Debian's containerd where Docker's own is would remove Docker.
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
    """The same for a C compiler: the real cluster runs without, the tests of the real driver don't."""
    advice = f"as root {_PREPARE}, which installs Debian packages"
    found = {}
    if _which("cc") is None:
        found["gcc"] = f"There is no C compiler (cc), which the fake driver library is built with; {advice}."
    if not STDIO.exists():
        found["libc6-dev"] = f"There are no C headers ({STDIO}), which the fake driver library is built with; {advice}."
    return found


def missing_system() -> list[str]:
    """Sentences for what nobody can install: rights, and what the kernel offers."""
    if sys.platform != "linux":
        return [f"The real cluster needs Linux; this is {sys.platform}."]
    if os.geteuid() != 0:
        return ["The real cluster needs root: containers, mounts and device nodes are real."]
    found = []
    if not Path("/dev/kmsg").exists():
        found.append("The kubelet needs /dev/kmsg, which is not there.")
    if absent := [controller for controller in _CONTROLLERS if controller not in _mounted_controllers()]:
        found.append(f"cgroup controllers not mounted below /sys/fs/cgroup: {', '.join(absent)}.")
    if complaint := _namespaces_refused():
        found.append(f"This machine does not allow new mount and PID namespaces: {complaint}.")
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
    """Why namespaces cannot be made; empty if they can. Tried for real: rights, seccomp and LSMs all have a say."""
    if _which("unshare") is None:
        return ""  # said with the missing commands
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""


def _which(command: str) -> str | None:
    """Like `which`, also for a user's PATH without the sbin folders."""
    return shutil.which(command, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")


def _is_static(program: Path) -> bool:
    """Whether an ELF file asks for no interpreter (a dynamic busybox cannot run in an image that holds only itself)."""
    return b"ld-linux" not in program.read_bytes()[:4096] and b"ld-musl" not in program.read_bytes()[:4096]
