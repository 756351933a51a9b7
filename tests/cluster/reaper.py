"""Owns the namespaces of a cluster, and cleans up when the cluster's owner ends it or dies.

usage: reaper.py FOLDER OWNER_PID     (OWNER_PID 0: no owner; the cluster runs until SIGTERM)

All processes of a cluster, including containers, are in one PID namespace, and all its mounts in mount namespaces of
these processes. When the first process of the PID namespace dies, the kernel kills all other processes and removes the
mounts, so nothing can be left over and no list of processes is needed. The first process is a child of this reaper,
which waits for the death of its owner (by a pidfd, so `kill -9` counts too) or for a signal:

    SIGTERM   kill all processes, remove cgroups and the folder
    SIGUSR1   the same, but keep FOLDER/log

If the reaper itself is killed, the namespace ends with it (PR_SET_PDEATHSIG). The next cluster that starts, or
`python -m tests.cluster down`, then removes the folder.

It uses the standard library only and is run as a file with `python -I`, so that it starts fast.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final, NoReturn

CGROUPS: Final = Path("/sys/fs/cgroup")
RECORD: Final = "owner.json"
PREFIX: Final = "aa-"
"""Of the names of the clusters' folders, which have the same parent."""

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_PR_SET_PDEATHSIG: Final = 1
# The shell reaps orphans, as the first process of a PID namespace must. /run is a new file system, because shims and
# runc keep state there. The mount point /var/lib/kubelet, an empty directory, is all that remains on the host.
_FIRST_PROCESS: Final = """
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /var/lib/kubelet
mount --bind "$1/hosts" /etc/hosts
echo ready >&3
exec 3>&-
sleep infinity & wait
"""


def start_time(pid: int) -> int:
    """Return the start time of a process in ticks since boot, which identifies it with its PID; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def remove_cgroups(folder: Path) -> None:
    """Remove the cgroups of the containers, as soon as the kernel has removed their dead processes.

    A container's id is the name of its cgroup, below `k8s.io`, and of its folder in containerd's state.
    """
    deadline = time.monotonic() + 5
    for container in folder.glob("*/containerd/state/io.containerd.runtime.v2.task/k8s.io/*"):
        for group in [CGROUPS / "k8s.io" / container.name, *CGROUPS.glob(f"*/k8s.io/{container.name}")]:
            while group.exists() and time.monotonic() < deadline:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.02)
    if any(other != folder / RECORD for other in folder.parent.glob(f"{PREFIX}*/{RECORD}")):
        return  # another cluster could be about to create a cgroup in the parent
    for parent in [CGROUPS / "k8s.io", *CGROUPS.glob("*/k8s.io")]:
        with contextlib.suppress(OSError):  # it does not exist, or has cgroups of another containerd
            parent.rmdir()


def remove_folder(folder: Path, *, keep_logs: bool = False) -> None:
    """Remove the folder of a cluster, or everything in it except `log`."""
    if not keep_logs:
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in folder.iterdir():
        if path.name == "log":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _become_first_process(folder: Path, ready: int) -> NoReturn:
    libc = _libc()
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if libc.unshare(_CLONE_NEWNS):
        sys.stderr.write("cannot create a mount namespace\n")
        os._exit(1)
    os.dup2(ready, 3)
    os.set_inheritable(3, True)  # noqa: FBT003 - positional only; dup2 does not do it if both are the same
    os.execv("/bin/sh", ["sh", "-ec", _FIRST_PROCESS, "first-process", str(folder)])


def _hold_namespaces(folder: Path) -> int:
    """Create the namespaces; return the PID of their first process when its mounts are done."""
    if _libc().unshare(_CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "cannot create a PID namespace")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_first_process(folder, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as ready:
        if ready.readline() != "ready\n":
            raise OSError("the first process of the namespace did not start")
    return pid


def _receive_signals() -> int:
    """Have SIGTERM and SIGUSR1 written to a pipe, one byte each; return the read end."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # set_wakeup_fd requires it
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


def _wait_for_the_end(signals: int, owner: int | None) -> bool:
    """Wait for the death of the owner or for a signal; return whether to keep the logs."""
    readable, _, _ = select.select([signals] if owner is None else [signals, owner], [], [])
    return signals in readable and os.read(signals, 1)[0] == signal.SIGUSR1


def main() -> None:
    folder, owner_pid = Path(sys.argv[1]), int(sys.argv[2])
    signals = _receive_signals()
    owner = os.pidfd_open(owner_pid) if owner_pid else None
    first = _hold_namespaces(folder)
    record = {"reaper": os.getpid(), "started": start_time(os.getpid()), "namespace": first, "detached": not owner_pid}
    unfinished = folder / f"{RECORD}.unfinished"
    unfinished.write_text(json.dumps(record))
    unfinished.rename(folder / RECORD)
    keep_logs = False if owner_pid and os.getppid() != owner_pid else _wait_for_the_end(signals, owner)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)  # returns when the kernel has ended the whole namespace
    remove_cgroups(folder)
    remove_folder(folder, keep_logs=keep_logs)


if __name__ == "__main__":
    main()
