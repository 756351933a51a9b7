"""Finds and loads a library of the driver, unless other users could have replaced it (docs/spec/dcmi.md#library)."""

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascend.errors import DriverError
from device_plugin.driver.dcmi.file_permissions import resolve_protected

NAME = "libdcmi.so"
_MAX_SEARCH_PATH = 1024
_LDCONFIG = (Path("/sbin/ldconfig"), Path("/usr/sbin/ldconfig"))


def load(path: Path | None, environment: Mapping[str, str] = os.environ, *, name: str = NAME) -> ctypes.CDLL:
    """Load the library.

    Args:
        path: the file; None to search the directories of ``LD_LIBRARY_PATH``, then the loader's cache.
        environment: has ``LD_LIBRARY_PATH``.
        name: the file's name, if it is searched.

    Raises:
        DriverError: no usable library was found; says where it was searched and why those found are not used.
    """
    found = resolve_protected(path) if path is not None else find(environment, name)
    loader = ctypes.CDLL(None)
    loader.dlopen.restype = ctypes.c_void_p
    loader.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
    loader.dlerror.restype = ctypes.c_char_p
    # Not CDLL(path): it adds RTLD_NOW, and an incomplete driver would not load at all.
    handle = loader.dlopen(os.fsencode(found), os.RTLD_LAZY | os.RTLD_GLOBAL)
    if handle is None:
        why = (loader.dlerror() or b"").decode(errors="replace")
        raise DriverError(f"{found} can't be loaded: {why}", reason="LibraryUnusable")
    return ctypes.CDLL(str(found), handle=handle)


def find(environment: Mapping[str, str], name: str = NAME) -> Path:
    """Return the first library on the search path that only root and this user can change.

    Raises:
        DriverError: there is none.
    """
    refusals = []
    for candidate in _candidates(environment, name):
        if not os.path.lexists(candidate):
            continue
        try:
            return resolve_protected(candidate)
        except DriverError as error:
            refusals.append(error.message)
    if refusals:
        raise DriverError("; ".join(refusals), reason="UntrustedFile")
    raise DriverError(
        f"no {name} in the directories of LD_LIBRARY_PATH or in the cache of ldconfig: install the NPU driver, mount "
        "its lib64/driver folder, or name the library in the settings",
        reason="LibraryNotFound",
    )


def _candidates(environment: Mapping[str, str], wanted: str) -> Iterator[Path]:
    search_path = environment.get("LD_LIBRARY_PATH", "")
    if len(search_path) > _MAX_SEARCH_PATH:
        raise DriverError(
            f"LD_LIBRARY_PATH has {len(search_path)} characters, more than {_MAX_SEARCH_PATH}: name the library in the "
            "settings",
            reason="LibraryNotFound",
        )
    for folder in search_path.split(":"):
        if folder.startswith("/"):  # an empty or relative entry depends on the working directory
            yield Path(folder) / wanted
    yield from _cached(wanted)


def _cached(wanted: str) -> Iterator[Path]:
    ldconfig = next((path for path in _LDCONFIG if path.exists()), None)
    if ldconfig is None:
        return
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            [ldconfig, "--print-cache"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return
    for line in answer.stdout.splitlines():
        # Such as "\tlibdcmi.so (libc6,x86-64) => /usr/lib64/libdcmi.so".
        name, _, rest = line.strip().partition(" ")
        _, arrow, where = rest.partition(" => ")
        if name == wanted and arrow and where.startswith("/"):
            yield Path(where)
