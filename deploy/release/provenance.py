"""The provenance: an in-toto statement with a predicate of SLSA (https://slsa.dev/spec/v1.0/provenance)."""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from packaging.utils import parse_wheel_filename

from deploy.release.settings import Settings

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
_BUILD: Final = "urn:ascend-affinity:build:make-release:1"
_MACHINES: Final = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
_INTERPRETERS: Final = {"cp313", "py3", "abi3"}


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of a release.

    Attributes:
        revision: its hash.
        source: the repository's address; empty if it has none.
        epoch: its time, in seconds.
    """

    revision: str
    source: str
    epoch: int


def statement(
    commit: Commit, settings: Settings, checksums: Mapping[str, str], digest: str, lock: Path
) -> dict[str, Any]:
    """Return the statement about the files of a release.

    Args:
        commit: what it was made of.
        settings: the releaser's.
        checksums: the SHA-256 of each file by name.
        digest: the image's, by which it is pulled.
        lock: uv.lock.
    """
    subjects = [{"name": name, "digest": {"sha256": value}} for name, value in sorted(checksums.items())]
    subjects.append({"name": settings.repository or "ascend-affinity", "digest": {"sha256": digest.partition(":")[2]}})
    source = f"git+{commit.source}" if commit.source else "git+local:ascend-affinity"
    bases = sorted({*settings.bases.values(), settings.build_base} - {""})
    materials = [{"uri": f"{source}@{commit.revision}", "digest": {"gitCommit": commit.revision}}]
    for base in bases:
        name, _, value = base.partition("@sha256:")
        materials.append({"uri": f"oci://{name}", "digest": {"sha256": value}} if value else {"uri": f"oci://{name}"})
    materials += locked_wheels(tomllib.loads(lock.read_text()), [*settings.bases])
    return {
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD,
                "externalParameters": {
                    "revision": commit.revision,
                    "bases": dict(settings.bases),
                    "buildBase": settings.build_base,
                },
                "internalParameters": {"sourceDateEpoch": commit.epoch, "builder": settings.builder.split()[0]},
                "resolvedDependencies": materials,
            },
            "runDetails": {"builder": {"id": settings.builder_id}},
        },
    }


def locked_wheels(lock: Mapping[str, Any], platforms: list[str]) -> list[dict[str, Any]]:
    """Return the wheels of the image's packages that are for its Python and one of the platforms."""
    packages = {package["name"]: package for package in lock["package"]}
    needed, rest = set[str](), ["ascend-affinity"]
    rest += [wanted["name"] for wanted in packages["ascend-affinity"]["optional-dependencies"]["programs"]]
    while rest:
        package = packages[rest.pop()]
        if package["name"] not in needed:
            needed.add(package["name"])
            extras = {extra for wanted in package.get("dependencies", ()) for extra in wanted.get("extra", ())}
            rest += [wanted["name"] for wanted in package.get("dependencies", ())]
            rest += [wanted["name"] for extra in extras for wanted in _optional(packages.values(), extra)]
    found = [wheel for name in sorted(needed) for wheel in _wheels(packages[name], platforms)]
    return sorted(found, key=lambda wheel: str(wheel["name"]))


def _optional(packages: Any, extra: str) -> Iterator[Mapping[str, Any]]:
    for package in packages:
        yield from package.get("optional-dependencies", {}).get(extra, ())


def _wheels(package: Mapping[str, Any], platforms: list[str]) -> Iterator[dict[str, Any]]:
    machines = tuple(_MACHINES[platform] for platform in platforms)
    for wheel in package.get("wheels", ()):
        name = wheel["url"].rpartition("/")[2]
        tags = parse_wheel_filename(name)[3]
        if any(
            {tag.interpreter, tag.abi} & _INTERPRETERS
            and not tag.abi.endswith("t")
            and (tag.platform == "any" or ("manylinux" in tag.platform and tag.platform.endswith(machines)))
            for tag in tags
        ):
            uri = f"pkg:pypi/{package['name']}@{package['version']}"
            yield {"name": name, "uri": uri, "digest": {"sha256": wheel["hash"].removeprefix("sha256:")}}


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the statement's bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
