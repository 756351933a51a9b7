"""Builds helm from its Go module, once per version, and runs it on the chart.

What a chart renders with given options is kept beside helm, by the contents of everything it is made of: only after a
change of the chart do the tests render it 300 times.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import binaries
from tests.cluster.errors import ClusterError

REPOSITORY: Final = Path(__file__).parents[2]
CHART: Final = REPOSITORY / "deploy" / "charts" / "ascend-affinity"
HARDENED: Final = CHART / "hardened-values.yaml"
RELEASE: Final = "ascend-affinity"
NAMESPACE: Final = "kube-system"

_MODULE: Final = Path(__file__).parent / "go" / "helm"
_PACKAGE: Final = "helm.sh/helm/v3/cmd/helm"
_MAJOR, _MINOR, _ = binaries.VERSIONS[0].split(".")
# Without these, helm assumes Kubernetes 1.20 if it is not connected to a cluster.
_VERSIONS: Final = {
    f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}": number
    for package in ("chartutil", "lint/rules")
    for part, number in (("Major", _MAJOR), ("Minor", _MINOR))
}
IMAGE: Final = ("--set", "image.repository=registry.example/ascend-affinity")
"""Without a registry in its name it is refused."""
_UNUSED_S: Final = 7 * 24 * 3600.0
# Helm generates another certificate each time.
_WITHOUT_CLUSTER: Final = (*IMAGE, "--set", "allocator.tls.ephemeral=true")


class HelmError(ClusterError):
    """Helm failed; the text is helm's."""


def path() -> Path:
    """Return the path of helm for these module versions, beside the cluster's programs; it may not be built yet."""
    digest = hashlib.sha256((_MODULE / "go.sum").read_bytes()).hexdigest()[:16]
    return binaries.folder().parent / f"helm-{digest}" / "helm"


def build() -> None:
    """Build it in a minute or two if it is absent; concurrent callers build it once.

    Raises:
        ClusterError: `go` is missing, or the build failed; the text ends with the compiler's output.
    """
    if path().is_file():
        return
    if shutil.which("go") is None:
        raise ClusterError("the Go compiler is not on PATH, so helm cannot be built")
    path().parent.mkdir(parents=True, exist_ok=True)
    with path().with_name(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path().is_file():
            return
        unfinished = path().with_suffix(".unfinished")
        flags = " ".join(("-s -w", *(f"-X {name}={value}" for name, value in _VERSIONS.items())))
        done = subprocess.run(
            ["go", "build", "-trimpath", "-ldflags", flags, "-o", str(unfinished), _PACKAGE],
            cwd=_MODULE,
            env={**os.environ, "CGO_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            unfinished.unlink(missing_ok=True)
            raise ClusterError(f"building helm failed:\n{done.stderr.strip()[-2000:]}")
        unfinished.rename(path())


def run(*arguments: str, kubeconfig: Path | None = None) -> str:
    """Run helm, and return its output.

    Args:
        *arguments: its arguments.
        kubeconfig: the cluster; none for commands that need none.

    Raises:
        HelmError: it failed.
    """
    done = subprocess.run(
        [str(path()), *arguments],
        env={
            **os.environ,
            "GOGC": "400",  # a fifth less CPU: a rendering is over before its garbage matters
            "KUBECONFIG": str(kubeconfig or os.devnull),
            # Its cache of the cluster is deleted with the cluster.
            "KUBECACHEDIR": str((kubeconfig or path()).with_name("kube-cache")),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise HelmError(f"helm {arguments[0]}: {done.stdout.strip()}\n{done.stderr.strip()}")
    return done.stdout


def render(*options: str) -> list[dict[str, Any]]:
    """Return the chart's objects, rendered with options such as `--set` and `--kube-version`.

    Raises:
        HelmError: the chart refuses them.
    """
    documents = yaml.load_all(
        _rendered(CHART, options), yaml.CSafeLoader
    )  # the loader written in C, because helm renders 1,000 lines
    return [item for item in documents if item is not None]


def _rendered(chart: Path, options: tuple[str, ...]) -> str:
    """Return what helm renders, from an earlier run if chart, options and the files they name are the same.

    Raises:
        HelmError: the chart refuses the options, or did in the earlier run.
    """
    kept = _kept(chart, options)
    if not kept.is_file():
        try:
            text = run("template", RELEASE, str(chart), "--namespace", NAMESPACE, *_WITHOUT_CLUSTER, *options)
            outcome = {"rendered": text}
        except HelmError as error:
            outcome = {"refused": str(error)}
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as unfinished:
            json.dump(outcome, unfinished)
        Path(unfinished.name).rename(kept)
    outcome = json.loads(kept.read_text())
    if "refused" in outcome:
        raise HelmError(outcome["refused"])
    rendered: str = outcome["rendered"]
    return rendered


def _kept(chart: Path, options: tuple[str, ...]) -> Path:
    """Return the file of a rendering; there is one folder per contents of a chart, and those unused for long go."""
    files = {str(file.relative_to(chart)): file.read_text() for file in sorted(chart.rglob("*")) if file.is_file()}
    folder = path().parent / "rendered" / _digest(files, path().stat().st_mtime_ns)
    if not folder.is_dir():
        for other in folder.parent.glob("*"):
            if time.time() - other.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(other, ignore_errors=True)
    named = [
        Path(option).read_text() if option.startswith("/") and Path(option).is_file() else option for option in options
    ]
    return folder / _digest(named)


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def notes(folder: Path, *options: str) -> str:
    """Return the notes of an installation without a cluster, which helm itself shows only with one.

    Args:
        folder: for a copy of the chart.
        *options: such as `--set`.
    """
    chart = shutil.copytree(CHART, folder / "chart", dirs_exist_ok=True)
    text = (chart / "templates" / "NOTES.txt").read_text()
    shutil.rmtree(chart / "templates", ignore_errors=True)
    (chart / "templates").mkdir()
    shutil.copy(CHART / "templates" / "_helpers.tpl", chart / "templates")
    wrapped = f'{{{{- define "notes" -}}}}{text}{{{{- end -}}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
    (chart / "templates" / "notes.yaml").write_text(wrapped)
    rendered = yaml.safe_load(_rendered(chart, options))
    said: str = rendered["notes"]
    return said


def find(items: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    """Return the only object of a kind that belongs to `device-plugin` or `allocator`."""
    (found,) = (item for item in items if item["kind"] == kind and _labels(item)["component"] == component)
    return found


def _labels(item: Mapping[str, Any]) -> dict[str, str]:
    prefix = "app.kubernetes.io/"
    return {key.removeprefix(prefix): value for key, value in item["metadata"]["labels"].items()}
