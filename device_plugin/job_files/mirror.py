"""Mirrors ``reset-config-<job>`` and ``data-trace-<job>`` of the jobs that have a pod on this node.

MindCluster writes these ConfigMaps, and training frameworks that recover within the container read them as files of
the node (docs/spec/job-files.md). Each ConfigMap is watched by itself, as the kubelet does for those that pods mount:
a watch of all of them would bring every job's changes to every node.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import structlog

from ascend.daemon.observable import Observable, wait_for_change
from ascend.job_files import RESET, RESET_CONFIG, RESTART_TYPE
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, ConfigMap
from ascend.kube.reflector import Reflector
from ascend.rate_limiters import Backoff
from device_plugin.job_files.folder import MirroredFolder
from device_plugin.ledger.node_pods import NodePods

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LABEL_SELECTOR = "reset=true"
"""The label of the ConfigMaps that are mirrored (docs/spec/job-files.md#configmaps)."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of ConfigMap: its name's prefix, and the keys that become files, in the order of writing."""

    prefix: str
    keys: tuple[str, ...]


# A framework that finds a new reset.json reads restartType next.
_RESET = _Kind(RESET_CONFIG, (RESTART_TYPE, RESET))
_DATA_TRACE = _Kind("data-trace-", ("profilingSwitch",))
_NAME = re.compile(r"[a-z0-9-]+\.(?:reset-config|data-trace)-.+")

_Job = tuple[str, str]
"""The namespace and name of a job."""


class _NoData(Enum):
    """What a folder shall be while there is no ConfigMap to mirror."""

    REMOVED = 0
    MADE = 1  # whatever is in it: the ConfigMap has not been read yet


class _Wanted:
    """What each folder shall contain."""

    def __init__(self) -> None:
        self._contents: dict[MirroredFolder, Mapping[str, str] | _NoData] = {}
        self.changes: Observable[None] = Observable(None)

    def __iter__(self) -> Iterator[tuple[MirroredFolder, Mapping[str, str] | _NoData]]:
        return iter(tuple(self._contents.items()))

    def put(self, folder: MirroredFolder, content: Mapping[str, str] | _NoData) -> None:
        self._contents[folder] = content
        self.changes.set(None)

    def forget_removed(self, folder: MirroredFolder) -> None:
        if self._contents[folder] is _NoData.REMOVED:
            del self._contents[folder]


class _Source:
    """Passes on the data of the ConfigMap that is mirrored to a folder; the handler of the watch."""

    def __init__(self, folder: MirroredFolder, wanted: _Wanted) -> None:
        self._folder = folder
        self._wanted = wanted

    def on_apply(self, obj: ConfigMap) -> None:
        self._wanted.put(self._folder, obj.data)

    def on_delete(self, obj: ConfigMap) -> None:  # noqa: ARG002 - a handler's signature
        self._wanted.put(self._folder, {})


class JobFiles:
    """Keeps the folders of the node's jobs as their ConfigMaps are.

    The folders of a job exist while one of its pods with chips is on the node and has not ended. They stay while the
    plugin is away; folders of jobs that ended meanwhile are removed at the next start.

    Args:
        client: the API server.
        pods: the node's pods, already listed.
        reset_config_dir: the folder for ``reset-config-<job>``.
        data_trace_dir: the folder for ``data-trace-<job>``.
    """

    def __init__(self, client: KubeClient, pods: NodePods, *, reset_config_dir: Path, data_trace_dir: Path) -> None:
        self._client = client
        self._pods = pods
        self._roots = ((reset_config_dir, _RESET), (data_trace_dir, _DATA_TRACE))
        self._wanted = _Wanted()

    async def run(self) -> None:
        """Mirror until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write_folders())
            for folder in await asyncio.to_thread(lambda: tuple(self._folders_with_files())):
                self._wanted.put(folder, _NoData.REMOVED)
            watches: dict[_Job, list[asyncio.Task[None]]] = {}
            while True:
                version = self._pods.changes.version
                jobs = {(pod.namespace, pod.job_name) for pod in self._pods if pod.live and pod.count and pod.job_name}
                for job in watches.keys() - jobs:
                    for watch in watches.pop(job):
                        watch.cancel()
                    for _, folder in self._sources(job):
                        self._wanted.put(folder, _NoData.REMOVED)
                for job in jobs - watches.keys():
                    watches[job] = []
                    for config_map, folder in self._sources(job):
                        # Before any other task runs: it must not be removed as one of a job that ended.
                        self._wanted.put(folder, _NoData.MADE)
                        watches[job].append(tasks.create_task(self._follow(job, config_map, folder)))
                await self._pods.changes.newer_than(version)

    def _sources(self, job: _Job) -> Iterator[tuple[str, MirroredFolder]]:
        """Yield the name of each ConfigMap of a job, with its folder."""
        namespace, name = job
        for root, kind in self._roots:
            config_map = f"{kind.prefix}{name}"
            yield config_map, MirroredFolder(root, f"{namespace}.{config_map}", kind.keys)

    async def _follow(self, job: _Job, config_map: str, folder: MirroredFolder) -> None:
        """Watch one ConfigMap until cancelled."""
        watch = Reflector(
            self._client,
            CONFIG_MAPS,
            _Source(folder, self._wanted),
            namespace=job[0],
            label_selector=LABEL_SELECTOR,
            field_selector=f"metadata.name={config_map}",
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run())
            await watch.synced.wait()
            if not watch.objects:
                self._wanted.put(folder, {})

    def _folders_with_files(self) -> Iterator[MirroredFolder]:
        """Yield the folders an earlier plugin has written files to; empty ones can be an operator's."""
        for root, kind in self._roots:
            try:
                names = [path.name for path in root.iterdir()]
            except OSError:
                continue
            for name in names:
                folder = MirroredFolder(root, name, kind.keys)
                if _NAME.fullmatch(name) and folder.has_files():
                    yield folder

    async def _write_folders(self) -> None:
        """Write changed folders in order, on a thread: a disk that hangs must not stop the plugin."""
        written: dict[MirroredFolder, Mapping[str, str] | _NoData] = {}
        problems: dict[MirroredFolder, str] = {}
        backoff = Backoff()
        while True:
            version = self._wanted.changes.version
            failed = False
            for folder, content in self._wanted:
                if written.get(folder) == content:
                    continue
                try:
                    await self._write(folder, content)
                except OSError as error:
                    failed = True
                    if problems.get(folder) != str(error):
                        log.warning("can't mirror a ConfigMap; retrying", folder=str(folder), error=str(error))
                    problems[folder] = str(error)
                    continue
                problems.pop(folder, None)
                written[folder] = content
                if content is _NoData.REMOVED:
                    del written[folder]
                    self._wanted.forget_removed(folder)
            if not failed:
                backoff.reset()
            await wait_for_change((self._wanted.changes,), (version,), within_s=backoff.next_s() if failed else None)

    async def _write(self, folder: MirroredFolder, content: Mapping[str, str] | _NoData) -> None:
        if content is _NoData.REMOVED:
            if not await asyncio.to_thread(folder.remove):
                log.info("a folder of a job that ended is kept: it has other files", folder=str(folder))
        elif content is _NoData.MADE:
            await asyncio.to_thread(folder.make)
        elif await asyncio.to_thread(folder.write, content):
            log.info("mirrored a ConfigMap", folder=str(folder), files=sorted(content.keys() & folder.keys))
