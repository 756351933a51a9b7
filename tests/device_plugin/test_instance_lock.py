"""One plugin per node runs; a second one waits."""

import asyncio
import shutil
from pathlib import Path
from typing import BinaryIO

import pytest

from ascend.errors import LockLost
from device_plugin.serving import instance_lock
from device_plugin.serving.instance_lock import NAME, SUCCESSOR_NAME, InstanceLock
from tests.device_plugin.api import running, until
from tests.device_plugin.small_disk import SmallDisk


class Instance:
    def __init__(self, folder: Path) -> None:
        self.lock = InstanceLock(folder)
        self.works = False

    async def run(self) -> None:
        async with self.lock.held():
            self.works = True
            await asyncio.Event().wait()


async def test_a_second_instance_starts_only_once_the_first_has_ended(tmp_path: Path) -> None:
    first, second = Instance(tmp_path), Instance(tmp_path)
    async with running(first.run()) as holding:
        await until(lambda: first.works)
        assert first.lock.problem is None
        async with running(second.run()):
            await asyncio.sleep(0)
            assert not second.works
            assert second.lock.problem is not None
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)
            await until(lambda: second.works)


async def test_an_instance_knows_whether_another_one_works(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    first, second = Instance(folder), Instance(folder)
    assert not second.lock.is_anothers  # nobody's: there is no folder
    folder.mkdir()
    assert not second.lock.is_anothers
    async with running(first.run()):
        await until(lambda: first.works)
        assert (first.lock.is_anothers, second.lock.is_anothers) == (False, True)


async def test_an_instance_keeps_the_lock_in_a_recreated_folder(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    first, second = Instance(folder), Instance(folder)
    async with running(first.run()):
        await until(lambda: first.works)
        shutil.rmtree(folder)
        folder.mkdir()
        first.lock.renew()
        async with running(second.run()):
            await asyncio.sleep(0)
            assert not second.works
            assert second.lock.problem is not None


async def test_an_instance_that_was_replaced_ends(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    first, second = Instance(folder), Instance(folder)
    async with running(first.run()):
        await until(lambda: first.works)
        shutil.rmtree(folder)
        folder.mkdir()
        async with running(second.run()):
            await until(lambda: second.works)
            with pytest.raises(LockLost, match=str(folder)):
                first.lock.renew()
            assert not first.lock.is_still_ours()
            assert second.lock.is_still_ours()


async def test_a_missing_folder_is_not_taken_for_another_instance(tmp_path: Path) -> None:
    folder = tmp_path / "device-plugins"
    folder.mkdir()
    instance = Instance(folder)
    async with running(instance.run()):
        await until(lambda: instance.works)
        shutil.rmtree(folder)
        assert instance.lock.is_still_ours()


@pytest.mark.parametrize("name", [NAME, SUCCESSOR_NAME])
async def test_one_instance_works_and_one_stands_by_although_a_lock_file_is_deleted(tmp_path: Path, name: str) -> None:
    first, second = Instance(tmp_path), Instance(tmp_path)
    async with running(first.run()) as working:
        await until(lambda: first.works)
        async with running(second.run()):
            await until(lambda: second.lock.stands_by)
            (tmp_path / name).unlink()
            first.lock.renew()
            await until(lambda: first.lock.successor() is not None)
            assert not second.works
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await until(lambda: second.works)


async def test_a_missing_folder_is_waited_for(tmp_path: Path) -> None:
    instance = Instance(tmp_path / "later")
    async with running(instance.run()):
        await asyncio.sleep(0)
        assert not instance.works
        (tmp_path / "later").mkdir()
        await until(lambda: instance.works)


async def test_a_full_disk_does_not_keep_an_instance_from_working(small_disk: SmallDisk) -> None:
    """The name by which a successor is known can't be written."""
    for name in (NAME, SUCCESSOR_NAME):
        (small_disk.path / name).touch()
    small_disk.fill()
    instance, successor = Instance(small_disk.path), Instance(small_disk.path)
    async with running(instance.run()) as working:
        await until(lambda: instance.works)
        async with running(successor.run()):
            await until(lambda: successor.lock.stands_by)
            assert instance.lock.successor() is not None
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await until(lambda: successor.works)


async def test_it_says_why_the_lock_can_not_be_taken_and_takes_it_later(small_disk: SmallDisk) -> None:
    small_disk.fill_with_files()
    instance = Instance(small_disk.path)
    async with running(instance.run()):
        await until(lambda: "No space left on device" in (instance.lock.problem or ""))
        assert str(small_disk.path) in (instance.lock.problem or "")
        assert not instance.works
        small_disk.empty()
        await until(lambda: instance.works)


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
async def test_a_folder_that_is_emptied_while_the_successor_is_looked_for_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    instance, successor = Instance(tmp_path), Instance(tmp_path)
    async with running(instance.run()):
        await until(lambda: instance.works)
        async with running(successor.run()):
            await until(lambda: successor.lock.stands_by)
            take = instance_lock._take

            def taken(path: Path) -> BinaryIO:
                try:
                    return take(path)
                finally:  # the kubelet empties the folder, or somebody else writes there, right after that
                    if content is None:
                        path.unlink()
                    else:
                        path.write_bytes(content)

            monkeypatch.setattr(instance_lock, "_take", taken)
            assert (instance.lock.successor() is None) is (content is None)
            monkeypatch.undo()
