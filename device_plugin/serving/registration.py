"""Keeps the plugin registered with the kubelet, whatever happens to either.

One loop, one registration at a time::

    wait for kubelet.sock ─► serve on a socket of a new name ─► Register ─► watched
            ▲                                                                 │
            └──── stop the server (its streams first) ◄──── one of: ──────────┘
                    another kubelet.sock · our socket is gone · the stream ended or failed · never watched

A new name every time, because a second server on the same path would have its socket unlinked by the first; the old
server stops first, because a kubelet before 1.37 takes the end of an old stream for the end of the new one
(spec/kubernetes.md §1.3, §8.3).
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import structlog

from ascend.chips import RESOURCE
from ascend.errors import Unreachable
from ascend.kube.backoff import Backoff
from device_plugin.kubelet.channel import CHANNEL_OPTIONS, give_way, unreachable
from device_plugin.metrics import Metrics
from device_plugin.serving.servicer import DevicePluginServicer
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
PREFIX = "ascend910-"

REGISTER_DEADLINE_S = 2.0
"""A kubelet registers a plugin within milliseconds. One that is busy is given more time with every attempt."""
REGISTER_DEADLINE_LIMIT_S = 10.0
"""As long as it gives itself to dial back (spec/kubernetes.md §1.3)."""
WATCH_DEADLINE_S = 0.5
"""A kubelet that registered us opens the stream at once. One that does not is given more time with every attempt."""
WATCH_DEADLINE_LIMIT_S = 8.0
STOP_GRACE_S = 0.5
NOT_WATCHED = "the kubelet did not open the stream"
STEADY_S = 10.0
"""A registration that lasted so long was a good one."""
FIRST_WAIT_S = 0.05
WAIT_LIMIT_S = 4.0
"""Between attempts, with a kubelet that stays odd; another kubelet is gone to at once."""


class Registration:
    """The registration state machine.

    Args:
        directory: the kubelet's device-plugin folder.
        make_servicer: makes the service of one registration.
        metrics: counts.
        on_new_kubelet: called before registering with another kubelet than before.
    """

    def __init__(
        self,
        directory: Path,
        make_servicer: Callable[[], DevicePluginServicer],
        metrics: Metrics,
        on_new_kubelet: Callable[[], Awaitable[None]],
    ) -> None:
        self._directory = directory
        self._kubelet_socket = directory / KUBELET_SOCKET
        self._make_servicer = make_servicer
        self._metrics = metrics
        self._on_new_kubelet = on_new_kubelet
        self._generation = 0
        self._watch_deadline_s = WATCH_DEADLINE_S
        self._register_deadline_s = REGISTER_DEADLINE_S
        self.problem: str | None = "not registered with the kubelet yet"
        """Why the kubelet does not see our devices; None while it does."""

    async def run(self) -> None:
        """Stay registered until cancelled. The instance lock is held."""
        loop = asyncio.get_running_loop()
        self._remove_stale_sockets()
        # Two plugins for one resource end each other's streams: without a pause they would do nothing else.
        backoff = Backoff(first_s=FIRST_WAIT_S, limit_s=WAIT_LIMIT_S)
        known: Identity | None = None
        while True:
            give_way()
            if not self._kubelet_socket.exists():
                self.problem = f"waiting for {self._kubelet_socket}"
            kubelet = await present(self._kubelet_socket)
            if known is not None and kubelet != known:
                backoff.reset()
                self._watch_deadline_s = WATCH_DEADLINE_S
                self._register_deadline_s = REGISTER_DEADLINE_S
                await self._on_new_kubelet()
            known, started_s = kubelet, loop.time()
            try:
                cause = await self._hold(kubelet)
            except Unreachable as error:
                cause = error.message
                self._metrics.registrations.labels(result="failed").inc()
            if loop.time() - started_s > STEADY_S:
                backoff.reset()
            wait_s = backoff.next_s()
            self.problem = cause
            log.warning("registering again", cause=cause, wait_s=round(wait_s, 2))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await changed({self._kubelet_socket: kubelet})

    async def _hold(self, kubelet: "Identity") -> str:
        """Register and stay so for as long as it lasts; why it ended."""
        servicer = self._make_servicer()
        async with self._server(servicer) as path:
            files = {self._kubelet_socket: kubelet, path: identity(path)}
            if not await self._registered(path.name, files):
                return "the kubelet has restarted"
            self._metrics.registrations.labels(result="registered").inc()
            log.info("registered", socket=path.name)
            endings = {
                asyncio.ensure_future(changed(files)),
                asyncio.ensure_future(servicer.broken.wait()),
                asyncio.ensure_future(self._unseen(servicer)),
            }
            try:
                await asyncio.wait(endings, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in endings:
                    task.cancel()
                await asyncio.gather(*endings, return_exceptions=True)
            if identity(self._kubelet_socket) != kubelet:
                return "the kubelet has restarted"
            if not path.exists():
                return "our socket is gone"
            return "the stream to the kubelet has ended" if servicer.broken.is_set() else NOT_WATCHED

    async def _unseen(self, servicer: DevicePluginServicer) -> None:
        """Return if the kubelet does not watch in time; otherwise never."""
        try:
            async with asyncio.timeout(self._watch_deadline_s):
                await servicer.opened.wait()
        except TimeoutError:
            self._watch_deadline_s = min(2 * self._watch_deadline_s, WATCH_DEADLINE_LIMIT_S)
            return
        self._watch_deadline_s = WATCH_DEADLINE_S
        await servicer.watched.wait()
        self.problem = None
        await asyncio.Event().wait()

    @asynccontextmanager
    async def _server(self, servicer: DevicePluginServicer) -> AsyncIterator[Path]:
        self._generation += 1
        path = self._directory / f"{PREFIX}{os.getpid()}-{self._generation}.sock"
        server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(servicer, server)
        # The mode of the socket follows the umask; chmod afterwards would leave a window (spec/field.md §4).
        umask = os.umask(0o177)
        try:
            server.add_insecure_port(f"unix://{path}")
        except RuntimeError as error:
            raise Unreachable(f"can't listen on {path}: {error}") from error
        finally:
            os.umask(umask)
        await server.start()
        try:
            yield path
        finally:
            servicer.end_streams()
            await server.stop(STOP_GRACE_S)
            path.unlink(missing_ok=True)

    async def _registered(self, endpoint: str, files: "Mapping[Path, Identity | None]") -> bool:
        """Register; False if the kubelet that was asked is replaced before it has answered."""
        register = asyncio.ensure_future(self._register(endpoint))
        replaced = asyncio.ensure_future(changed(files))
        try:
            await asyncio.wait((register, replaced), return_when=asyncio.FIRST_COMPLETED)
            if not register.done():
                return False
            register.result()
            return True
        finally:
            for task in (register, replaced):
                task.cancel()
            await asyncio.gather(register, replaced, return_exceptions=True)

    async def _register(self, endpoint: str) -> None:
        target = f"unix://{self._kubelet_socket}"
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            request = pb.RegisterRequest(
                version=API_VERSION,
                endpoint=endpoint,
                resource_name=RESOURCE,
                options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
            )
            try:
                await pb_grpc.RegistrationStub(channel).Register(request, timeout=self._register_deadline_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self._register_deadline_s = min(2 * self._register_deadline_s, REGISTER_DEADLINE_LIMIT_S)
                raise unreachable("the kubelet did not register us", error) from error

    def _remove_stale_sockets(self) -> None:
        # The instance lock is ours, so whoever made them is gone.
        for path in self._directory.glob(f"{PREFIX}*.sock"):
            path.unlink(missing_ok=True)


POLL_S = 0.1

Identity = tuple[int, int, int]


def identity(path: Path) -> Identity | None:
    """Device, inode and change time of a file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_ctime_ns)


async def present(path: Path) -> Identity:
    """Wait until there is a file; its identity."""
    while (found := identity(path)) is None:  # noqa: ASYNC110 - nobody tells us of files
        await asyncio.sleep(POLL_S)
    return found


async def changed(known: Mapping[Path, Identity | None]) -> None:
    """Wait until one of these files is another one, or gone. One timer, however many files."""
    while all(before is not None and identity(path) == before for path, before in known.items()):  # noqa: ASYNC110 - nobody tells us of files
        await asyncio.sleep(POLL_S)
