"""The wheels and the chart, byte for byte the same whenever they are made of one commit."""

import gzip
import io
import sys
import tarfile
from pathlib import Path
from typing import Final

from deploy.release.commands import run

CHART: Final = Path("deploy") / "charts" / "ascend-affinity"


def build_wheels(source: Path, output: Path, epoch: int) -> None:
    """Build the wheels of the programs and of the sandbox.

    Raises:
        ReleaseError: a build failed.
    """
    for project in (source, source / "sandbox"):
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)]
        run(build, project, SOURCE_DATE_EPOCH=str(epoch))


def package_chart(source: Path, output: Path, scratch: Path, helm: str, epoch: int) -> None:
    """Package the chart with helm, and write the archive anew, because helm's has the time of its making.

    Raises:
        ReleaseError: helm is missing or refuses the chart.
    """
    scratch.mkdir()
    run([helm, "package", str(source / CHART), "--destination", str(scratch)], source)
    (packaged,) = scratch.glob("*.tgz")
    content = io.BytesIO()
    with tarfile.open(packaged) as original, tarfile.open(fileobj=content, mode="w") as archive:
        for member in sorted(original.getmembers(), key=lambda member: member.name):
            entry = tarfile.TarInfo(member.name)
            entry.size, entry.mtime, entry.mode = member.size, epoch, 0o644
            archive.addfile(entry, original.extractfile(member))
    with (output / packaged.name).open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(content.getvalue())
