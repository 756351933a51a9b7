"""The local copy stays true, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import pod


class Story:
    """A handler that remembers what it was told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def applied(self, obj: Pod) -> None:
        self._tell("applied", obj)

    def deleted(self, obj: Pod) -> None:
        self._tell("deleted", obj)

    def _tell(self, what: str, obj: Pod) -> None:
        self.told.append((what, obj.name))
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def following(client: KubeClient, story: Story, **arguments: object) -> AsyncIterator[Reflector[Pod]]:
    reflector = Reflector(client, PODS, story, **arguments)  # type: ignore[arg-type]  # the reflector's own
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(20):
            await reflector.synced.wait()
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_lists_then_follows(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("old"))
    story = Story()
    async with following(client, story) as reflector:
        assert set(reflector.objects) == {"default/old"}
        await server.create(pod("new"))
        await story.until(lambda: ("applied", "new") in story.told)
        await client.delete(PODS, "old", "default")
        await story.until(lambda: ("deleted", "old") in story.told)
        assert set(reflector.objects) == {"default/new"}


async def test_a_list_comes_in_pages(server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.kube.reflector.PAGE_SIZE", 3)
    for number in range(10):
        await server.create(pod(f"p{number}"))
    async with following(client, Story()) as reflector:
        assert len(reflector.objects) == 10


async def test_only_what_the_selectors_match_is_followed(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("elsewhere"))
    on_n1 = pod("here")
    on_n1["spec"]["nodeName"] = "n1"
    await server.create(on_n1)
    story = Story()
    async with following(client, story, field_selector="spec.nodeName=n1") as reflector:
        assert set(reflector.objects) == {"default/here"}
        elsewhere = await client.get(PODS, "elsewhere", "default")
        await client.bind(namespace="default", name="elsewhere", uid=elsewhere.uid, node="n1", annotations={})
        await story.until(lambda: ("applied", "elsewhere") in story.told)


async def test_a_dropped_connection_loses_nothing_and_repeats_nothing(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("first"))
    story = Story()
    async with following(client, story) as reflector:
        for number in range(5):
            await server.watches.wait_for_count(1)
            server.drop_watches()
            await server.create(pod(f"after-{number}"))
            await story.until(lambda number=number: ("applied", f"after-{number}") in story.told)  # type: ignore[misc]
        assert len(story.told) == len(set(story.told)) == len(reflector.objects) == 6


async def test_a_half_open_connection_is_given_up_and_resumed(server: ApiServer, client: KubeClient) -> None:
    story = Story()
    async with following(client, story, idle_timeout_s=0.2):
        await server.watches.wait_for_count(1)
        server.pause_watches()
        await server.create(pod("unseen"))
        server.resume_watches()
        await story.until(lambda: ("applied", "unseen") in story.told)


async def test_a_silent_connection_does_not_hide_changes(server: ApiServer, client: KubeClient) -> None:
    story = Story()
    async with following(client, story, idle_timeout_s=0.2):
        await server.watches.wait_for_count(1)
        server.pause_watches()
        await server.create(pod("unseen"))
        await server.watches.wait_for_count(0)  # given up by the client
        server.resume_watches()
        await story.until(lambda: ("applied", "unseen") in story.told)


async def test_after_expired_history_what_disappeared_is_told_as_deleted(server: ApiServer, client: KubeClient) -> None:
    for name in ("stays", "goes", "again"):
        await server.create(pod(name))
    story = Story()
    async with following(client, story) as reflector:
        await server.watches.wait_for_count(1)
        uid = reflector.objects["default/again"].uid
        server.fail_next("GET", "watch=true", 500, times=2)
        server.drop_watches()
        await client.delete(PODS, "goes", "default")
        await client.delete(PODS, "again", "default")
        await server.create(pod("again"))
        server.compact()
        await story.until(lambda: ("deleted", "goes") in story.told)
        await story.until(lambda: story.told.count(("applied", "again")) == 2)
        assert story.told.index(("deleted", "again")) < len(story.told) - 1
        assert set(reflector.objects) == {"default/stays", "default/again"}
        assert reflector.objects["default/again"].uid != uid
        assert story.told.count(("applied", "stays")) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_server_in_trouble_is_asked_again(server: ApiServer, client: KubeClient, status: int) -> None:
    server.fail_next("GET", "/pods", status, times=2, retry_after_s=0)
    await server.create(pod("one"))
    async with following(client, Story()) as reflector:
        assert set(reflector.objects) == {"default/one"}


async def test_an_object_that_cannot_be_read_does_not_hide_the_others(server: ApiServer, client: KubeClient) -> None:
    odd = pod("odd")
    odd["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1}}  # a number, as an admission webhook may leave it
    await server.create(odd)
    await server.create(pod("fine"))
    async with following(client, Story()) as reflector:
        assert "default/fine" in reflector.objects


async def test_the_age_tells_how_long_the_server_was_not_heard_of(server: ApiServer, client: KubeClient) -> None:
    now_s = 100.0
    reflector = Reflector(client, PODS, monotonic=lambda: now_s)
    assert reflector.age_s is None
    task = asyncio.create_task(reflector.run())
    await reflector.synced.wait()
    await server.watches.wait_for_count(1)
    now_s = 107.0
    assert reflector.age_s == pytest.approx(7.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_refresh_shows_what_a_watch_that_hangs_did_not(server: ApiServer, client: KubeClient) -> None:
    story = Story()
    async with following(client, story) as reflector:
        server.pause_watches()
        await server.create(pod("new"))
        await asyncio.gather(reflector.refresh(), reflector.refresh())
        assert set(reflector.objects) == {"default/new"}
        server.resume_watches()
        await server.create(pod("newer"))
        await story.until(lambda: ("applied", "newer") in story.told)
        assert story.told == [("applied", "new"), ("applied", "newer")]


async def test_refreshes_that_are_asked_for_one_after_the_other_are_all_served(
    server: ApiServer, client: KubeClient
) -> None:
    async with following(client, Story()) as reflector:
        server.pause_watches()
        await server.create(pod("new"))
        refreshes = []
        for _turn in range(20):
            refreshes.append(asyncio.create_task(reflector.refresh()))
            await asyncio.sleep(0)
        await asyncio.gather(*refreshes)
        assert set(reflector.objects) == {"default/new"}


async def test_a_refresh_does_not_sit_out_the_wait_after_a_failure(server: ApiServer, client: KubeClient) -> None:
    server.fail_next("GET", "limit=", 503, retry_after_s=3600)
    reflector = Reflector(client, PODS)
    task = asyncio.create_task(reflector.run())
    async with asyncio.timeout(20):
        while reflector._pause is None:  # noqa: ASYNC110 - nobody announces it
            await asyncio.sleep(0.001)
        assert not reflector.synced.is_set()
        await reflector.refresh()
    assert reflector.synced.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_refresh_waits_until_the_server_answers_again(server: ApiServer, client: KubeClient) -> None:
    async with following(client, Story()) as reflector:
        server.fail_next("GET", "limit=", 500, times=2)
        await server.create(pod("new"))
        await reflector.refresh()
        assert set(reflector.objects) == {"default/new"}
