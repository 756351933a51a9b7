"""The kubelet's list of pods: everything but a list of pods in time raises Unreachable."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from ascend.chips import RESOURCE
from ascend.errors import TimedOut, Unreachable
from ascend.kube.objects import PODS
from ascend.slices import ContainerRequest
from device_plugin.app import Plugin
from device_plugin.kubelet import pods_api
from device_plugin.kubelet.identity import KubeletIdentity
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.settings import Settings
from sandbox.kubelet import Kubelet
from tests.device_plugin.api import NODE, RecordingClient, bound_pod, running, until

ANYBODY = KubeletIdentity(Path("/nonexistent"), insecure=True)


async def identified() -> Mapping[str, str]:
    return {"Authorization": "Bearer ours"}


@pytest.fixture
async def kubelet(client: RecordingClient, folder: Path) -> AsyncIterator[Kubelet]:
    async with Kubelet(NODE, client, folder, seed=1) as kubelet:
        await client.create(PODS, bound_pod("one", 2, {RESOURCE: "Ascend910-0,Ascend910-1"}), "default")
        await kubelet.until(kubelet.pod_keys)
        yield kubelet


@pytest.fixture
async def pods(kubelet: Kubelet) -> AsyncIterator[KubeletPods]:
    async with KubeletPods(lambda: kubelet.pods_url, identified, ANYBODY) as listing:
        yield listing


async def test_the_kubelets_pods_are_listed_with_their_annotations(kubelet: Kubelet, pods: KubeletPods) -> None:
    kubelet.pods_answer.token = "ours"
    (one,) = await pods.list()
    assert one.key == "default/one"
    assert one.uid
    assert one.metadata.annotations == {RESOURCE: "Ascend910-0,Ascend910-1"}
    assert one.container_requests == (ContainerRequest("main", "app", 2),)


async def test_an_empty_list_is_not_an_error(kubelet: Kubelet, pods: KubeletPods) -> None:
    kubelet.pods_answer.rewrite = lambda _items: []
    assert await pods.list() == []


async def test_without_the_right_it_is_unreachable(kubelet: Kubelet, pods: KubeletPods) -> None:
    kubelet.pods_answer.forbidden = True
    with pytest.raises(Unreachable, match=f"{kubelet.pods_url} answered 403 Forbidden"):
        await pods.list()


async def test_what_it_lacks_is_known_before_a_pod_comes_and_ends_with_it(
    kubelet: Kubelet, pods: KubeletPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "FOLLOW_S", 0.01)
    monkeypatch.setattr(pods_api, "FOLLOW_AGAIN_S", 0.01)
    async with running(pods.follow()):
        kubelet.pods_answer.forbidden = True
        await until(lambda: pods.problem is not None)
        assert pods.problem == f"{kubelet.pods_url} answered 403 Forbidden"
        kubelet.pods_answer.forbidden = False
        await until(lambda: pods.problem is None)


async def test_a_list_that_fails_between_two_looks_is_soon_asked_for_again(
    kubelet: Kubelet, pods: KubeletPods, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "FOLLOW_S", 1000.0)
    monkeypatch.setattr(pods_api, "FOLLOW_AGAIN_S", 0.01)
    kubelet.pods_answer.forbidden = True
    async with running(pods.follow()):
        await until(lambda: pods.problem is not None)
        kubelet.pods_answer.forbidden = False
        await until(lambda: pods.problem is None)
        kubelet.pods_answer.forbidden = True
        with pytest.raises(Unreachable):
            await pods.list()  # as for a pod under admission
        kubelet.pods_answer.forbidden = False
        await until(lambda: pods.problem is None)


async def test_with_a_wrong_token_it_is_unreachable(kubelet: Kubelet, pods: KubeletPods) -> None:
    kubelet.pods_answer.token = "theirs"
    with pytest.raises(Unreachable, match="answered 401"):
        await pods.list()


async def test_a_kubelet_that_does_not_answer_in_time_is_unreachable(
    kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pods_api, "DEADLINE_S", 0.05)
    kubelet.pods_answer.hold()
    async with KubeletPods(lambda: kubelet.pods_url, identified, ANYBODY) as pods:
        with pytest.raises(TimedOut, match=r"has not answered within 0.05 s"):
            await pods.list()
        kubelet.pods_answer.release()
        assert len(await pods.list()) == 1


async def test_a_stopped_kubelet_is_unreachable(kubelet: Kubelet, pods: KubeletPods) -> None:
    await kubelet.stop()
    with pytest.raises(Unreachable, match="Connect call failed"):
        await pods.list()


async def test_an_unreadable_token_is_unreachable(kubelet: Kubelet) -> None:
    async def unreadable() -> Mapping[str, str]:
        raise PermissionError("token: permission denied")

    async with KubeletPods(lambda: kubelet.pods_url, unreadable, ANYBODY) as pods:
        with pytest.raises(Unreachable, match="permission denied"):
            await pods.list()


async def test_it_is_unreachable_before_it_is_opened(kubelet: Kubelet) -> None:
    with pytest.raises(Unreachable, match="not open"):
        await KubeletPods(lambda: kubelet.pods_url, identified, ANYBODY).list()


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[str]:
    """A kubelet with this answer."""

    async def pods(_request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_get("/pods", pods)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/pods"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"Unauthorized",
        b"[]",
        b'{"items": {}}',
        b'{"items": [{"metadata": 5}]}',
        b'{"items": [{"metadata": {"name": "\xff"}}]}',
        b'{"items": [{"metadata": {"name": "a"',
        b'{"items": [{"x": ' + b"[" * 100_000,
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_an_answer_other_than_a_list_of_pods_is_unreachable(body: bytes) -> None:
    async with answering(body) as url, KubeletPods(lambda: url, identified, ANYBODY) as pods:
        with pytest.raises(Unreachable, match=url):
            await pods.list()


@pytest.mark.parametrize(
    ("address", "url"),
    [("10.0.0.5", "https://10.0.0.5:10250/pods"), ("fd00::1", "https://[fd00::1]:10250/pods")],
)
async def test_the_pods_url_has_an_ipv4_or_ipv6_address(address: str, url: str) -> None:
    plugin = Plugin(Settings(node_name=NODE, driver="simulated", host_ip=address))
    assert plugin._kubelet_pods_url() == url


async def test_an_empty_list_may_be_null() -> None:
    async with answering(b'{"items": null}') as url, KubeletPods(lambda: url, identified, ANYBODY) as pods:
        assert await pods.list() == []


async def test_a_list_that_would_fill_the_memory_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods_api, "MOST_BYTES", 1_000_000)
    for spaces, is_read in ((1_000_000, False), (900_000, True)):
        body = b'{"items": [' + b" " * spaces + b"]}"
        async with answering(body) as url, KubeletPods(lambda url=url: url, identified, ANYBODY) as pods:  # type: ignore[misc]  # bound
            if is_read:
                assert await pods.list() == []
            else:
                with pytest.raises(Unreachable, match="answers with more than 0 MiB"):
                    await pods.list()
