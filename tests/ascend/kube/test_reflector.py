"""The reflector's copy is correct, whatever happens to the connection."""

import asyncio
import functools
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod
from ascend.kube.reflector import Reflector
from ascend.rate_limiters import Backoff
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import pod

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed requests are retried soon."""
    monkeypatch.setattr("ascend.kube.reflector.Backoff", functools.partial(Backoff, 0.005))


class RecordingHandler:
    """A handler that records its calls, and lets a test wait for them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def on_apply(self, obj: Pod) -> None:
        self._record("applied", obj)

    def on_delete(self, obj: Pod) -> None:
        self._record("deleted", obj)

    def _record(self, what: str, obj: Pod) -> None:
        self.calls.append((what, obj.name))
        self._more.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def watching(client: KubeClient, handler: RecordingHandler, **arguments: object) -> AsyncIterator[Reflector[Pod]]:
    reflector = Reflector(client, PODS, handler, **arguments)  # type: ignore[arg-type]  # those of the reflector
    task = asyncio.create_task(reflector.run())
    try:
        async with asyncio.timeout(20):
            await reflector.synced.wait()
        yield reflector
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_lists_and_then_watches(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("old"))
    handler = RecordingHandler()
    async with watching(client, handler) as reflector:
        assert set(reflector.objects) == {"default/old"}
        await server.create(pod("new"))
        await handler.until(lambda: ("applied", "new") in handler.calls)
        await client.delete(PODS, "old", "default")
        await handler.until(lambda: ("deleted", "old") in handler.calls)
        assert set(reflector.objects) == {"default/new"}


async def test_a_list_is_read_in_pages(server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.kube.client.PAGE_SIZE", 3)
    for number in range(10):
        await server.create(pod(f"p{number}"))
    async with watching(client, RecordingHandler()) as reflector:
        assert len(reflector.objects) == 10


async def test_a_page_of_large_objects_is_read_in_parts(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascend.kube.client.PAGE_BYTES", 20_000)
    for number in range(20):
        await server.create(pod(f"thin{number}"))
        await server.create(pod(f"fat{number}", other="x" * 9_000))
    await server.create(pod("larger", other="x" * 50_000))
    answers: list[int] = []
    request = client.request

    async def recorded(*arguments: Any, **options: Any) -> bytes:
        answers.append(len(body := await request(*arguments, **options)))
        return body

    monkeypatch.setattr(client, "request", recorded)
    async with watching(client, RecordingHandler()) as reflector:
        assert len(reflector.objects) == 41
    # Only an object that is larger itself, and is asked for alone.
    assert [size for size in answers if size > 20_000] == [pytest.approx(50_000, abs=2_000)]


async def test_pages_of_large_objects_have_fewer_of_them(
    server: ApiServer, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ascend.kube.client.PAGE_SIZE", 12)
    monkeypatch.setattr("ascend.kube.client._TURN_BYTES", 40_000)
    for number in range(40):
        await server.create(pod(f"p{number}", other="x" * 9_000))
    answers: list[int] = []
    request = client.request

    async def recorded(*arguments: Any, **options: Any) -> bytes:
        answers.append(len(body := await request(*arguments, **options)))
        return body

    monkeypatch.setattr(client, "request", recorded)
    async with watching(client, RecordingHandler()) as reflector:
        assert len(reflector.objects) == 40
    assert len(answers) > 9
    assert max(answers) < 50_000


async def test_only_objects_that_match_the_selectors_are_watched(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("elsewhere"))
    on_n1 = pod("here")
    on_n1["spec"]["nodeName"] = "n1"
    await server.create(on_n1)
    handler = RecordingHandler()
    async with watching(client, handler, field_selector="spec.nodeName=n1") as reflector:
        assert set(reflector.objects) == {"default/here"}
        elsewhere = await client.get(PODS, "elsewhere", "default")
        await client.bind(namespace="default", name="elsewhere", uid=elsewhere.uid, node="n1", annotations={})
        await handler.until(lambda: ("applied", "elsewhere") in handler.calls)


async def test_a_dropped_watch_loses_and_repeats_nothing(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("first"))
    handler = RecordingHandler()
    async with watching(client, handler) as reflector:
        for number in range(5):
            await server.watches.wait_for_count(1)
            server.drop_watches()
            await server.create(pod(f"after-{number}"))
            await handler.until(lambda number=number: ("applied", f"after-{number}") in handler.calls)  # type: ignore[misc]
        assert len(handler.calls) == len(set(handler.calls)) == len(reflector.objects) == 6


async def test_a_half_open_watch_is_resumed(server: ApiServer, client: KubeClient) -> None:
    handler = RecordingHandler()
    async with watching(client, handler, idle_timeout_s=0.1):
        await server.watches.wait_for_count(1)
        server.pause_watches()
        await server.create(pod("unseen"))
        server.resume_watches()
        await handler.until(lambda: ("applied", "unseen") in handler.calls)


async def test_a_silent_watch_is_replaced(server: ApiServer, client: KubeClient) -> None:
    handler = RecordingHandler()
    async with watching(client, handler, idle_timeout_s=0.1):
        await server.watches.wait_for_count(1)
        server.pause_watches()
        await server.create(pod("unseen"))
        await server.watches.wait_for_count(0)  # closed by the client
        server.resume_watches()
        await handler.until(lambda: ("applied", "unseen") in handler.calls)


async def test_after_expired_history_missing_objects_are_deleted(server: ApiServer, client: KubeClient) -> None:
    for name in ("stays", "goes", "again"):
        await server.create(pod(name))
    handler = RecordingHandler()
    async with watching(client, handler) as reflector:
        await server.watches.wait_for_count(1)
        uid = reflector.objects["default/again"].uid
        server.fail_next("GET", "watch=true", 500, times=2)
        server.drop_watches()
        await client.delete(PODS, "goes", "default")
        await client.delete(PODS, "again", "default")
        await server.create(pod("again"))
        server.compact()
        await handler.until(lambda: ("deleted", "goes") in handler.calls)
        await handler.until(lambda: handler.calls.count(("applied", "again")) == 2)
        assert handler.calls.index(("deleted", "again")) < len(handler.calls) - 1
        assert set(reflector.objects) == {"default/stays", "default/again"}
        assert reflector.objects["default/again"].uid != uid
        assert handler.calls.count(("applied", "stays")) == 1


class UnkeptPods:
    """The pods whose annotation ``app`` is "no" are not kept."""

    def __init__(self, calls: list[tuple[str, str]]) -> None:
        self._calls = calls

    def unkept(self, obj: Pod, /) -> bool:
        return obj.metadata.annotations.get("app") == "no"

    def list_started(self) -> None:
        self._calls.append(("list", "started"))

    def list_ended(self) -> None:
        self._calls.append(("list", "ended"))


async def test_of_unkept_objects_the_handler_gets_every_change_and_list(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("kept"))
    await server.create(pod("unkept", app="no"))
    handler = RecordingHandler()
    calls = handler.calls
    async with watching(client, handler, unkept=UnkeptPods(calls)) as reflector:
        assert calls == [("list", "started"), ("applied", "unkept"), ("applied", "kept"), ("list", "ended")]
        assert set(reflector.objects) == {"default/kept"}
        calls.clear()
        await reflector.refresh()
        assert calls == [("list", "started"), ("applied", "unkept"), ("list", "ended")]
        await server.watches.wait_for_count(1)
        calls.clear()
        await client.delete(PODS, "unkept", "default")
        await handler.until(lambda: ("deleted", "unkept") in calls)


async def test_an_object_may_become_unkept_and_kept_again(server: ApiServer, client: KubeClient) -> None:
    await server.create(pod("changes"))
    handler = RecordingHandler()
    async with watching(client, handler, unkept=UnkeptPods([])) as reflector:
        await server.watches.wait_for_count(1)
        for times, (value, kept) in enumerate((("no", False), ("yes", True), ("no", False)), start=2):
            body = {"metadata": {"annotations": {"app": value}}}
            await client.patch(PODS, "changes", body, namespace="default")
            await handler.until(lambda times=times: len(handler.calls) == times)  # type: ignore[misc]  # bound
            assert bool(reflector.objects) is kept
        await client.delete(PODS, "changes", "default")
        await handler.until(lambda: handler.calls[-1][0] == "deleted")
        assert handler.calls.count(("deleted", "changes")) == 1


@pytest.mark.parametrize("recreated", ["no", "yes"])
async def test_a_list_shows_an_unkept_object_deleted_and_created_again(
    server: ApiServer, client: KubeClient, recreated: str
) -> None:
    await server.create(pod("again"))
    handler = RecordingHandler()
    async with watching(client, handler, unkept=UnkeptPods([])) as reflector:
        await server.watches.wait_for_count(1)
        server.pause_watches()
        await client.delete(PODS, "again", "default")
        await server.create(pod("again", app=recreated))
        await reflector.refresh()
        assert handler.calls == [("applied", "again"), ("deleted", "again"), ("applied", "again")]
        assert bool(reflector.objects) is (recreated == "yes")


async def test_other_tasks_run_while_a_long_list_is_applied(server: ApiServer, client: KubeClient) -> None:
    count = 3_000
    for number in range(count):
        await server.create(pod(f"p{number}"))
    seen: list[int] = []
    handler = RecordingHandler()

    async def look() -> None:
        while len(handler.calls) < count:
            seen.append(len(handler.calls))
            await asyncio.sleep(0)

    looking = asyncio.create_task(look())
    handler.on_apply = lambda obj: (time.sleep(0.0001), handler.calls.append(("applied", obj.name)))  # type: ignore[method-assign, assignment, func-returns-value]  # slow, as a large cluster's state
    async with watching(client, handler):
        await looking
    turns = [after - before for before, after in itertools.pairwise(seen)]
    assert 0 < max(turns) < count / 10


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_failed_list_is_retried(server: ApiServer, client: KubeClient, status: int) -> None:
    server.fail_next("GET", "/pods", status, times=2, retry_after_s=0)
    await server.create(pod("one"))
    async with watching(client, RecordingHandler()) as reflector:
        assert set(reflector.objects) == {"default/one"}


async def test_an_unreadable_object_does_not_hide_the_others(
    server: ApiServer, client: KubeClient, caplog: pytest.LogCaptureFixture
) -> None:
    odd = pod("odd")
    odd["spec"]["containers"][0]["resources"] = {"limits": {"cpu": 1}}  # a number, as an admission webhook may leave it
    await server.create(odd)
    await server.create(pod("fine"))
    async with watching(client, RecordingHandler()) as reflector:
        assert "default/fine" in reflector.objects
    (logged,) = (each for each in caplog.records if each.message == "ignoring an object")
    assert vars(logged)["object"].startswith('{"')


async def test_the_age_is_the_time_since_the_server_was_heard_from(server: ApiServer, client: KubeClient) -> None:
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


async def test_a_refresh_shows_what_a_hanging_watch_did_not(server: ApiServer, client: KubeClient) -> None:
    handler = RecordingHandler()
    async with watching(client, handler) as reflector:
        server.pause_watches()
        await server.create(pod("new"))
        await asyncio.gather(reflector.refresh(), reflector.refresh())
        assert set(reflector.objects) == {"default/new"}
        server.resume_watches()
        await server.create(pod("newer"))
        await handler.until(lambda: ("applied", "newer") in handler.calls)
        assert handler.calls == [("applied", "new"), ("applied", "newer")]


async def test_concurrent_refreshes_are_all_served(server: ApiServer, client: KubeClient) -> None:
    async with watching(client, RecordingHandler()) as reflector:
        server.pause_watches()
        await server.create(pod("new"))
        refreshes = []
        for _turn in range(20):
            refreshes.append(asyncio.create_task(reflector.refresh()))
            await asyncio.sleep(0)
        await asyncio.gather(*refreshes)
        assert set(reflector.objects) == {"default/new"}


async def test_a_refresh_interrupts_the_backoff(server: ApiServer, client: KubeClient) -> None:
    server.fail_next("GET", "limit=", 503, retry_after_s=3600)
    reflector = Reflector(client, PODS)
    task = asyncio.create_task(reflector.run())
    async with asyncio.timeout(20):
        while reflector._pause is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.001)
        assert not reflector.synced.is_set()
        await reflector.refresh()
    assert reflector.synced.is_set()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_refresh_waits_until_the_server_answers(server: ApiServer, client: KubeClient) -> None:
    async with watching(client, RecordingHandler()) as reflector:
        server.fail_next("GET", "limit=", 500, times=2)
        await server.create(pod("new"))
        await reflector.refresh()
        assert set(reflector.objects) == {"default/new"}


@pytest.mark.parametrize("is_told", [False, True])
async def test_an_object_that_becomes_unreadable_is_as_deleted_for_who_is_told_why(
    server: ApiServer, client: KubeClient, *, is_told: bool
) -> None:
    told: list[tuple[str, str]] = []
    handler = RecordingHandler()
    given = {"unreadable": lambda obj, why: told.append((obj.name, why))} if is_told else {}
    path = PODS.path(namespace="default", name="odd")
    async with watching(client, handler, **given) as reflector:
        await server.create(pod("odd"))
        await handler.until(lambda: ("applied", "odd") in handler.calls)
        odd = {"metadata": {"annotations": {"a": "b"}}, "status": {"phase": ["odd"]}}
        await client.request("PATCH", f"{path}/status", body=odd, content_type="application/merge-patch+json")
        await server.create(pod("later"))
        await handler.until(lambda: ("applied", "later") in handler.calls)
        assert ("default/odd" in reflector.objects, ("deleted", "odd") in handler.calls) == (not is_told, is_told)
        await client.request("DELETE", f"{path}?gracePeriodSeconds=0")
        await server.create(pod("last"))
        await handler.until(lambda: ("applied", "last") in handler.calls)
        assert set(reflector.objects) == {"default/later", "default/last"}
        assert handler.calls.count(("deleted", "odd")) == 1
    if is_told:
        assert {name for name, _ in told} == {"odd"}
        assert (bool(told[0][1]), told[-1][1]) == (True, "")
