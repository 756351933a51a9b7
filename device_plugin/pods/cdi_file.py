"""Keeps the CDI file of this node up to date: what the container runtime makes of the names that Allocate answers.

The file is never removed. A container that is restarted is given the names it was first given, also while the plugin is
away or being replaced (spec/kubernetes.md §1.9); so names of chips that are gone stay, too.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import structlog

from ascend.errors import UNREADABLE, Refusal
from device_plugin.pods.container_edits import CDI_FILE, ContainerEdits, Injection, cdi_spec, make_edits, shared_nodes

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Device(msgspec.Struct):
    name: str


class _File(msgspec.Struct):
    devices: list[_Device] = []


def list_folder(folder: Path) -> list[Path]:
    """What is in a folder, without folders; nothing where there is none."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if not entry.is_dir()]
    except OSError:
        return []


class CdiFile:
    """The file.

    Args:
        directory: where container runtimes look for such files, normally ``/var/run/cdi``.
        device_root: the folder of the device nodes on the node.
    """

    def __init__(self, directory: Path, device_root: Path) -> None:
        self._path = directory / CDI_FILE
        self._device_root = device_root

    def ensure(self, chips: Iterable[int]) -> None:
        """Write the file if it is not as it must be.

        Args:
            chips: the physical ids of the node's chips.

        Raises:
            Refusal: a device node that is needed is missing, or the file can't be written.
        """
        before = self._read()
        ids = {*chips, *_ids(before)}
        shared = shared_nodes(self._device_root, list_folder)
        content = msgspec.json.format(msgspec.json.encode(cdi_spec(ids, shared, self._device_root))) + b"\n"
        if content == before:
            return
        # Not `.json`: a runtime that looks right now must not take it for a second file of the same devices.
        fresh = self._path.with_name(f".{CDI_FILE}.{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.write_bytes(content)
            fresh.chmod(0o644)
            fresh.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise Refusal("CdiFileNotWritten", f"{self._path}: {error.strerror}") from error
        log.info("wrote the CDI file", path=str(self._path), chips=len(ids))

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError:
            return b""


def _ids(content: bytes) -> set[int]:
    try:
        devices = msgspec.json.decode(content, type=_File).devices
    except UNREADABLE:
        return set()
    return {int(each.name) for each in devices if each.name.isascii() and each.name.isdigit() and len(each.name) < 4}  # noqa: PLR2004 - the driver's ids have three digits at most


class Injector:
    """Gives containers their chips in the way that is set.

    Args:
        injection: which way.
        device_root: the folder of the device nodes on the node.
        cdi_dir: where container runtimes look for CDI files.
    """

    def __init__(self, injection: Injection, device_root: Path, cdi_dir: Path) -> None:
        self._injection = injection
        self._device_root = device_root
        self._cdi_file = CdiFile(cdi_dir, device_root) if injection == "cdi" else None

    def prepare(self, chips: Iterable[int]) -> None:
        """Make ready for these chips, all that the node has, before the first container asks.

        Raises:
            Refusal: it can't be; says why.
        """
        if self._cdi_file is not None:
            self._cdi_file.ensure(chips)

    def give(self, chips: tuple[int, ...]) -> ContainerEdits:
        """What a container with these chips is given.

        Raises:
            Refusal: it can't be; says why.
        """
        self.prepare(chips)
        return make_edits(chips, self._injection, self._device_root, list_folder)
