"""`npuctl` as one file for each platform: a zip with all that it needs, which a Python of the machine runs."""

import shutil
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.release.commands import run
from deploy.release.settings import FILE_PLATFORMS, Settings

# deploy/image/prune.sh expects the layout of an environment. The names of compiled modules tell Pythons apart.
_SITE_PACKAGES: Final = Path("lib") / "python3" / "site-packages"


def build_files(source: Path, output: Path, scratch: Path, settings: Settings, epoch: int) -> None:
    """Build the files from the wheel in the output folder and from the wheels of uv.lock.

    Raises:
        ReleaseError: a tool is missing, or a wheel can't be had or has another checksum than in uv.lock.
    """
    scratch.mkdir()
    lock = scratch / "pylock.toml"
    export = ("export", "--quiet", "--locked", "--no-dev", "--no-emit-project", "--format", "pylock.toml")
    lock.write_text(run([settings.uv, *export], source))
    (wheel,) = output.glob("ascend_affinity-*.whl")
    version = wheel.name.split("-")[1]
    for platform in settings.file_platforms:
        environment = scratch / platform
        packages = environment / _SITE_PACKAGES
        for part in _installed(lock, scratch, platform, settings):
            shutil.copytree(part, packages, dirs_exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        shutil.rmtree(packages / "bin")
        run(["sh", str(source / "deploy" / "image" / "prune.sh"), str(environment)], source)
        file = output / f"npuctl-{version}-{platform}.pyz"
        zipped = ("--site-packages", str(packages), "--entry-point", "npuctl.cli:main", "--output-file", str(file))
        run([sys.executable, "-m", "shiv", *zipped, "--compressed"], source, SOURCE_DATE_EPOCH=str(epoch))


def _installed(lock: Path, scratch: Path, platform: str, settings: Settings) -> Iterator[Path]:
    """Install what is locked for each Python; yield the folders."""
    for python in settings.file_pythons:
        folder = scratch / f"{platform}-{python}"
        wanted = ("--python-platform", FILE_PLATFORMS[platform], "--python-version", python, "--only-binary", ":all:")
        run([settings.uv, "pip", "install", "--quiet", "--target", str(folder), *wanted, "-r", str(lock)], scratch)
        yield folder
