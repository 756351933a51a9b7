"""Keeps the node's CDI file up to date, which container runtimes use to resolve the names that Allocate answers.

The file is never removed: a container that is restarted uses the names it got first, also while the plugin is away or
being replaced (docs/spec/kubelet.md#using-the-response). For the same reason the names of chips that are gone stay in
it.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import structlog

from ascend.errors import UNREADABLE, InvalidValue, Refusal
from ascend.reasons import Reason
from ascend.vnpus import Vnpu, parse_vnpu
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.pods.container_edits import CDI_FILE, ContainerEdits, Injection, cdi_spec, make_edits, shared_nodes

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class _Device(msgspec.Struct):
    name: str


class _File(msgspec.Struct):
    devices: list[_Device] = []


def list_folder(folder: Path) -> list[str]:
    """Return the names of the files in a folder, without subfolders; nothing if there is no such folder.

    Raises:
        Refusal: it can't be read; a container would lack device nodes that are there.
    """
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Refusal(Reason.DEVICE_NODE_MISSING, f"{folder} can't be read: {error.strerror}") from error


class ContainerInjector:
    """Makes the edits of containers in the configured way.

    Args:
        injection: the way.
        device_root: the folder of the device nodes on the node.
        cdi_dir: the folder in which container runtimes look for CDI files, normally ``/var/run/cdi``.
    """

    def __init__(self, injection: Injection, device_root: Path, cdi_dir: Path) -> None:
        self.injection = injection
        self._device_root = device_root
        self._cdi_file = cdi_dir / CDI_FILE

    def prepare(self, chips: Iterable[int], vnpus: Iterable[Vnpu] = ()) -> None:
        """Write the CDI file, if containers need one and it is not up to date.

        Args:
            chips: the physical ids of the node's chips.
            vnpus: the node's vNPUs.

        Raises:
            Refusal: a required device node is missing, or the file can't be written.
        """
        if self.injection != "cdi":
            return
        before = self._read()
        names = _names(before)
        ids, parts = {*chips, *_ids(names)}, {*vnpus, *_vnpus(names)}
        shared = shared_nodes(list_folder(self._device_root), self._device_root, list_folder)
        content = msgspec.json.format(msgspec.json.encode(cdi_spec(ids, shared, self._device_root, parts))) + b"\n"
        if content != before:
            self._write(content)
            log.info("wrote the CDI file", path=str(self._cdi_file), chip_count=len(ids), vnpu_count=len(parts))

    def inject(self, chips: tuple[int, ...], device_type: DeviceType = WHOLE_CHIPS) -> ContainerEdits:
        """Return the edits for a container with these chips, or vNPUs.

        Raises:
            Refusal: the container could not be created with them.
        """
        if device_type.suffix:
            self.prepare((), map(device_type.vnpu, chips))
        else:
            self.prepare(chips)
        return make_edits(chips, self.injection, self._device_root, list_folder, device_type=device_type)

    def _read(self) -> bytes:
        try:
            return self._cdi_file.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:  # it may name chips that running containers need when they start again
            raise Refusal(Reason.CDI_FILE_NOT_WRITTEN, f"{self._cdi_file} can't be read: {error.strerror}") from error

    def _write(self, content: bytes) -> None:
        # The suffix is not `.json`, so that a runtime does not take it for a second file of the same devices.
        fresh = self._cdi_file.with_name(f".{CDI_FILE}.{os.getpid()}.tmp")
        try:
            fresh.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh.write_bytes(content)
            fresh.chmod(0o644)
            fresh.replace(self._cdi_file)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise Refusal(Reason.CDI_FILE_NOT_WRITTEN, f"{self._cdi_file}: {error.strerror}") from error


def _names(content: bytes) -> list[str]:
    try:
        return [device.name for device in msgspec.json.decode(content, type=_File).devices]
    except UNREADABLE:
        return []


def _vnpus(names: Iterable[str]) -> Iterator[Vnpu]:
    for name in names:
        with contextlib.suppress(InvalidValue):
            yield parse_vnpu(name)


def _ids(names: Iterable[str]) -> set[int]:
    return {int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 4}  # noqa: PLR2004 - the driver's ids have three digits at most
