"""Builds the fake library and small C programs with the machine's C compiler."""

import functools
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.cluster import requirements

HERE: Final = Path(__file__).parent
WARNINGS: Final = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror")


def require_compiler() -> None:
    """Skip the test with a clear message if nothing can be built; fail it in CI."""
    sentences = requirements.missing_compiler().values()
    if not sentences:
        return
    text = "THE REAL DRIVER IS NOT TESTED HERE: " + " ".join(sentences)
    if requirements.in_ci():
        pytest.fail(text, pytrace=False)
    pytest.skip(text)


@functools.cache
def fake_library() -> Path:
    """Return the fake library, built once for this process."""
    return build_library()


def build_library(functions: Sequence[str] = ("dcmi_*",)) -> Path:
    """Build the fake library with only some functions, as in other versions of the driver."""
    folder = _folder()
    script = folder / "exports"
    script.write_text(f"{{ global: {'; '.join(functions)}; local: *; }};")
    library = folder / "libdcmi.so"
    flags = ("-fPIC", "-shared", "-fvisibility=hidden", "-pthread", f"-Wl,--version-script={script}")
    _compile([*WARNINGS, *flags, str(HERE / "fake_dcmi.c"), "-o", str(library)])
    return library


def build_switch_library() -> Path:
    """Build the fake library of switches; every call makes another file, and so a library with its own state."""
    library = _folder() / "liblingqu-dcmi.so"
    _compile([*WARNINGS, "-fPIC", "-shared", "-pthread", str(HERE / "fake_lingqu.c"), "-o", str(library)])
    return library


def build_preloaded(source: Path) -> Path:
    """Build a library that is preloaded into a program."""
    library = _folder() / f"{source.stem}.so"
    _compile([*WARNINGS, "-fPIC", "-shared", str(source), "-o", str(library)])
    return library


def build(source: str) -> Path:
    """Compile C source into a library."""
    folder = _folder()
    (folder / "library.c").write_text(source)
    library = folder / "libdcmi.so"
    _compile(["-fPIC", "-shared", str(folder / "library.c"), "-o", str(library)])
    return library


def run(program: str) -> str:
    """Compile and run a C program; return its output."""
    folder = _folder()
    source, binary = folder / "program.c", folder / "program"
    source.write_text(program)
    _compile([*WARNINGS, f"-I{HERE}", str(source), "-o", str(binary)])
    return subprocess.run([binary], capture_output=True, text=True, check=True, timeout=60).stdout


def _compile(arguments: list[str]) -> None:
    done = subprocess.run(["cc", *arguments], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise RuntimeError(f"cc {' '.join(arguments)}:\n{done.stderr}")


@functools.cache
def _new_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="fake-dcmi-")  # removed when the process ends


def _folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_new_folder().name))
