"""Generate the message and service stubs with their type stubs, or check that the committed ones are current.

Run from anywhere: ``python -m protos.generate [--check]``. The compiler is the locked ``grpcio-tools``, the type
stubs come from the locked ``mypy-protobuf``, so the output is the same on every machine.
"""

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources() -> list[Path]:
    """Every ``.proto`` of the project, relative to its root."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "protos").rglob("*.proto"))


def generate(into: Path) -> None:
    """Write the stubs of every source below ``into``, which mirrors the project's root.

    Raises:
        RuntimeError: the compiler refused a source; it has printed why.
    """
    from grpc_tools import protoc

    well_known = Path(protoc.__file__).parent / "_proto"
    status = protoc.main(
        [
            "protoc",
            f"-I{ROOT}",
            f"-I{well_known}",
            f"--python_out={into}",
            f"--grpc_python_out={into}",
            f"--mypy_out=quiet:{into}",
            f"--mypy_grpc_out=quiet:{into}",
            *(str(ROOT / source) for source in sources()),
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}")


def stale() -> list[str]:
    """The generated files that differ from what the sources give, as paths relative to the root."""
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = sorted(path.relative_to(scratch) for path in Path(scratch).rglob("*_pb2*"))
        return [
            str(path)
            for path in fresh
            if not (ROOT / path).exists() or not filecmp.cmp(Path(scratch) / path, ROOT / path, shallow=False)
        ]


def main() -> int:
    """Command line; exit status 1 when ``--check`` finds a stale file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, fail when a stub is not current")
    if not parser.parse_args().check:
        generate(ROOT)
        return 0
    outdated = stale()
    for path in outdated:
        sys.stderr.write(f"{path} is not current: run `make protos`\n")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
