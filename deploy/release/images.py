"""The image of each platform, and all of them in one OCI archive, which is pushed to a registry as it is."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from deploy.release.commands import run
from deploy.release.errors import ReleaseError
from deploy.release.settings import Settings, architecture

_INDEX: Final = "application/vnd.oci.image.index.v1+json"


@dataclass(frozen=True, slots=True)
class Image:
    """The image of one platform, in an OCI archive of its own.

    Attributes:
        platform: such as `linux/amd64`.
        archive: the archive's path.
    """

    platform: str
    archive: Path

    def descriptor(self) -> dict[str, Any]:
        """Return what an index says of the image: media type, digest, size."""
        (descriptor,) = json.loads(self._member("index.json"))["manifests"]
        return {key: descriptor[key] for key in ("mediaType", "digest", "size")}

    def config(self) -> dict[str, Any]:
        """Return its configuration."""
        return dict(json.loads(self._blob(self._manifest()["config"]["digest"])))

    def read(self, path: str) -> str | None:
        """Return the text of a file of its root file system; `None` if there is none."""
        for layer in reversed(self._manifest()["layers"]):
            with tarfile.open(fileobj=io.BytesIO(self._blob(layer["digest"]))) as files:
                for name in (path, f"./{path}"):
                    try:
                        file = files.extractfile(name)
                    except KeyError:
                        continue
                    if file is not None:
                        return file.read().decode()
        return None

    def _manifest(self) -> dict[str, Any]:
        return dict(json.loads(self._blob(self.descriptor()["digest"])))

    def _blob(self, digest: str) -> bytes:
        return self._member(f"blobs/{digest.replace(':', '/')}")

    def _member(self, name: str) -> bytes:
        with tarfile.open(self.archive) as archive:
            file = archive.extractfile(name)
            if file is None:
                raise ReleaseError(f"{self.archive} has no {name}")
            return file.read()


def build(source: Path, scratch: Path, platform: str, settings: Settings, epoch: int) -> Image:
    """Build the image of a platform with deploy/image/build.sh.

    Raises:
        ReleaseError: the builder is missing or failed; nothing is released then without this platform.
    """
    archive = scratch / f"{architecture(platform)}.tar"
    name = f"localhost/ascend-affinity-release:{architecture(platform)}"
    words = settings.builder.split()
    docker = Path(words[0]).name == "docker"
    options = ["--platform", platform, *settings.build_options]
    options += ["--provenance=false", f"--output=type=oci,dest={archive},rewrite-timestamp=true"] if docker else []
    options += [] if docker else ["--timestamp", str(epoch), "--build-arg", f"TARGETARCH={architecture(platform)}"]
    base = settings.bases[platform]
    variables = {"RELEASE": "1", "BUILDER": settings.builder, "BASE": base, "BUILD_BASE": settings.build_base or base}
    script = str(source / "deploy" / "image" / "build.sh")
    run([script, name, *options], source, SOURCE_DATE_EPOCH=str(epoch), **variables)
    if not docker:
        run([*words, "push", name, f"oci-archive:{archive}"], source)
        run([*words, "rmi", name], source)
    return Image(platform, archive)


def join(images: list[Image], path: Path, tag: str) -> str:
    """Write one archive with the images of all platforms; return the digest by which they are pulled."""
    manifests = []
    for image in images:
        system, _, machine = image.platform.partition("/")
        manifests.append({**image.descriptor(), "platform": {"os": system, "architecture": machine}})
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"
    named = {"org.opencontainers.image.ref.name": tag}
    top = {"mediaType": _INDEX, "digest": digest, "size": len(index), "annotations": named}
    own = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [top]}),
        f"blobs/{digest.replace(':', '/')}": index,
    }
    with tarfile.open(path, "w") as joined:
        for name, content in own.items():
            _add(joined, name, len(content), io.BytesIO(content))
        written: set[str] = set()
        for image in images:
            with tarfile.open(image.archive) as archive:
                blobs = [item for item in archive.getmembers() if item.isfile() and item.name.startswith("blobs/")]
                for blob in sorted(blobs, key=lambda item: item.name):
                    if blob.name not in written:
                        written.add(blob.name)
                        _add(joined, blob.name, blob.size, archive.extractfile(blob))
    return digest


def _add(archive: tarfile.TarFile, name: str, size: int, content: Any) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    archive.addfile(entry, content)


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
