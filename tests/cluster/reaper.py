"""Holds a cluster's namespaces, and cleans up when the owner is done or dead.

usage: reaper.py FOLDER OWNER_PID     (OWNER_PID 0: nobody; the cluster lives until SIGTERM)

Every process of a cluster, containers included, lives in one PID namespace, and every mount in mount namespaces below
it. When the namespace's first process dies, the kernel kills all the others and undoes the mounts: nothing can be
forgotten, and no list of processes has to be kept. That first process belongs to this reaper, which waits for its
owner to die (seen through a pidfd, so also after `kill -9`) or for a signal:

    SIGTERM   kill everything, remove cgroups and the folder
    SIGUSR1   the same, but keep FOLDER/log

If the reaper itself is killed, the namespace dies with it (PR_SET_PDEATHSIG); the folder is then swept by the next
cluster that starts, and by `python -m tests.cluster down`.

Standard library only, and run as a file with `python -I`, so that it starts fast.
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

_CLONE_NEWNS: Final = 0x00020000
_CLONE_NEWPID: Final = 0x20000000
_PR_SET_PDEATHSIG: Final = 1
# The shell reaps what is orphaned inside, as the first process of a PID namespace must. /run is fresh because shims and
# runc keep state there. A bind mount needs a place: the only thing that stays behind is an empty /var/lib/kubelet.
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
    """When a process started, in clock ticks since boot: with its PID this names it for good; 0 if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def remove_cgroups(folder: Path) -> None:
    """Remove the cgroups of the containers that were running; their dead members take a moment to leave.

    The container's id is the name of its cgroup, below `k8s.io`, and of its folder in containerd's state.
    """
    deadline = time.monotonic() + 5
    for container in folder.glob("*/containerd/state/io.containerd.runtime.v2.task/k8s.io/*"):
        for group in [CGROUPS / "k8s.io" / container.name, *CGROUPS.glob(f"*/k8s.io/{container.name}")]:
            while group.exists() and time.monotonic() < deadline:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.02)
    for parent in [CGROUPS / "k8s.io", *CGROUPS.glob("*/k8s.io")]:
        with contextlib.suppress(OSError):  # not there, or another containerd's are still in there
            parent.rmdir()


def remove_folder(folder: Path, *, keep_logs: bool = False) -> None:
    """Remove a cluster's folder, or all of it but `log`."""
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
        sys.stderr.write("cannot make a mount namespace\n")
        os._exit(1)
    os.dup2(ready, 3)
    os.set_inheritable(3, True)  # noqa: FBT003 - positional only; dup2 does not do it where both are the same
    os.execv("/bin/sh", ["sh", "-ec", _FIRST_PROCESS, "first-process", str(folder)])


def _hold_namespaces(folder: Path) -> int:
    """Make the namespaces; returns the PID of their first process once its mounts are done."""
    if _libc().unshare(_CLONE_NEWPID):
        raise OSError(ctypes.get_errno(), "cannot make a PID namespace")
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become_first_process(folder, write_end)
    os.close(write_end)
    with os.fdopen(read_end) as ready:
        if ready.readline() != "ready\n":
            raise OSError("the namespace's first process did not come up")
    return pid


def _receive_signals() -> int:
    """Have SIGTERM and SIGUSR1 written, as one byte each, to a pipe; returns its end to read from."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)  # as set_wakeup_fd demands
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return read_end


def _wait_for_the_end(signals: int, owner: int | None) -> bool:
    """Wait for the owner's death or a signal; returns whether logs are to be kept."""
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
    os.waitpid(first, 0)  # returns when the kernel has killed and reaped the whole namespace
    remove_cgroups(folder)
    remove_folder(folder, keep_logs=keep_logs)


if __name__ == "__main__":
    main()
