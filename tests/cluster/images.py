"""Writes the two container images of the cluster, from the busybox of this machine; it downloads nothing."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cluster.requirements import BUSYBOX

PAUSE: Final = "docker.io/local/pause:1"
BUSYBOX_IMAGE: Final = "docker.io/local/busybox:1"

_APPLETS: Final = ("sh", "sleep", "env", "ls", "cat", "echo", "true", "false", "stat", "test")
_FOLDERS: Final = ("bin", "dev", "proc", "sys", "etc", "tmp")


def write_archive(path: Path) -> None:
    """Write both images as one docker-archive, for `ctr images import`."""
    layer = _layer()
    layer_digest = hashlib.sha256(layer).hexdigest()
    manifest = []
    with tarfile.open(path, "w") as archive:
        _add(archive, f"{layer_digest}.tar", layer)
        # The sandbox container of a pod must not end by itself.
        for image, entrypoint in ((PAUSE, ["/bin/sleep", "2147483647"]), (BUSYBOX_IMAGE, ["/bin/sh"])):
            config = _config(entrypoint, layer_digest)
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, name, config)
            manifest.append({"Config": name, "RepoTags": [image], "Layers": [f"{layer_digest}.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def write_program_archive(path: Path, image: str, program: Path) -> None:
    """Write an image with one static program in /usr/local/bin, as the official images of Kubernetes have it."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        _add(layer, f"usr/local/bin/{program.name}", program.read_bytes(), mode=0o755)
    digest = hashlib.sha256(content.getvalue()).hexdigest()
    config = _config([program.name], digest, path="/usr/local/bin")
    name = f"{hashlib.sha256(config).hexdigest()}.json"
    with tarfile.open(path, "w") as archive:
        _add(archive, f"{digest}.tar", content.getvalue())
        _add(archive, name, config)
        manifest = [{"Config": name, "RepoTags": [image], "Layers": [f"{digest}.tar"]}]
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _layer() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(folder)
        _add(layer, "bin/busybox", BUSYBOX.read_bytes(), mode=0o755)
        for name in _APPLETS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return content.getvalue()


def _config(entrypoint: Sequence[str], layer_digest: str, path: str = "/bin") -> bytes:
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Env": [f"PATH={path}"], "Entrypoint": list(entrypoint)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
    }
    return json.dumps(config).encode()


def _architecture() -> str:
    """Return the architecture as images name it, read from the ELF header of busybox (e_machine)."""
    header = BUSYBOX.read_bytes()[:20]
    return {0x3E: "amd64", 0xB7: "arm64"}.get(int.from_bytes(header[18:20], "little"), "amd64")


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
