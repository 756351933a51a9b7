"""What the releaser decides, from environment variables, which `make release NAME=VALUE` sets."""

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.release.errors import ReleaseError

PLATFORMS: Final = ("linux/amd64", "linux/arm64")
FILE_PLATFORMS: Final[Mapping[str, str]] = {
    "linux-amd64": "x86_64-unknown-linux-gnu",
    "linux-arm64": "aarch64-unknown-linux-gnu",
    "macos-arm64": "aarch64-apple-darwin",
}
"""The platforms for which `npuctl` is one file, with uv's name of each."""

FILE_PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
_UNNAMED_BUILDER: Final = "urn:ascend-affinity:builder:unnamed"
_NO_SPACE: Final = re.compile(r"\S+")


@dataclass(frozen=True, slots=True)
class Settings:
    """The variables of a release.

    Attributes:
        bases: the base's name with digest for each platform, those of the image.
        build_base: the base of the build stage, which runs on this machine; empty for the platform's base.
        builder: docker, podman or buildah, with options.
        build_options: further options of `build`.
        helm: the path of helm.
        key: the file with the private key in PEM; `None` for a release that is not signed.
        key_password: the key's, if it is encrypted.
        repository: the image's name in your registry; empty if it is not decided yet.
        builder_id: who builds, a URI, for the provenance.
        uv: the path of uv.
        file_platforms: for which there is a file with `npuctl`.
        file_pythons: the Pythons that run these files.
    """

    bases: Mapping[str, str]
    build_base: str
    builder: str
    build_options: tuple[str, ...]
    helm: str
    key: Path | None
    key_password: str
    repository: str
    builder_id: str
    uv: str
    file_platforms: tuple[str, ...]
    file_pythons: tuple[str, ...]


def read(environment: Mapping[str, str]) -> Settings:
    """Read the variables.

    Raises:
        ReleaseError: one is absent or wrong, or a program is not installed, which the build would use minutes later.
    """
    platforms = _listed(environment, "PLATFORMS", PLATFORMS)
    bases = {name: environment.get(_base_of(name)) or environment.get("BASE", "") for name in platforms}
    for platform, base in bases.items():
        if "@sha256:" not in base:
            others = " ".join(name for name in PLATFORMS if name != platform)
            raise ReleaseError(
                f"no base for {platform}: BASE=NAME@sha256:DIGEST, or {_base_of(platform)}=… for this platform alone, "
                f"names an image with Python 3.13 by its digest{f'; {base} has none' if base else ''}. "
                f"To release without this platform: PLATFORMS={others}"
            )
    repository = environment.get("RELEASE_REPOSITORY", "")
    if repository and not set(".:") & set(repository.partition("/")[0]):
        raise ReleaseError(f"RELEASE_REPOSITORY={repository} does not begin with the name of a registry")
    builder_id = environment.get("RELEASE_BUILDER", "") or _UNNAMED_BUILDER
    if ":" not in builder_id or not _NO_SPACE.fullmatch(builder_id):
        raise ReleaseError(f"RELEASE_BUILDER={builder_id} is no URI")
    key = environment.get("RELEASE_KEY", "")
    if key and not Path(key).is_file():
        raise ReleaseError(f"RELEASE_KEY={key} is no file")
    settings = Settings(
        bases=bases,
        build_base=environment.get("BUILD_BASE", ""),
        builder=environment.get("BUILDER", "") or "docker",
        build_options=tuple(environment.get("BUILD_OPTIONS", "").split()),
        helm=environment.get("HELM", "") or "helm",
        key=Path(key).resolve() if key else None,
        key_password=environment.get("RELEASE_KEY_PASSWORD", ""),
        repository=repository,
        builder_id=builder_id,
        uv=environment.get("UV", "") or "uv",
        file_platforms=_listed(environment, "NPUCTL_PLATFORMS", FILE_PLATFORMS),
        file_pythons=_listed(environment, "NPUCTL_PYTHONS", FILE_PYTHONS),
    )
    for program in (settings.helm, settings.uv, settings.builder.split()[0]):
        if shutil.which(program, path=environment.get("PATH")) is None:
            raise ReleaseError(f"{program} is not installed")
    return settings


def _listed(environment: Mapping[str, str], variable: str, known: Iterable[str]) -> tuple[str, ...]:
    """The words of a variable, or all that are known."""
    words = tuple(environment.get(variable, "").replace(",", " ").split()) or tuple(known)
    if unknown := [word for word in words if word not in known]:
        raise ReleaseError(f"{variable} has {unknown[0]}: known are {' and '.join(known)}")
    return words


def _base_of(platform: str) -> str:
    return f"BASE_{architecture(platform).upper()}"


def architecture(platform: str) -> str:
    """Return `amd64` of `linux/amd64`."""
    return platform.partition("/")[2]
