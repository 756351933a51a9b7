"""Builds the image from the Dockerfile with deploy/image/build.sh, on bases of Debian's packages; cached by content."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from tests.cluster import binaries
from tests.cluster.errors import ClusterError
from tests.cluster.requirements import in_ci
from tests.deploy.helm import REPOSITORY

NAME: Final = "docker.io/local/ascend-affinity"

_FOLDER: Final = binaries.folder().parents[1] / "image"
_KEPT: Final = 4
_CERTIFICATES: Final = Path("/etc/ssl/certs")
_NETAVARK: Final = "/usr/lib/podman/netavark"
# For pip and uv in the build stage: packages may come through a proxy whose certificate only this machine knows.
_SETTINGS: Final = {
    "/etc/pip.conf": f"[global]\ncert = {_CERTIFICATES}/ca-certificates.crt\n",
    "/etc/uv/uv.toml": "system-certs = true\n",
}


_NO_PACKAGES: Final = re.compile("apt-get update .*failed|Failed to fetch|Could not (?:resolve|connect)")
"""What mmdebstrap and apt say if Debian's packages are not to be had; any other failure is a defect of the script."""


class NoPackages(ClusterError):
    """Debian's packages, of which the base is made, are not to be had here."""


class NoHistory(ClusterError):
    """This clone has no earlier commit to upgrade from."""


def skip_or_fail(error: NoPackages) -> NoReturn:
    """Skip the test, with the reason; in CI fail it."""
    text = f"THE IMAGE IS NOT TESTED HERE: {error}"
    if in_ci():
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@dataclass(frozen=True, slots=True)
class Image:
    """A built image.

    Attributes:
        tag: its tag, the hash of what it was built from.
        archive: the docker-archive, for `ctr images import`.
        commit: the commit of its sources; empty for the working tree.
        source: a checkout of that commit.
    """

    tag: str
    archive: Path
    commit: str
    source: Path

    def manifest(self) -> dict[str, Any]:
        """Return the archive's manifest: `Config` and `Layers` are paths in the archive."""
        with tarfile.open(self.archive) as archive:
            (manifest,) = json.loads(_member(archive, "manifest.json"))
        return dict(manifest)

    def config(self) -> dict[str, Any]:
        """Return the image's configuration."""
        with tarfile.open(self.archive) as archive:
            return dict(json.loads(_member(archive, self.manifest()["Config"])))

    def layers(self) -> dict[str, int]:
        """Return the sizes of its layers in bytes, by digest, from the base up."""
        with tarfile.open(self.archive) as archive:
            return {name: archive.getmember(name).size for name in self.manifest()["Layers"]}

    def unpack(self, folder: Path) -> None:
        """Unpack the root file system."""
        with tarfile.open(self.archive) as archive:
            for name in self.manifest()["Layers"]:
                layer = archive.extractfile(name)
                assert layer is not None
                subprocess.run(["tar", "-x", "-C", str(folder)], input=layer.read(), check=True)


def build(*, platform: str = "") -> Image:
    """Build the image of the working tree, unless it is cached.

    Args:
        platform: `arm64` for another platform than this machine's.

    Raises:
        NoPackages: its base can't be made.
        ClusterError: a build failed; the text is its output.
    """
    return _built(REPOSITORY, "", platform)


def build_previous(folder: Path) -> Image:
    """Build the image of the newest commit with other programs than the working tree's.

    Args:
        folder: for a checkout of that commit.

    Raises:
        NoHistory: there is no such commit in this clone.
        ClusterError: a build failed.
    """
    if _git("rev-parse", "--is-shallow-repository").strip() == "true":
        raise NoHistory("this clone is shallow: `git fetch --unshallow` gets the commit to upgrade from")
    current = _digest(REPOSITORY, "")
    paths = [path.relative_to(REPOSITORY).as_posix() for path in _inputs(REPOSITORY)]
    commits = _git("log", "-20", "--format=%H", "--", *{path.split("/")[0] for path in paths}).split()
    _git("clone", "--quiet", "--shared", "--no-checkout", str(REPOSITORY), str(folder))
    for commit in commits:
        _git("-C", str(folder), "checkout", "--quiet", commit)
        if (folder / "deploy" / "image" / "build.sh").exists() and _digest(folder, "") != current:
            return _built(folder, commit, "")
    raise NoHistory("no earlier commit with other programs is in this clone, so there is nothing to upgrade from")


def _built(source: Path, commit: str, platform: str) -> Image:
    tag = _digest(source, platform)
    archive = _FOLDER / f"{tag}.tar"
    with locked():
        if not archive.exists():
            _build(source, f"{NAME}:{tag}", archive, platform)
        os.utime(archive)  # the oldest are removed
        for old in sorted(_FOLDER.glob("*.tar"), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
            old.unlink()
    return Image(tag, archive, commit, source)


def _inputs(source: Path) -> Iterator[Path]:
    """Return the files from which the image is built."""
    yield source / "Dockerfile"
    yield from sorted((source / "deploy" / "image").iterdir())
    allowed = [line[1:] for line in (source / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in (source / name for name in allowed):
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _digest(source: Path, platform: str) -> str:
    digest = hashlib.sha256(platform.encode())
    for path in _inputs(source):
        digest.update(f"{path.relative_to(source)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _build(source: Path, name: str, archive: Path, platform: str) -> None:
    remove_unfinished()
    base, build_base = _base(source, "base", platform), _base(source, "build", "")
    if len(buildah("images", "--filter", "dangling=true", "--quiet").split()) > _KEPT:
        buildah("rmi", "--prune")  # layers of earlier builds
    options = [*_options(), "--timestamp", "0", "--build-arg", f"TARGETARCH={platform or _architecture()}"]
    environment = {"BUILDER": " ".join(_BUILDAH), "BASE": base, "BUILD_BASE": build_base}
    _run([str(source / "deploy" / "image" / "build.sh"), name, *options], **environment)
    unfinished = archive.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    buildah("push", "--quiet", name, f"docker-archive:{unfinished}:{name}")
    buildah("rmi", name)
    unfinished.rename(archive)


def _options() -> list[str]:
    """Return the options of builds on this machine; the folders that they mount exist then."""
    mounts = [f"{_CERTIFICATES}:{_CERTIFICATES}:ro"] if _CERTIFICATES.is_dir() else []
    for path, content in _SETTINGS.items() if mounts else ():
        file = _FOLDER / Path(path).name
        file.write_text(content)
        mounts.append(f"{file}:{path}:ro")
    for folder in ("uv", "pip"):
        (_FOLDER / folder).mkdir(exist_ok=True)
        mounts.append(f"{_FOLDER / folder}:/root/.cache/{folder}")
    options = ["--isolation", "chroot", "--layers", "--pull-never", "--quiet"]
    options += [part for mount in mounts for part in ("--volume", mount)]
    # buildah of Debian 12 does not set it by itself.
    return [*options, "--build-arg", f"BUILDPLATFORM=linux/{_architecture()}"]


def release_variables() -> dict[str, str]:
    """Return the variables of `make release` for builds of both platforms on this machine. Call it with the lock."""
    remove_unfinished()
    bases = {f"BASE_{platform.upper()}": _base(REPOSITORY, "base", platform) for platform in ("amd64", "arm64")}
    named = {**bases, "BUILD_BASE": _base(REPOSITORY, "build", "")}
    digest = "{{.FromImageDigest}}"
    pinned = {
        variable: f"{name.rpartition(':')[0]}@{buildah('inspect', '--type', 'image', '--format', digest, name).strip()}"
        for variable, name in named.items()
    }
    return {**pinned, "BUILDER": " ".join(_BUILDAH), "BUILD_OPTIONS": " ".join(_options()), "STORAGE_DRIVER": "vfs"}


def remove_unfinished() -> None:
    """Remove the containers of builds that were killed: their images can't be removed. Call it with the lock."""
    if buildah("containers", "--quiet").strip():
        buildah("rm", "--all")


def _base(source: Path, kind: str, platform: str) -> str:
    """Make a base with deploy/image/base.sh once per content of that file; return its name in buildah's store."""
    script = source / "deploy" / "image" / "base.sh"
    name = f"localhost/{kind}{platform}:{hashlib.sha256(script.read_bytes()).hexdigest()[:16]}"
    if name in buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return name
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        archive = str(Path(folder) / "rootfs.tar")
        make_base(script, *(["--build"] if kind == "build" else []), archive, *([platform] if platform else []))
        container = buildah("from", "scratch").strip()
        buildah("add", "--quiet", container, archive, "/")
        path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin"
        buildah("config", "--arch", platform or _architecture(), "--env", path, container)
        buildah("commit", "--quiet", "--rm", container, name)
    return name


def make_base(script: Path, *arguments: str) -> None:
    """Run deploy/image/base.sh.

    Raises:
        NoPackages: Debian's packages are not to be had.
        ClusterError: the script failed for another reason.
    """
    try:
        _run([str(script), *arguments])
    except ClusterError as error:
        if _NO_PACKAGES.search(str(error)):
            raise NoPackages(str(error)) from error
        raise


_BUILDAH: Final = ("buildah", "--root", str(_FOLDER / "store"), "--runroot", str(_FOLDER / "run"))


def buildah(*arguments: str) -> str:
    """Run buildah with a store of its own; return what it prints."""
    return _run([*_BUILDAH, *arguments])


def _run(command: Sequence[str], **environment: str) -> str:
    done = subprocess.run(
        ["nice", "-n", "5", *command],
        env={**os.environ, "STORAGE_DRIVER": "vfs", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ClusterError(f"{Path(command[0]).name} failed:\n{done.stdout[-2000:]}\n{done.stderr.strip()[-3000:]}")
    return done.stdout


def _git(*arguments: str) -> str:
    return _run(["git", "-C", str(REPOSITORY), *arguments])


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]


@contextmanager
def locked() -> Iterator[None]:
    """Only one process builds."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_test_requirements(folder: Path, packages: Path) -> None:
    """Install into a folder what the tests need besides the image's packages, for its Python.

    Args:
        folder: of the image's root file system.
        packages: the image's packages, inside it; its Python is named by that path.
    """
    version = packages.parent.name.removeprefix("python")
    uv = shutil.which("uv") or str(REPOSITORY / ".tools" / "bin" / "uv")
    locked = folder.with_name("test-requirements.txt")
    export = ["export", "--quiet", "--locked", "--no-emit-workspace", "--format", "requirements-txt"]
    locked.write_text(_run([uv, "--project", str(REPOSITORY), *export]))
    target = ["--target", str(folder), "--python-version", version, "--only-binary", ":all:", "--no-deps"]
    _run([uv, "--no-progress", "pip", "install", "--quiet", "--link-mode", "copy", *target, "-r", str(locked)])


def run_mounted(root: Path, folder: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command as root in a root file system that has devices, processes and a folder for temporary files."""
    mounts = f'mount --bind /dev "{root}/dev"; mount -t proc proc "{root}/proc"; mount -t tmpfs tmpfs "{root}/tmp"'
    for name in ("dev", "proc", "tmp"):
        (root / name).mkdir(exist_ok=True)
    script = f'set -e; {mounts}; exec unshare --root "{root}" --wd {folder} "$@"'
    environment = {"PATH": "/usr/bin:/usr/sbin:/bin:/sbin", "HOME": "/tmp", "LANG": "C.UTF-8"}
    words = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh", *command]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def missing(*, long: bool = False) -> dict[str, str]:
    """Return the missing Debian packages, with a sentence for each.

    Args:
        long: whether those for an image of another platform count.
    """
    # buildah looks for netavark at every start, although these builds use the machine's network.
    commands = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", _NETAVARK: "netavark"}
    if long:
        commands |= {"qemu-aarch64-static": "qemu-user-static", "arch-test": "arch-test"}
    return {
        package: f"The command {command} is not installed, so the image cannot be built and tested."
        for command, package in commands.items()
        if shutil.which(command) is None
    }
