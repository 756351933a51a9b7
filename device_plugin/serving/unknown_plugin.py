"""Notices that a device plugin other than MindCluster's has registered the same resource.

Its socket can have any name, and the kubelet tells nobody that another plugin has registered. But it counts the
registrations of a resource: those that this plugin has not made are another one's. The count is read after the kubelet
has written its checkpoint, which it does for every list of devices; between that a look at the file is all. A plugin
that the kubelet's plugin watcher has found is not counted: it is asked itself (``watched_plugins``).

The kubelet calls the plugin that registered last, and both lists of devices count. Up to 1.36 the end of either stream
makes all devices unhealthy for good, and neither plugin is told (docs/spec/kubelet.md#registration-race). So this one
does not take the resource back from one that runs, but says so, is not ready and reports no free chips; once the other
one has ended, it registers again; from 1.37 on it stays registered then, and sends its list of devices again. It also
registers again if the kubelet has no healthy devices for any other reason.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from ascend.errors import Unreachable
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.kubelet.pod_resources import count_healthy
from device_plugin.kubelet.pods_api import Registrations
from device_plugin.serving.other_plugin import EVENT, OtherPlugin, accepts_connections, served_on
from device_plugin.serving.plugin_socket import is_own, list_names
from device_plugin.serving.watched_plugins import WatchedPlugins

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHECKPOINT = "kubelet_internal_checkpoint"
LOOK_S = 1.0
READ_S = 5.0
"""The shortest time between two readings of the count: a node with many pods writes its checkpoint all the time."""
RETRY_S = 60.0
"""The time after the second reading in a row that failed: a right may be missing."""
ASK_S = 10.0
"""The time between two looks at the kubelet's devices while no other plugin is known: one may have come and gone."""
SAME_PROCESS_S = 2.0
"""By how much two readings of the start of one process can differ."""


class UnknownPlugin:
    """A foreign plugin for the same resource on this node, if any.

    Args:
        directory: the kubelet's device-plugin folder.
        pod_resources_socket: the kubelet's, which lists its healthy devices.
        registry: the kubelet's folder ``plugins_registry``.
        registrations: reads how often a resource was registered.
        announce: receives a reason (CamelCase), a sentence, and that it is a warning, when there is one.
        device_type: the type of devices that both would serve.
    """

    def __init__(
        self,
        directory: Path,
        pod_resources_socket: Path,
        registry: Path,
        registrations: Callable[[str], Awaitable[Registrations]],
        announce: Callable[[str, str, bool], None],
        *,
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> None:
        self._directory = directory
        self._device_type = device_type
        self._pod_resources_socket = pod_resources_socket
        self._registrations = registrations
        self._watched = WatchedPlugins(registry, device_type.resource)
        self._announce = announce
        self.problem: str | None = None
        """The sentence about the other plugin; None if none is known."""
        self._made = 0
        self._others: int | None = None
        self._kubelet_is_new = False
        self._started_s: float | None = None
        self._seen: object = self
        self._looked_s = self._read_s = self._asked_s = float("-inf")
        self._failed = 0
        self._was_empty = False
        self._mindcluster_registered = False
        self.unknown: str | None = None
        """Why it is not known at present whether there is another plugin, a sentence; None if it is."""

    @property
    def may_let_go(self) -> bool:
        """Whether the kubelet has the plugin of MindCluster that serves, or any other, or can't tell."""
        return self._mindcluster_registered or self.problem is not None or self._failed > 0

    def count_own(self) -> None:
        """Note that this plugin has made a registration that the kubelet has received."""
        self._made += 1

    def forget(self) -> None:
        """Forget what is known of another plugin: its registrations so far don't count any more."""
        self.problem, self._others, self._was_empty = None, None, False
        self._mindcluster_registered = False
        self._seen, self._failed = self, 0
        self._looked_s = self._read_s = float("-inf")
        self._kubelet_is_new = False

    def meet_new_kubelet(self, *, others_count: bool) -> None:
        """Begin anew, because the kubelet seems to have restarted, and no plugin is registered with it yet.

        Args:
            others_count: whether each registration by another plugin is to be noticed.
        """
        self.forget()
        self._made, self._kubelet_is_new = 0, others_count

    async def has_ended(self, *, has_healthy: bool, stays: Callable[[], Awaitable[bool]]) -> bool:
        """Look, at most once in ``LOOK_S``; return whether another plugin has registered, and this one has to again.

        Args:
            has_healthy: whether the list that this plugin has sent has healthy devices.
            stays: called once the other plugin has ended; returns whether this one stays registered.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._looked_s + LOOK_S:
            return False
        self._looked_s = now_s
        try:
            has_ended = await self._look(now_s, has_healthy=has_healthy, stays=stays)
        except (OSError, Unreachable) as error:
            if self.unknown is None:
                log.warning("can't look for other plugins, trying again", error=str(error))
            self.unknown = f"can't look for other plugins: {error}"
            return False
        self.unknown = None
        return has_ended

    async def _look(self, now_s: float, *, has_healthy: bool, stays: Callable[[], Awaitable[bool]]) -> bool:
        if self.problem is None and (watched := await self._watched.serving()):
            self._say(f"socket {' or '.join(watched)}")
        if self.problem is None:
            await self._find(now_s)
        is_gone = self.problem is not None and not [*await self._sockets(), *await self._watched.serving()]
        if not is_gone and not (has_healthy and await self._kubelet_lost_it(now_s)):
            return False
        log.info("the other plugin has ended")
        self.forget()
        return not (is_gone and await stays())

    async def _find(self, now_s: float) -> None:
        wait_s = RETRY_S if self._failed > 1 else READ_S
        checkpoint = _version(self._directory / CHECKPOINT)
        if checkpoint == self._seen or now_s < self._read_s + wait_s:
            return
        self._read_s = now_s
        try:
            found = await self._registrations(self._device_type.resource)
        except Unreachable as error:
            self._failed += 1
            if self._failed == 1:
                log.warning("can't read how often the kubelet's plugins have registered", error=error.message)
            return
        sockets = await self._sockets()  # before the count is noted: if this fails, it is read again
        self._seen, self._failed = checkpoint, 0
        # What others registered before the first reading may have been just now.
        is_first = self._others is None
        has_another = self._has_another(found)
        if not has_another and not is_first:
            return
        if any(served_on(socket) is not None for socket in sockets):
            self._mindcluster_registered = found.total > self._made
        elif has_another:
            self._say(f"{_named(sockets)} in {self._directory}")

    def _say(self, where: str) -> None:
        resource = self._device_type.resource
        self.problem = f"another device plugin has registered {resource} on this node ({where}): remove one of the two"
        log.warning("another plugin has registered the same resource", socket=where)
        self._announce(EVENT, self.problem, True)  # noqa: FBT003 - a warning

    def _has_another(self, found: Registrations) -> bool:
        others = max(found.total - self._made, 0)
        if self._others is None:
            earlier_s = self._started_s
            is_fresh = earlier_s is not None and abs(found.started_s - earlier_s) > SAME_PROCESS_S
            self._others = 0 if self._kubelet_is_new and is_fresh else others
            self._started_s, self._kubelet_is_new = found.started_s, False
        has_another = others > self._others
        self._others = others
        return has_another

    async def _kubelet_lost_it(self, now_s: float) -> bool:
        """Whether the kubelet has no healthy devices, in two looks: the first may be before it has got our list."""
        if self.problem is None and not self._was_empty and now_s < self._asked_s + ASK_S:
            return False
        self._asked_s = now_s
        try:
            is_empty = await count_healthy(self._pod_resources_socket, self._device_type.resource) == 0
        except Unreachable as error:
            log.info("can't read the kubelet's devices", error=error.message)
            is_empty = False
        was_empty, self._was_empty = self._was_empty, is_empty
        return is_empty and was_empty

    async def _sockets(self) -> list[str]:
        """The names of the sockets that others serve in the folder."""
        names = sorted(name for name in list_names(self._directory) if not is_own(name))
        return [name for name in names if await accepts_connections(self._directory / name)]


class OtherPlugins:
    """The other plugins of the resource on this node; the arguments are those of ``UnknownPlugin``."""

    def __init__(
        self,
        directory: Path,
        pod_resources_socket: Path,
        registry: Path,
        registrations: Callable[[str], Awaitable[Registrations]],
        announce: Callable[[str, str, bool], None],
        *,
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> None:
        self.mindcluster = OtherPlugin(directory, announce, device_type)
        self.unknown = UnknownPlugin(
            directory, pod_resources_socket, registry, registrations, announce, device_type=device_type
        )

    @property
    def problem(self) -> str | None:
        """The sentence about another plugin; None if none is known."""
        return self.mindcluster.problem or self.unknown.problem

    @property
    def uncertain(self) -> str | None:
        """Why the search for other plugins failed; None if it did not."""
        return self.mindcluster.unknown or self.unknown.unknown


def _named(sockets: list[str]) -> str:
    return f"socket {' or '.join(sockets)}" if sockets else "its socket is gone"


def _version(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_ino, stat.st_mtime_ns)
