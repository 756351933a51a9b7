"""One plugin ends and another takes over the node: the last report is correct."""

import asyncio
import errno
import fcntl
import re
from pathlib import Path

import pytest

from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, decode_report
from ascend.errors import LockLost, NotFound
from ascend.kube.objects import CONFIG_MAPS, PODS
from device_plugin import app
from device_plugin.app import Plugin
from device_plugin.pods.admission_matcher import CAP_S
from device_plugin.publish.reporter import SIGN_OFF_S
from device_plugin.serving import instance_lock
from device_plugin.serving.instance_lock import NAME
from device_plugin.serving.plugin_socket import STOP_GRACE_S
from device_plugin.serving.succession import LIMIT_S
from tests.device_plugin.api import NODE, running, until
from tests.device_plugin.whole import Whole, check_hand_over, whole_node
from tests.e2e.proxy import ApiProxy


async def report(whole: Whole) -> DeviceReport | None:
    try:
        return decode_report((await whole.client.get(CONFIG_MAPS, config_map_name(NODE), NAMESPACE)).data)
    except NotFound:
        return None


async def all_reported(whole: Whole) -> None:
    """Wait until all chips are free in the report, after which nothing more is written."""
    async with asyncio.timeout(20.0):
        while (found := await report(whole)) is None or found.free != 0xFF:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)


async def has_signed_off(whole: Whole) -> bool:
    found = await report(whole)
    return found is not None and found.update_time_s == 0


def is_held(lock: Path) -> bool:
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


async def test_a_new_plugin_starts_only_after_the_last_report_of_the_old_one(folder: Path) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        lock = whole.node.kubelet.socket_dir / NAME
        async with running(Plugin(whole.settings(kubeconfig=behind)).run()) as task:
            await all_reported(whole)
            async with proxy.gate("PATCH", "/configmaps/") as last:
                task.cancel()
                await last.reached.wait()
                assert is_held(lock)
            await asyncio.wait([task])
        assert not is_held(lock)
        assert await has_signed_off(whole)


async def test_a_plugin_that_ends_before_its_first_report_is_answered_reports_its_end(folder: Path) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        async with (
            proxy.gate("POST", "/configmaps", after=True) as first,
            running(Plugin(whole.settings(kubeconfig=behind)).run()) as task,
        ):
            await first.reached.wait()
            assert await report(whole) is not None
            task.cancel()
            first.opened.set()
            await asyncio.wait([task])
        assert await has_signed_off(whole)


async def test_a_plugin_replaced_unnoticed_does_not_report_its_end(folder: Path) -> None:
    async with whole_node(folder) as whole:
        lock = whole.node.kubelet.socket_dir / NAME
        async with running(Plugin(whole.settings()).run()) as task:
            await all_reported(whole)
            lock.unlink()
            with lock.open("w") as another:
                fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
                task.cancel()
                await asyncio.wait([task])
        assert not await has_signed_off(whole)


async def test_a_plugin_that_ends_because_it_was_replaced_does_not_report_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_path: Path) -> None:
        raise OSError(errno.EWOULDBLOCK, "another instance has it")

    async with whole_node(folder) as whole:
        task = asyncio.create_task(Plugin(whole.settings()).run())
        await all_reported(whole)
        monkeypatch.setattr(instance_lock, "_take", taken)
        (whole.node.kubelet.socket_dir / NAME).unlink()
        await whole.node.kubelet.restart()
        await asyncio.wait([task])
        failure = task.exception()
        assert isinstance(failure, ExceptionGroup)
        assert failure.subgroup(LockLost) is not None
        assert not await has_signed_off(whole)


async def test_the_plugin_ends_only_once_its_pods_have_their_claims(folder: Path) -> None:
    async with whole_node(folder) as whole:
        plugin = Plugin(whole.settings())
        async with running(plugin.run()) as task:
            await until(whole.offers_chips)
            whole.cluster.server.fail_next("PATCH", "/pods/train$", 429, retry_after_s=3600)
            await whole.bind("train", 0, 1)
            await until(lambda: (found := whole.find("train")) is not None and found.status.phase == "Running")
            assert plugin.metrics.registry.get_sample_value("ascend_dp_claims_pending") == 1
            task.cancel()
            await asyncio.wait([task])
        check_hand_over(whole, await whole.client.get(PODS, "train", "default"))


async def test_an_api_server_without_an_answer_delays_the_end_for_less_than_the_grace_period(folder: Path) -> None:
    async with whole_node(folder) as whole, ApiProxy(whole.cluster.server.url) as proxy:
        behind = str(whole.cluster.write_kubeconfig("behind", proxy.url))
        async with running(Plugin(whole.settings(kubeconfig=behind)).run()) as task:
            await until(whole.offers_chips)
            async with proxy.gate("PATCH", "/pods/train") as claim:
                await whole.bind("train", 0, 1)
                await claim.reached.wait()
                task.cancel()
                done, _ = await asyncio.wait([task], timeout=app.FINISH_CLAIMS_S + SIGN_OFF_S + STOP_GRACE_S)
                assert done


def test_the_end_takes_less_than_the_grace_period_of_the_chart() -> None:
    chart = Path(__file__).parents[2] / "deploy" / "charts" / "ascend-affinity"
    template = (chart / "templates" / "device-plugin" / "daemonset.yaml").read_text()
    (grace_s,) = (int(each) for each in re.findall(r"terminationGracePeriodSeconds: (\d+)", template))
    assert grace_s > app.FINISH_CLAIMS_S + SIGN_OFF_S + STOP_GRACE_S
    assert grace_s > LIMIT_S + CAP_S
