"""What is recorded of a cluster as it changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from ascend.deviceinfo import LABELS, NAMESPACE
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS
from npuctl.history.intervals import MOST_TEXT, OPEN, IntervalKind
from npuctl.history.reader import HistoryReader
from npuctl.history.store import HistoryStore
from npuctl.reading.source import Source
from npuctl.web.hub import Hub
from npuctl.web.live import LiveCluster
from npuctl.web.recorder import HistoryRecorder
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig
from tests.npuctl.manifests import node, pod, report

START = 1_767_225_600
"""When the report of a node is made."""


class RecordedCluster:
    """A cluster with a recorder, whose clock the test turns."""

    def __init__(self, server: ApiServer, client: KubeClient, path: Path) -> None:
        self.server = server
        self.client = client
        self.path = path
        self.live = LiveCluster(Source.of(now="2026-01-01T00:00:00Z"))
        self.hub = Hub(self.live)
        self.store = HistoryStore(path)
        self.recorder = HistoryRecorder(self.hub, self.store)
        self._changed = asyncio.Event()

    def on_changed(self, names: list[str]) -> None:
        self.hub.on_changed(names)
        self._changed.set()

    @asynccontextmanager
    async def change(self, second: int) -> AsyncIterator[None]:
        """Record so many seconds after the start what has become of a change."""
        self._changed.clear()
        yield
        async with asyncio.timeout(20):
            await self._changed.wait()
        await self.record(second)

    async def create(self, second: int, made: dict[str, Any]) -> None:
        async with self.change(second):
            await self.server.create(made)

    async def delete(self, second: int, name: str) -> None:
        async with self.change(second):
            await self.client.delete(PODS, name, "default", grace_s=0)

    async def record(self, second: int) -> None:
        self.live.source = replace(self.live.source, now_ns=(START + second) * 10**9)
        self.hub.waiting = await self.hub.answers.waiting()
        self.recorder.on_waiting()
        await self.recorder.record()

    def of(self, job: str) -> list[tuple[Any, ...]]:
        """What is known of a job: kind, begin and end, where, and its state."""
        return [
            (
                each.key.kind,
                each.began - START,
                None if each.ended == OPEN else each.ended - START,
                each.key.node,
                msgspec.json.decode(each.state.state) if each.key.kind is IntervalKind.WAITS else each.state.state,
            )
            for each in HistoryReader(self.path).of_job(job, 0)
        ]


@asynccontextmanager
async def recording(server: ApiServer, folder: Path) -> AsyncIterator[RecordedCluster]:
    async with await KubeClient.connect(str(write_kubeconfig(folder, server, "secret"))) as client:
        cluster = RecordedCluster(server, client, folder / "history.db")
        followed = asyncio.create_task(cluster.live.run(client, cluster.on_changed))
        async with asyncio.timeout(20):
            await cluster._changed.wait()
        try:
            yield cluster
        finally:
            followed.cancel()
            await asyncio.gather(followed, return_exceptions=True)
            cluster.store.close()


def labelled(name: str, **given: Any) -> dict[str, Any]:
    made = report(name, **given)
    made["metadata"]["labels"] = dict(LABELS)
    return made


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(tokens=TOKENS) as running:
        for made in (node("n1"), labelled("n1"), node("n2"), labelled("n2")):
            await running.create(made)
        yield running


def running(name: str, on: str, chips: int) -> dict[str, Any]:
    return pod(name, str(chips), node=on, chips=range(chips), uid=f"uid-{name}")


def waiting(name: str, chips: int) -> dict[str, Any]:
    return pod(name, str(chips), uid=f"uid-{name}")


async def test_why_a_job_waited_behind_whom_and_where_it_ran(server: ApiServer, tmp_path: Path) -> None:
    async with recording(server, tmp_path) as cluster:
        await cluster.create(0, running("all", "n1", 8))
        await cluster.create(10, running("half", "n2", 4))
        await cluster.create(20, waiting("first", 8))
        await cluster.create(30, waiting("train", 8))
        await cluster.delete(40, "all")
        await cluster.delete(50, "first")  # a third reason so soon is not recorded
        await cluster.delete(60, "train")
        await cluster.create(70, running("train", "n1", 8))
        async with cluster.change(80):
            broken = labelled("n1", unhealthy=0b100)
            await cluster.client.patch(CONFIG_MAPS, broken["metadata"]["name"], broken, namespace=NAMESPACE)
        await cluster.delete(90, "train")
        assert cluster.of("default/train") == [
            (IntervalKind.WAITS, 30, 40, "", ["chips", "NotEnoughChips", []]),
            (
                IntervalKind.WAITS,
                40,
                60,
                "",
                ["behind", "NotEnoughChips", ["default/first"]],
            ),
            (IntervalKind.RUNS, 70, 90, "n1", "0,1,2,3,4,5,6,7"),
            (IntervalKind.FAULT, 80, None, "n1", "unhealthy"),
        ]


async def test_what_users_write_is_kept_in_part_and_without_control_characters(
    server: ApiServer, tmp_path: Path
) -> None:
    async with recording(server, tmp_path) as cluster:
        odd = waiting("odd", 8)
        odd["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "\x1b]" + "x" * 10_000}
        await cluster.create(0, odd)
        (waits,) = [
            interval for interval in HistoryReader(cluster.path).at(START) if interval.key.kind is IntervalKind.WAITS
        ]
        assert len(waits.key.job) < MOST_TEXT
        assert waits.key.job.startswith("default/\\x1b]xxx")
        assert len(waits.state.detail) < 3 * MOST_TEXT


async def test_trouble_is_told_once_and_costs_only_what_came_meanwhile(
    server: ApiServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.db").write_text("something else")
    async with recording(server, tmp_path) as cluster:
        await cluster.create(0, running("all", "n1", 8))
        await cluster.record(10)
        assert cluster.recorder.trouble.endswith("history.db: the file is something else")
        assert capsys.readouterr().err == f"npuctl web: {cluster.recorder.trouble}\n"
        (tmp_path / "history.db").unlink()
        await cluster.record(20)
        assert cluster.recorder.trouble == ""
        assert cluster.of("default/all") == [(IntervalKind.RUNS, 20, None, "n1", "0,1,2,3,4,5,6,7")]
