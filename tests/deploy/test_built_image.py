"""What keeps the image from being tested: a defect of its scripts is a failure everywhere, no packages one in CI."""

import subprocess
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.deploy import image
from tests.deploy.helm import REPOSITORY


def script(folder: Path, text: str) -> Path:
    """A script in place of deploy/image/base.sh."""
    path = folder / "base.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "said",
    [
        "E: apt-get update --error-on=any -oAPT::Status-Fd=<fd> -oDpkg::Use-Pty=false failed",  # mmdebstrap --quiet
        "E: Failed to fetch http://deb.debian.org/debian/dists/trixie/InRelease",
        "Err: Could not resolve 'deb.debian.org'",
    ],
)
def test_packages_that_are_not_to_be_had_are_an_unmet_requirement(tmp_path: Path, said: str) -> None:
    with pytest.raises(image.NoPackages, match=said.partition(": ")[2][:14]):
        image.make_base(script(tmp_path, f'echo "{said}" >&2; exit 1'), "base.tar")


@pytest.mark.parametrize("text", ["exit 1", "no-such-command", "echo 'E: Unable to locate package x' >&2; exit 1"])
def test_a_defect_of_the_script_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(ClusterError) as raised:
        image.make_base(script(tmp_path, text), "base.tar")
    assert not isinstance(raised.value, image.NoPackages)


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("false", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_without_packages_the_tests_are_skipped_and_fail_in_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="THE IMAGE IS NOT TESTED HERE: no packages"):
        image.skip_or_fail(image.NoPackages("no packages"))


def test_a_shallow_clone_has_no_commit_to_upgrade_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{REPOSITORY}", str(clone)], check=True)
    monkeypatch.setattr(image, "REPOSITORY", clone)
    with pytest.raises(image.NoHistory, match="git fetch --unshallow"):
        image.build_previous(tmp_path / "previous")
