"""A new instance of the plugin takes over while the old one runs, and the kubelet notices nothing."""

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from ascend.chips import RESOURCE
from ascend.errors import LockLost
from device_plugin.app import Plugin
from device_plugin.kubelet import pods_api
from device_plugin.pods import admission_matcher
from device_plugin.pods.reconciler import Reconciler
from device_plugin.serving import succession
from device_plugin.serving.instance_lock import NAME
from device_plugin.serving.succession import distinguishes_plugins
from tests.device_plugin.api import running, sample, until
from tests.device_plugin.node import Lapses
from tests.device_plugin.test_probes import answers, ask
from tests.device_plugin.whole import Whole, check_hand_over, whole_node

KUBELETS = pytest.mark.parametrize("race", [True, False], ids=["kubelet before 1.37", "kubelet from 1.37"])


@asynccontextmanager
async def two(folder: Path, *, race: bool) -> AsyncIterator[tuple[Whole, "asyncio.Task[None]", Plugin]]:
    """A node with a plugin, its task, and another one that stands by."""
    async with whole_node(folder, reregistration_race=race) as whole, running(Plugin(whole.settings()).run()) as old:
        await until(whole.offers_chips)
        new = Plugin(whole.settings())
        async with running(new.run()):
            await until(lambda: new.http_address)
            await answers(new, "/standbyz", 200, "")
            yield whole, old, new


async def ended(task: "asyncio.Task[None]") -> None:
    """Tell a plugin to end, and wait until it has."""
    task.cancel()
    await asyncio.wait([task])


def is_registered(plugin: Plugin) -> bool:
    return bool(sample(plugin.metrics, "ascend_dp_last_list_sent_timestamp_seconds"))


async def test_an_instance_that_stands_by_is_started_but_not_ready(folder: Path) -> None:
    async with two(folder, race=True) as (_, _, new):
        assert (await ask(new, "/startupz"))[0] == 200
        assert (await ask(new, "/livez"))[0] == 200
        assert "[-] lock: waiting for the lock" in (await ask(new, "/readyz"))[1]


@KUBELETS
async def test_the_devices_are_healthy_at_every_moment_of_an_upgrade(folder: Path, *, race: bool) -> None:
    async with two(folder, race=race) as (whole, old, new):
        lapses = Lapses(whole.node.kubelet)
        async with running(lapses.run()):
            await ended(old)
            assert is_registered(new)
            await answers(new, "/readyz", 200, "")
        assert lapses.seen == []
        await whole.bind("train", 0, 1)
        check_hand_over(whole, await whole.claimed("train"))


async def test_a_lock_file_that_is_deleted_before_an_upgrade_lets_no_two_instances_serve(folder: Path) -> None:
    async with whole_node(folder) as whole, running(Plugin(whole.settings()).run()) as old:
        await until(whole.offers_chips)
        lock = whole.node.kubelet.socket_dir / NAME
        lock.unlink()
        await until(lock.exists)
        new = Plugin(whole.settings())
        lapses = Lapses(whole.node.kubelet)
        async with running(new.run()), running(lapses.run()):
            await until(lambda: new.http_address)
            await answers(new, "/standbyz", 200, "")
            await ended(old)
            await answers(new, "/readyz", 200, "")
        assert lapses.seen == []


async def test_an_instance_whose_lock_was_taken_ends_and_leaves_the_kubelet_to_the_other(folder: Path) -> None:
    async def lose_the_lock() -> None:
        async with whole_node(folder) as whole, running(Plugin(whole.settings()).run()) as old:
            await until(whole.offers_chips)
            lock = whole.node.kubelet.socket_dir / NAME
            lock.unlink()
            with lock.open("ab") as taken:
                fcntl.flock(taken, fcntl.LOCK_EX)
                await asyncio.wait([old], timeout=20.0)

    with pytest.raises(BaseExceptionGroup) as ending:
        await lose_the_lock()
    assert ending.group_contains(LockLost, match="was recreated and can't be locked")


@KUBELETS
async def test_pods_that_come_during_an_upgrade_get_their_chips(folder: Path, *, race: bool) -> None:
    async with two(folder, race=race) as (whole, old, _):
        old.cancel()
        for chip in range(8):
            await whole.bind(f"pod-{chip}", chip)
        for chip in range(8):
            check_hand_over(whole, await whole.claimed(f"pod-{chip}"))
        await asyncio.wait([old])


@KUBELETS
async def test_a_call_that_the_old_instance_still_answers_is_not_cut_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, race: bool
) -> None:
    monkeypatch.setattr(pods_api, "DEADLINE_S", 10.0)
    monkeypatch.setattr(admission_matcher, "PREFER_CAP_S", 10.0)
    async with two(folder, race=race) as (whole, old, new):
        kubelet = whole.node.kubelet
        kubelet.pods_answer.hold()
        asked = kubelet.pods_answer.requests
        await whole.bind("train", 0, 1)
        await until(lambda: kubelet.pods_answer.requests > asked)
        old.cancel()
        await until(lambda: is_registered(new))
        registered_s = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > registered_s + 1.0)
        kubelet.pods_answer.release()
        check_hand_over(whole, await whole.claimed("train"))
        await asyncio.wait([old])


@KUBELETS
async def test_an_upgrade_of_an_upgrade_leaves_no_lapse_either(folder: Path, *, race: bool) -> None:
    async with two(folder, race=race) as (whole, old, second):
        third = Plugin(whole.settings())
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(running(third.run()))
            await until(lambda: third.http_address)
            # Only one instance stands by at a time; a DaemonSet would keep the old one meanwhile.
            await answers(third, "/standbyz", 503, "[-] lock: waiting for the lock")
            lapses = Lapses(whole.node.kubelet)
            async with running(lapses.run()):
                began_s = asyncio.get_running_loop().time()
                await ended(old)
                assert asyncio.get_running_loop().time() < began_s + succession.LIMIT_S
                await answers(second, "/readyz", 200, "")
                await answers(third, "/standbyz", 200, "")
            assert lapses.seen == []


async def test_what_the_old_instance_gives_at_last_is_known_to_the_new_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore = Reconciler.restore
    restored, may_go_on = asyncio.Event(), asyncio.Event()

    async def slow(reconciler: Reconciler) -> None:
        await restore(reconciler)
        restored.set()
        await may_go_on.wait()

    async with two(folder, race=True) as (whole, old, new):
        monkeypatch.setattr(Reconciler, "restore", slow)
        old.cancel()
        await restored.wait()
        assert not is_registered(new)
        await whole.bind("from-the-old", 0, 1)
        check_hand_over(whole, await whole.claimed("from-the-old"))
        may_go_on.set()
        await asyncio.wait([old])
        await whole.bind("from-the-new", 2, 3)
        check_hand_over(whole, await whole.claimed("from-the-new"))
        assert {each.pod for each in new.allocations} == {"default/from-the-old", "default/from-the-new"}


@KUBELETS
async def test_the_kubelet_notices_the_end_of_both_instances(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, race: bool
) -> None:
    restored = asyncio.Event()

    async def never(_: Reconciler) -> None:
        restored.set()
        await asyncio.Event().wait()

    async with whole_node(folder, reregistration_race=race) as whole:
        async with running(Plugin(whole.settings()).run()) as old:
            await until(whole.offers_chips)
            monkeypatch.setattr(Reconciler, "restore", never)
            new = Plugin(whole.settings())
            async with running(new.run()) as successor:
                await until(lambda: new.http_address)
                await answers(new, "/standbyz", 200, "")
                old.cancel()
                await restored.wait()
                await ended(successor)
                await asyncio.wait([old])
        await until(lambda: set(whole.node.kubelet.devices(RESOURCE).values()) == {"Unhealthy"})


@KUBELETS
async def test_pods_get_their_chips_until_a_successor_that_died_is_started_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, race: bool
) -> None:
    restored = asyncio.Event()

    async def never(_: Reconciler) -> None:
        restored.set()
        await asyncio.Event().wait()

    async with whole_node(folder, reregistration_race=race) as whole, running(Plugin(whole.settings()).run()) as old:
        await until(whole.offers_chips)
        with monkeypatch.context() as patch:
            patch.setattr(Reconciler, "restore", never)
            new = Plugin(whole.settings())
            async with running(new.run()) as successor:
                await until(lambda: new.http_address)
                await answers(new, "/standbyz", 200, "")
                old.cancel()
                await restored.wait()
                await ended(successor)
        await whole.bind("from-the-old", 0, 1)
        check_hand_over(whole, await whole.claimed("from-the-old"))
        again = Plugin(whole.settings())
        async with running(again.run()):
            done, _ = await asyncio.wait([old], timeout=succession.LIMIT_S)
            assert done
            await until(lambda: is_registered(again))
            await whole.bind("from-the-new", 2, 3)
            check_hand_over(whole, await whole.claimed("from-the-new"))
            assert {each.pod for each in again.allocations} == {"default/from-the-old", "default/from-the-new"}


async def test_a_successor_that_hangs_does_not_delay_the_end_for_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(succession, "LIMIT_S", 0.2)
    restored = asyncio.Event()

    async def never(_: Reconciler) -> None:
        restored.set()
        await asyncio.Event().wait()

    async with two(folder, race=True) as (_, old, _):
        monkeypatch.setattr(Reconciler, "restore", never)
        old.cancel()
        await restored.wait()
        done, _ = await asyncio.wait([old], timeout=5.0)
        assert done


async def test_an_unknown_version_of_the_kubelet_leaves_no_lapse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unknown(*_: object) -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr("device_plugin.app.kubelet_version", unknown)
    monkeypatch.setattr(succession, "VERSION_LIMIT_S", 0.05)
    async with two(folder, race=True) as (whole, old, new):
        lapses = Lapses(whole.node.kubelet)
        async with running(lapses.run()):
            await ended(old)
            await answers(new, "/readyz", 200, "")
        assert lapses.seen == []


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("v1.34.4", False),
        ("v1.36.9-eks-abc", False),
        ("v1.37.0", True),
        ("v1.38.1+k3s1", True),
        ("v2.0.0", True),
        ("", False),
    ],
)
def test_the_version_of_the_kubelet_decides(version: str, *, expected: bool) -> None:
    assert distinguishes_plugins(version) == expected


@KUBELETS
async def test_the_old_instance_answers_until_the_successor_of_one_that_died_is_registered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, race: bool
) -> None:
    restore = Reconciler.restore
    restored, begun, may_go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(_: Reconciler) -> None:
        restored.set()
        await asyncio.Event().wait()

    async def slow(reconciler: Reconciler) -> None:
        await restore(reconciler)
        begun.set()
        await may_go_on.wait()

    async with whole_node(folder, reregistration_race=race) as whole, running(Plugin(whole.settings()).run()) as old:
        await until(whole.offers_chips)
        monkeypatch.setattr(Reconciler, "restore", never)
        new = Plugin(whole.settings())
        async with running(new.run()) as successor:
            await until(lambda: new.http_address)
            await answers(new, "/standbyz", 200, "")
            old.cancel()
            await restored.wait()
            await ended(successor)
        monkeypatch.setattr(Reconciler, "restore", slow)
        again = Plugin(whole.settings())
        async with running(again.run()):
            await begun.wait()
            lapses = Lapses(whole.node.kubelet)
            async with running(lapses.run()):
                # It has the lock, and has rebuilt its ledger.
                await whole.bind("from-the-old", 0, 1)
                check_hand_over(whole, await whole.claimed("from-the-old"))
                may_go_on.set()
                await asyncio.wait([old])
            assert is_registered(again)
            assert lapses.seen == []
            await whole.bind("from-the-new", 2, 3)
            check_hand_over(whole, await whole.claimed("from-the-new"))
            assert {each.pod for each in again.allocations} == {"default/from-the-old", "default/from-the-new"}
