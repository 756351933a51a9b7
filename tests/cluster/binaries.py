"""Builds the programs of Kubernetes and etcd from their Go modules, once per version, in the user's cache folder."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.cluster.errors import ClusterError

VERSIONS: Final = ("1.37.1", "1.36.3", "1.34.4", "1.32.9")
"""The versions of Kubernetes that can be built; the first one, unless the variable KUBERNETES_VERSION names another."""
KUBERNETES_VERSION: Final = os.environ.get("KUBERNETES_VERSION") or VERSIONS[0]
if KUBERNETES_VERSION not in VERSIONS:
    raise ClusterError(f"KUBERNETES_VERSION is {KUBERNETES_VERSION}, which is none of {', '.join(VERSIONS)}")
MODULES: Final = Path(__file__).with_name("go")
RUNS: Final = Path(__file__).with_name("runs.json")
"""How the last recorded run of the tests of the real cluster ended, by version."""

_COMPONENT: Final = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES_VERSION.split(".")
MINOR: Final = int(_MINOR)
# Without gitVersion the components report v0.0.0 and make wrong assumptions about each other.
_LDFLAGS: Final = (
    f"-s -w -X {_COMPONENT}.gitVersion=v{KUBERNETES_VERSION} "
    f"-X {_COMPONENT}.gitMajor={_MAJOR} -X {_COMPONENT}.gitMinor={_MINOR}"
)
_KUBERNETES: Final = f"kubernetes-{KUBERNETES_VERSION}"
# Program -> (folder of its module, package).
_PROGRAMS: Final = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "kube-apiserver": (_KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-scheduler": (_KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
    "kube-controller-manager": (_KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kubelet": (_KUBERNETES, "k8s.io/kubernetes/cmd/kubelet"),
    "kubectl": (_KUBERNETES, "k8s.io/kubernetes/cmd/kubectl"),
}


def folder() -> Path:
    """Return the cache folder of the programs of exactly these module versions."""
    digest = hashlib.sha256()
    for module in (_KUBERNETES, "etcd"):
        digest.update((MODULES / module / "go.sum").read_bytes())
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "ascend-affinity" / "bin" / digest.hexdigest()[:16]


def path(program: str) -> Path:
    """Return the path of a program, which may not be built yet, see `absent`."""
    return folder() / program


def absent() -> list[str]:
    """Return the names of the programs that are not built yet."""
    return [program for program in _PROGRAMS if not path(program).is_file()]


def build(say: Callable[[str], None] = print) -> None:
    """Build the absent programs; concurrent callers build them only once.

    Args:
        say: called with lines about the progress.

    Raises:
        ClusterError: `go` is missing, or a build failed; the text ends with the compiler's output.
    """
    if not absent():
        return
    if shutil.which("go") is None:
        raise ClusterError("the Go compiler is not on PATH, so the Kubernetes programs cannot be built")
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        programs = absent()  # another process may have built them before it released the lock
        if programs:
            say(
                f"building {len(programs)} programs of Kubernetes {KUBERNETES_VERSION}; without a build cache it takes"
                " about 6 minutes"
            )
        for number, program in enumerate(programs, 1):
            started = time.monotonic()
            say(f"  [{number}/{len(programs)}] {program} ...")
            _build_one(program)
            say(f"  [{number}/{len(programs)}] {program} built in {time.monotonic() - started:.0f} s")


def _build_one(program: str) -> None:
    module, package = _PROGRAMS[program]
    unfinished = path(program).with_suffix(".unfinished")
    done = subprocess.run(
        ["go", "build", "-trimpath", "-ldflags", _LDFLAGS, "-o", str(unfinished), package],
        cwd=MODULES / module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        raise ClusterError(f"building {program} failed:\n{done.stderr.strip()[-2000:]}")
    unfinished.rename(path(program))
