"""The command line of the real cluster: `python -m tests.cluster prepare | up | down | status | record`."""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from tests.cluster import binaries, controllers, namespace, requirements
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.manifests import RESOURCE, STAY
from tests.cluster.programs import missing_programs, start_programs
from tests.deploy import helm, image

_NEXT: Final = """
The cluster runs until `make cluster-down`. It has no controllers (so that a Job makes no pods) and no network for pods
(they need hostNetwork), and its nodes pull no images: change the example that is named below. To use it, type:

  export KUBECONFIG={kubeconfig} PATH={binaries}:$PATH
  kubectl get nodes
{program_commands}  make cluster-down

The logs of all programs are in {log}
"""
_NEXT_WITH_PROGRAMS: Final = """\
  kubectl apply -f {example}   # a pod that requests two chips
  kubectl logs example                       # prints its devices and environment
  {npuctl} topo
"""
_EXAMPLE: Final = """\
apiVersion: v1
kind: Pod
metadata: {{name: example}}
spec:
  hostNetwork: true
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: docker.io/local/busybox:1
    imagePullPolicy: Never
    command: [sh, -c, 'ls /dev; env; {stay}']
    resources: {{limits: {{{resource}: {chips}}}}}
"""


def main() -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser(
        "prepare", help="install and build what is missing, and report what cannot be installed"
    )
    prepare.add_argument("--long", action="store_true", help="also build what only `make test-long` needs")
    up = commands.add_parser("up", help="start a cluster with both programs, and leave it running")
    up.add_argument("--nodes", type=int, choices=range(1, 4), default=2, help="number of nodes (default: 2)")
    up.add_argument("--bare", action="store_true", help="without the programs")
    commands.add_parser("down", help="stop the cluster, and clean up after crashed runs")
    commands.add_parser("status", help="report whether a cluster runs")
    record = commands.add_parser("record", help="note how a run of the tests ended, for docs/support.md")
    record.add_argument("junit", type=Path, help="what pytest --junitxml wrote, with the version of KUBERNETES_VERSION")
    arguments = parser.parse_args()
    try:
        return _run(arguments)
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def _run(arguments: argparse.Namespace) -> int:
    match arguments.command:
        case "prepare":
            return _prepare(long=arguments.long)
        case "up":
            return _up(arguments.nodes, bare=arguments.bare)
        case "down":
            return _down()
        case "record":
            return _record(arguments.junit)
        case _:
            return _status()


def _prepare(*, long: bool) -> int:
    packages = [*requirements.missing_packages(), *requirements.missing_compiler(), *image.missing(long=long)]
    problems = _install(packages) if packages else []
    if not (problems or requirements.missing_packages() or requirements.missing_system()):
        try:
            binaries.build(_say)
            controllers.build(_say, long=long)
            if not helm.path().is_file():
                _say("building helm, which takes a minute or two")
                helm.build()
        except ClusterError as error:
            problems.append(str(error))
    sentences = [
        *problems,
        *requirements.missing(),
        *requirements.missing_compiler().values(),
        *image.missing(long=long).values(),
    ]
    if not sentences:
        _say("the tests of the real cluster, of the real driver and of the image can run here")
        return 0
    line = "!" * 100
    outcome = (
        "This is an error, because CI runs all tests"
        if requirements.in_ci()
        else "THE TESTS THAT NEED IT WILL BE SKIPPED"
    )
    _say(
        "\n".join((line, f"Requirements are missing. {outcome}:", *(f"  * {sentence}" for sentence in sentences), line))
    )
    return 1 if requirements.in_ci() else 0


def _install(packages: list[str]) -> list[str]:
    """Install Debian packages; return a sentence for every problem."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return []  # `missing` names what is absent and says that root and Debian are needed
    _say(f"installing {', '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "--yes", "--quiet", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "--quiet"], install):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return [f"`{' '.join(command[:2])}` failed: {(done.stderr or done.stdout).strip()[-500:]}"]
    return []


def _up(nodes: int, *, bare: bool) -> int:
    if not bare and (absent := missing_programs()):
        raise ClusterError(f"not installed: {', '.join(absent)}; `up --bare` starts the cluster without them")
    started = time.monotonic()
    if not requirements.missing_system():
        binaries.build(_say)
    with Cluster(nodes, detached=True, say=_say) as cluster:
        if not bare:
            start_programs(cluster)
            _say(f"[{time.monotonic() - started:5.1f} s] up: ascend-allocator, {nodes} ascend-device-plugin")
        example = cluster.folder / "example.yaml"
        example.write_text(_EXAMPLE.format(resource=RESOURCE, chips=2, stay=STAY))
        log, programs = cluster.folder / "log", Path(sys.executable).parent
        text = what_to_type(cluster.kubeconfig_path, example, log, programs, bare=bare)
        cluster.let_go()
    _say(text)
    return 0


def what_to_type(kubeconfig: Path, example: Path, log: Path, programs: Path, *, bare: bool) -> str:
    """Return the commands to continue with, for a shell; ``programs`` is the folder of ``npuctl``."""
    quoted = {"example": shlex.quote(str(example)), "npuctl": shlex.quote(str(programs / "npuctl"))}
    return _NEXT.format(
        kubeconfig=shlex.quote(str(kubeconfig)),
        binaries=shlex.quote(str(binaries.folder())),
        program_commands="" if bare else _NEXT_WITH_PROGRAMS.format(**quoted),
        log=log,
    )


def _down() -> int:
    if running := namespace.detached():
        running.close()
        _say(f"stopped the cluster in {running.folder}")
    swept = namespace.sweep()
    for folder in swept:
        _say(f"removed {folder}, which a crashed run left behind")
    if not running and not swept:
        _say("no cluster is running, and no crashed run left anything behind")
    return 0


def _status() -> int:
    running = namespace.detached()
    if running is None:
        _say("no cluster is running; start one with `make cluster-up`")
        return 1
    _say(f"a cluster is running; KUBECONFIG={running.folder / 'kubeconfig'}, logs in {running.folder / 'log'}")
    return 0


def _record(junit: Path) -> int:
    """Note in `runs.json` how a run ended, in place of the last one with the same version of Kubernetes."""
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    dates = set[str]()
    for suite in ET.parse(junit).iter("testsuite"):
        counts = {name: number + int(suite.attrib[name]) for name, number in counts.items()}
        dates.add(suite.attrib["timestamp"][:10])
    ended: dict[str, Any] = {
        "date": max(dates),
        "failed": counts["failures"] + counts["errors"],
        "skipped": counts["skipped"],
    }
    ended["passed"] = counts["tests"] - ended["failed"] - ended["skipped"]
    runs = {**json.loads(binaries.RUNS.read_text()), binaries.KUBERNETES_VERSION: ended}
    binaries.RUNS.write_text(f"{json.dumps(runs, indent=2, sort_keys=True)}\n")
    _say(f"Kubernetes {binaries.KUBERNETES_VERSION}: {ended}; `make docs` writes it into docs/support.md")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
