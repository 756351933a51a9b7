"""Builds helm from its Go module, once per version, and runs it on the chart."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
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
        _rendered(options), yaml.CSafeLoader
    )  # the loader written in C, because helm renders 1,000 lines
    return [item for item in documents if item is not None]


@functools.cache
def _rendered(options: tuple[str, ...]) -> str:
    return run("template", RELEASE, str(CHART), "--namespace", NAMESPACE, *_WITHOUT_CLUSTER, *options)


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
    rendered = yaml.safe_load(
        run("template", RELEASE, str(chart), "--namespace", NAMESPACE, *_WITHOUT_CLUSTER, *options)
    )
    said: str = rendered["notes"]
    return said


def find(items: list[dict[str, Any]], kind: str, component: str) -> dict[str, Any]:
    """Return the only object of a kind that belongs to `device-plugin` or `allocator`."""
    (found,) = (item for item in items if item["kind"] == kind and _labels(item)["component"] == component)
    return found


def _labels(item: Mapping[str, Any]) -> dict[str, str]:
    prefix = "app.kubernetes.io/"
    return {key.removeprefix(prefix): value for key, value in item["metadata"]["labels"].items()}
