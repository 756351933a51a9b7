"""The vNPUs that were cut out of simulated chips: kept in a file of their own, as the real driver keeps them.

They outlive the program that has cut them, and are listed beside those in the file of the chips. That file says how
creations fail::

    "cuts": {"error": "", "delay_s": 0.0, "destroy_error": "", "in_containers": [100]}

A creation or a destruction takes ``delay_s``, and has its effect at the end. ``in_containers`` are the ids that
containers have.
"""

import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from ascend.errors import DriverError
from ascend.templates import TEMPLATES
from device_plugin.driver import VirtualNpu

FIRST_ID = 100
_CPUS = 6


class SimulatedCuts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How creations and destructions go."""

    error: str = ""
    delay_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    destroy_error: str = ""
    in_containers: tuple[int, ...] = ()


class _Cut(msgspec.Struct, frozen=True):
    id: int
    chip: int
    template: str
    group: int


class CutFile:
    """The file of the vNPUs that were cut.

    Args:
        path: the file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def of(self, chip: int, in_containers: Iterable[int]) -> tuple[VirtualNpu, ...]:
        """Return the vNPUs of a chip.

        Raises:
            DriverError: the file is malformed.
        """
        used = {*in_containers}
        return tuple(
            VirtualNpu(cut.id, chip, cut.template, in_container=cut.id in used, vfg_id=cut.group)
            for cut in self._read()
            if cut.chip == chip
        )

    def create(self, chip: int, template: str, *, cores: int, others: Mapping[int, Iterable[VirtualNpu]]) -> VirtualNpu:
        """Cut a vNPU out of a chip.

        Args:
            chip: its physical id.
            template: the size.
            cores: the AI cores of a chip.
            others: the vNPUs in the file of the chips, by physical id.

        Raises:
            DriverError: there is no such template, or too little is left of the chip, or the file can't be written.
        """
        if template not in TEMPLATES:
            raise DriverError(f"simulated chip {chip}: there is no template {template!r}")
        with self._lock:
            cuts = self._read()
            free = free_of([cut.template for cut in cuts if cut.chip == chip], others.get(chip, ()), cores)
            if TEMPLATES[template].cores > free[0] or TEMPLATES[template].cpus > free[1]:
                raise DriverError(f"simulated chip {chip}: too little is left of it for {template}")
            ids = {cut.id for cut in cuts} | {vnpu.vdev_id for found in others.values() for vnpu in found}
            vdev_id = next(number for number in range(FIRST_ID, FIRST_ID + len(ids) + 1) if number not in ids)
            groups = {cut.group for cut in cuts if cut.chip == chip}
            group = next(number for number in range(len(groups) + 1) if number not in groups)
            self._write([*cuts, _Cut(vdev_id, chip, template, group)])
        return VirtualNpu(vdev_id, chip, template, vfg_id=group)

    def destroy(self, chip: int, vdev_id: int) -> None:
        """Give the parts of a vNPU back.

        Raises:
            DriverError: there is no such vNPU, or the file can't be written.
        """
        with self._lock:
            cuts = self._read()
            rest = [cut for cut in cuts if (cut.chip, cut.id) != (chip, vdev_id)]
            if len(rest) == len(cuts):
                raise DriverError(f"simulated chip {chip} has no vNPU {vdev_id} that could be destroyed")
            self._write(rest)

    def _read(self) -> list[_Cut]:
        if not self._path.exists():
            return []
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=list[_Cut])
        except (OSError, ValueError) as error:
            raise DriverError(f"simulated vNPUs in {self._path}: {error}") from error

    def _write(self, cuts: list[_Cut]) -> None:
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            fresh.write_bytes(msgspec.json.encode(cuts))
            fresh.replace(self._path)
        except OSError as error:
            raise DriverError(f"simulated vNPUs in {self._path}: {error.strerror}") from error


def free_of(templates: Iterable[str], others: Iterable[VirtualNpu], cores: int) -> tuple[int, int]:
    """Return the AI cores and the AI CPUs of a chip that no vNPU has."""
    taken = [TEMPLATES[name] for name in (*templates, *(cut.template for cut in others)) if name in TEMPLATES]
    return cores - sum(template.cores for template in taken), _CPUS - sum(template.cpus for template in taken)
