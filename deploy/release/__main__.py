"""`python -m deploy.release build` makes a release (as `make release` does); `verify FOLDER --key KEY` verifies one."""

import argparse
import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from deploy.release import bill, checking, images, packages, provenance, signing, single_file
from deploy.release.commands import run
from deploy.release.errors import ReleaseError
from deploy.release.settings import FILE_PLATFORMS, PLATFORMS, Settings, architecture, read

_REPOSITORY: Final = Path(__file__).parents[2]


def build(repository: Path, output: Path, settings: Settings) -> str:
    """Make a release of the repository's commit; return what to say of it.

    Raises:
        ReleaseError: something fails; the output folder is not there then.
    """
    if output.exists() and any(output.iterdir()):
        raise ReleaseError(f"{output} has files already: move them away")
    if changed := run(["git", "status", "--porcelain"], repository):
        raise ReleaseError(f"a release is made of a commit, but these files differ:\n{changed}")
    signer = signing.load_signer(settings.key, settings.key_password) if settings.key else None
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".release-") as folder:
        scratch = Path(folder)
        source, unfinished = scratch / "source", scratch / "release"
        unfinished.mkdir()
        commit = _check_out(repository, source)
        version = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
        name = f"ascend-affinity-{version}"
        packages.build_wheels(source, unfinished, commit.epoch)
        packages.package_chart(source, unfinished, scratch / "chart", settings.helm, commit.epoch)
        single_file.build_files(source, unfinished, scratch / "npuctl", settings, commit.epoch)
        built = [images.build(source, scratch, platform, settings, commit.epoch) for platform in settings.bases]
        for image in built:
            of_platform = f"{name}-image-{architecture(image.platform)}"
            (unfinished / f"{of_platform}.cdx.json").write_text(bill.bill_of(image, commit.epoch))
            licences = image.read(f"{bill.SHARE}/THIRD-PARTY-NOTICES.txt") or ""
            (unfinished / f"{of_platform}-notices.txt").write_text(licences)
        digest = images.join(built, unfinished / f"{name}-image.tar", version)
        pinned = f"image:\n  repository: {settings.repository or 'REGISTRY/ascend-affinity'}\n  digest: {digest}\n"
        (unfinished / f"{name}-image.values.yaml").write_text(pinned)
        checksums = {path.name: checking.checksum(path) for path in unfinished.iterdir()}
        statement = provenance.encode(
            provenance.statement(commit, settings, checksums, digest, source / "uv.lock"),
        )
        if signer is None:
            (unfinished / f"{name}{checking.UNSIGNED}").write_bytes(statement + b"\n")
        else:
            envelope = signing.envelop(signer, statement, provenance.PAYLOAD_TYPE)
            (unfinished / f"{name}{checking.ENVELOPE}").write_bytes(envelope)
        names = sorted(path.name for path in unfinished.iterdir())
        sums = "".join(f"{checking.checksum(unfinished / name)}  {name}\n" for name in names).encode()
        (unfinished / checking.SUMS).write_bytes(sums)
        if signer is not None:
            (unfinished / checking.SIGNATURE).write_bytes(signing.sign(signer, sums))
        if output.exists():
            output.rmdir()
        unfinished.rename(output)
    return _report(output, digest, settings)


def _check_out(repository: Path, source: Path) -> provenance.Commit:
    # Of the commit and nothing else, whatever lies in the folder.
    run(["git", "clone", "--quiet", "--shared", str(repository), str(source)], repository)
    revision = run(["git", "rev-parse", "HEAD"], repository).strip()
    run(["git", "checkout", "--quiet", "--detach", revision], source)
    remotes = run(["git", "remote"], repository).split()
    address = run(["git", "remote", "get-url", "origin"], repository).strip() if "origin" in remotes else ""
    # Without a password in it; a path of this machine says nothing to others.
    address = f"https://{address.rpartition('@')[2].removeprefix('https://')}" if address.startswith("https://") else ""
    run(["git", "remote", "set-url", "origin", address or "none"], source)
    epoch = int(run(["git", "log", "-1", "--format=%ct"], source))
    return provenance.Commit(revision, address, epoch)


def _report(output: Path, digest: str, settings: Settings) -> str:
    lines = [f"{output}:", *(f"  {name}" for name in sorted(path.name for path in output.iterdir()))]
    lines += [f"image.digest of the chart: {digest}"]
    if absent := [platform for platform in PLATFORMS if platform not in settings.bases]:
        lines.append(f"NOT BUILT: the image for {', '.join(absent)}")
    if absent := [platform for platform in FILE_PLATFORMS if platform not in settings.file_platforms]:
        lines.append(f"NOT BUILT: npuctl as a file for {', '.join(absent)}")
    if settings.key is None:
        lines.append("NOT SIGNED: nobody can tell who made this. RELEASE_KEY=FILE signs with a key (docs/releasing.md)")
    if "unnamed" in settings.builder_id:
        lines.append("The provenance does not name its builder: RELEASE_BUILDER=URI names it")
    return "\n".join(lines)


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="make a release of the commit")
    building.add_argument("--output", type=Path, default=_REPOSITORY / "dist")
    verifying = commands.add_parser("verify", help="verify the files of a release")
    verifying.add_argument("folder", type=Path)
    verifying.add_argument("--key", type=Path, help="the releaser's public key (PEM)")
    verifying.add_argument("--unsigned", action="store_true", help="check only that the files are those of SHA256SUMS")
    arguments = parser.parse_args()
    try:
        if arguments.command == "build":
            print(build(_REPOSITORY, arguments.output, read(os.environ)))  # noqa: T201 - a command
        elif (arguments.key is None) != arguments.unsigned:
            raise ReleaseError("either --key KEY, or --unsigned for the checksums alone")
        else:
            print(checking.check(arguments.folder, arguments.key))  # noqa: T201 - a command
    except ReleaseError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
