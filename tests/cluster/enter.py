"""Run a program in the namespaces of a process, as `nsenter` does, and report its PID in our PID namespace.

usage: enter.py PID FD PROGRAM [ARGUMENT ...]

The program's PID (in our PID namespace) is written to file descriptor FD. This process remains the program's parent
and exits with the program's exit status. `nsenter` is no alternative: it stops itself when its child is stopped, and a
stopped parent does not reap a killed child, so the PID namespace would never end.

It uses the standard library only and is run as a file with `python -I`, so that it starts fast.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000


def _enter(target_pid: int) -> None:
    """Join the mount namespace of a process, and create our children in its PID namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Open both before joining one, because /proc then shows other PIDs.
    kinds = (("pid", _CLONE_NEWPID), ("mnt", _CLONE_NEWNS))
    files = [(os.open(f"/proc/{target_pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind) for name, kind in kinds]
    for file, kind in files:
        if libc.setns(file, kind):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespaces of process {target_pid}")


def main() -> None:
    target_pid, report, program = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Signals are sent to the program itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _enter(target_pid)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(report)
        os.setsid()
        try:
            os.execvp(program[0], program)
        except OSError as error:
            sys.stderr.write(f"cannot run {program[0]}: {error}\n")
            os._exit(127)
    os.write(report, str(pid).encode())
    os.close(report)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and -code != signal.SIGINT:
        os.kill(os.getpid(), -code)
    sys.exit(abs(code))


if __name__ == "__main__":
    main()
