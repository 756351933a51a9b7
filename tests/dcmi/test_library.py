"""The driver's library is searched as the loader does, and refused if other users could have replaced it."""

import os
from pathlib import Path

import pytest

from ascend.errors import DriverError
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.file_permissions import resolve_protected
from device_plugin.driver.dcmi.library import find
from tests.dcmi import compiler
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeDcmi, ascend_910b


def library(folder: Path, mode: int = 0o644) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "libdcmi.so"
    path.touch()
    path.chmod(mode)
    return path


def test_the_first_library_on_the_search_path_is_used(tmp_path: Path) -> None:
    first, second = library(tmp_path / "b"), library(tmp_path / "a")
    search_path = f"{tmp_path}/none:{first.parent}:{second.parent}"
    assert find({"LD_LIBRARY_PATH": search_path}) == first


def test_empty_and_relative_entries_of_the_search_path_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library(tmp_path)
    library(tmp_path / "lib")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DriverError, match=r"no libdcmi\.so in the directories of LD_LIBRARY_PATH"):
        find({"LD_LIBRARY_PATH": ":lib::."})


def test_a_search_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="more than 1024"):
        find({"LD_LIBRARY_PATH": f"{tmp_path}:" + "x" * 1024})


def test_the_loaders_cache_is_searched_after_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = library(tmp_path / "cached")
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(
        "#!/bin/sh\n"
        '[ "$*" = --print-cache ] || exit 1\n'
        f"printf '2 libs found in cache\\n\\tlibdcmi.so.1 (libc6,x86-64) => /x\\n"
        f"\\tlibdcmi.so (libc6,x86-64) => {cached}\\n'\n"
    )
    ldconfig.chmod(0o755)
    monkeypatch.setattr("device_plugin.driver.dcmi.library._LDCONFIG", (tmp_path / "none", ldconfig))
    assert find({}) == cached
    first = library(tmp_path / "first")
    assert find({"LD_LIBRARY_PATH": str(first.parent)}) == first


def test_a_library_others_can_write_to_is_skipped(tmp_path: Path) -> None:
    open_to_all, safe = library(tmp_path / "a", 0o666), library(tmp_path / "b")
    assert find({"LD_LIBRARY_PATH": f"{open_to_all.parent}:{safe.parent}"}) == safe
    with pytest.raises(DriverError, match="mode 0666"):
        find({"LD_LIBRARY_PATH": str(open_to_all.parent)})


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o602])
def test_a_file_others_can_write_to_is_refused_with_path_and_mode(tmp_path: Path, mode: int) -> None:
    path = library(tmp_path, mode)
    with pytest.raises(DriverError) as refused:
        resolve_protected(path)
    assert str(path) in refused.value.message
    assert f"mode {mode:04o}" in refused.value.message
    assert f"chmod go-w {path}" in refused.value.message
    assert refused.value.reason == "UntrustedFile"


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_file_in_a_folder_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    path = library(tmp_path / "open" / "below")
    (tmp_path / "open").chmod(mode)
    with pytest.raises(DriverError, match=f"its path contains {tmp_path}/open, which has owner .* mode {mode:04o}"):
        resolve_protected(path)


def test_a_sticky_folder_can_be_writable_by_others(tmp_path: Path) -> None:
    path = library(tmp_path / "open" / "below")
    (tmp_path / "open").chmod(0o1777)
    assert resolve_protected(path) == path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a file")
@pytest.mark.parametrize("owned", ["sticky", "sticky/below", "sticky/below/libdcmi.so", "sticky/link"])
def test_a_file_or_folder_of_another_user_is_refused(tmp_path: Path, owned: str) -> None:
    path = library(tmp_path / "sticky" / "below")
    (tmp_path / "sticky").chmod(0o1777)
    link = tmp_path / "sticky" / "link"
    link.symlink_to(path)
    assert resolve_protected(link) == path
    os.chown(tmp_path / owned, 65534, -1, follow_symlinks=False)
    with pytest.raises(DriverError, match="has owner 65534"):
        resolve_protected(link)


def test_a_link_is_followed_and_every_folder_on_its_path_is_checked(tmp_path: Path) -> None:
    path = library(tmp_path / "version" / "lib")
    (tmp_path / "driver").symlink_to("version")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "libdcmi.so").symlink_to("../../driver/lib/libdcmi.so")
    link = tmp_path / "a" / "b" / "libdcmi.so"
    assert resolve_protected(link) == path
    (tmp_path / "version").chmod(0o777)
    with pytest.raises(DriverError, match=f"{tmp_path}/version, which"):
        resolve_protected(link)
    (tmp_path / "version").chmod(0o755)
    (tmp_path / "a" / "b").chmod(0o777)  # the link itself can be replaced
    with pytest.raises(DriverError, match=f"{tmp_path}/a/b, which"):
        resolve_protected(link)


def test_circular_links_and_deep_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    for path in (tmp_path / "a", library(tmp_path.joinpath(*"abcdefghijklmnopqrstu"[2:]))):
        with pytest.raises(DriverError, match="more than 20 folders or links deep"):
            resolve_protected(path)


@pytest.mark.parametrize("path", [Path("libdcmi.so"), Path("/"), Path("/none/libdcmi.so")])
def test_relative_paths_and_other_than_regular_files_are_refused(path: Path) -> None:
    with pytest.raises(DriverError, match=str(path)):
        resolve_protected(path)


def test_only_a_configured_path_is_used(make_fake: MakeFake, tmp_path: Path) -> None:
    fake = make_fake(ascend_910b(3))
    assert len(DcmiDriver(fake.library).discover().chips) == 3
    with pytest.raises(DriverError, match=f"{tmp_path}/none.so can't be read"):
        DcmiDriver(tmp_path / "none.so").discover()
    fake.library.chmod(0o777)
    with pytest.raises(DriverError, match="mode 0777"):
        DcmiDriver(fake.library).discover()


def test_a_file_that_is_not_a_library_is_an_error_with_its_path(tmp_path: Path) -> None:
    path = library(tmp_path)
    path.write_text("no ELF")
    with pytest.raises(DriverError, match=f"{path} can't be loaded: .*libdcmi.so") as refused:
        DcmiDriver(path).discover()
    assert refused.value.reason == "LibraryUnusable"


def test_a_library_installed_later_is_found_later(make_fake: MakeFake, tmp_path: Path) -> None:
    fake: FakeDcmi = make_fake(ascend_910b(1))
    hidden = fake.library.rename(tmp_path / "hidden")
    driver = DcmiDriver(fake.library)
    with pytest.raises(DriverError):
        driver.discover()
    hidden.rename(fake.library)
    assert len(driver.discover().chips) == 1


def test_an_incomplete_library_is_loaded() -> None:
    lame = compiler.build(
        "extern int absent(void);\n"
        "int dcmi_init(void) { return -8255; }\n"
        "int dcmi_get_card_list(void) { return absent(); }\n"
    )
    with pytest.raises(DriverError, match=r"^dcmi_init: -8255"):
        DcmiDriver(lame).discover()
