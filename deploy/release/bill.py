"""The bill of materials of an image: its Python packages, and those of its base (CycloneDX)."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_string
from typing import Final

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot5
from packageurl import PackageURL

from deploy.release.errors import ReleaseError
from deploy.release.images import Image
from deploy.release.settings import architecture

SHARE: Final = "opt/ascend-affinity/share"
_STATUS: Final = "var/lib/dpkg/status"


def bill_of(image: Image, epoch: int) -> str:
    """Return the bill of materials.

    Raises:
        ReleaseError: the image does not say what is in it.
    """
    listed = image.read(f"{SHARE}/sbom.cdx.json")
    if listed is None:
        raise ReleaseError(f"the image for {image.platform} has no {SHARE}/sbom.cdx.json")
    bill = Bom.from_json(json.loads(listed))  # type: ignore[attr-defined] # added by a decorator
    for component in _base(image):
        bill.components.add(component)
    bill.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, image.descriptor()["digest"])
    bill.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    return JsonV1Dot5(bill).output_as_string(indent=2) + "\n"


def _base(image: Image) -> Iterator[Component]:
    status = image.read(_STATUS)
    if not status or not status.strip():
        raise ReleaseError(f"the base for {image.platform} has no {_STATUS}: what it contains is unknown")
    release = _variables(image.read("usr/lib/os-release") or image.read("etc/os-release") or "")
    system, version = release.get("ID", "debian"), release.get("VERSION_ID", "")
    names = set()
    for paragraph in status.split("\n\n"):
        package = message_from_string(paragraph)
        if "Package" in package and "not-installed" not in package.get("Status", ""):
            names.add(package["Package"])
            machine = package.get("Architecture", architecture(image.platform))
            where = {"arch": machine, "distro": f"{system}-{version}"}
            url = PackageURL("deb", system, package["Package"], package["Version"], where)
            yield _component(package["Package"], package["Version"], url)
    # Images such as python:3.13-slim have a Python that is no package.
    environment = _variables("\n".join(image.config()["config"].get("Env", ())))
    if "python3.13-minimal" not in names and "PYTHON_VERSION" in environment:
        version = environment["PYTHON_VERSION"]
        yield _component("python", version, PackageURL("generic", None, "python", version))


def _component(name: str, version: str, url: PackageURL) -> Component:
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=url, bom_ref=url.to_string())


def _variables(text: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value.strip('"') for name, _, value in pairs}
