"""The Registration service on kubelet.sock, and the registered plugins (docs/spec/kubelet.md).

The service keeps clients by resource name and follows kubelet ≤ 1.36 (plugin/v1beta1/handler.go) step by step, because
plugins have to handle its bug: if the stream of an old plugin ends after a new one has registered, the kubelet finds
the *new* client under that name and disconnects it. 1.37 distinguishes them.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from sandbox.kubelet.checkpoint import CheckpointFailure, write_checkpoint
from sandbox.kubelet.endpoint import PluginEndpoint, PluginFailure
from sandbox.kubelet.ledger import ResourceLedger
from sandbox.pods import is_extended

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import _ServicerContext

log = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
SOCKET_NAME: Final = "kubelet.sock"


class Plugins(services.RegistrationServicer):
    """The registered plugins.

    Args:
        directory: the directory of the plugins' sockets.
        ledger: receives the devices.
        changed: called after every change of the ledger.
        reregistration_race: behave as kubelet ≤ 1.36.
        dial_timeout_s: how long to wait for a connection to a plugin.
        stop_grace_s: how long a resource is kept after its plugin disconnected.
    """

    def __init__(
        self,
        directory: Path,
        ledger: ResourceLedger,
        changed: Callable[[], None],
        *,
        reregistration_race: bool,
        dial_timeout_s: float,
        stop_grace_s: float,
    ) -> None:
        self._directory = directory
        self._ledger = ledger
        self._changed = changed
        self._reregistration_race = reregistration_race
        self._dial_timeout_s = dial_timeout_s
        self._stop_grace_s = stop_grace_s
        self._clients: dict[str, list[PluginEndpoint]] = {}
        self._endpoints: dict[str, PluginEndpoint] = {}
        self._opened: list[PluginEndpoint] = []
        self._streams: set[asyncio.Task[None]] = set()
        self._purges: dict[str, asyncio.TimerHandle] = {}
        self.registrations: Counter[str] = Counter()
        """Register calls by resource; like ``kubelet_device_plugin_registration_total``, counted before validation."""

    def endpoint(self, resource: str) -> PluginEndpoint | None:
        """Return the plugin of a resource; it may be stopped."""
        return self._endpoints.get(resource)

    def expect(self, resource: str) -> None:
        """Remove a resource of the checkpoint later, unless its plugin registers in time."""
        self._purge_later(resource)

    async def Register(self, request: pb.RegisterRequest, context: "_ServicerContext") -> pb.Empty:  # noqa: N802 - name of the RPC
        """Register a plugin; the kubelet answers after it has connected and got the plugin's options.

        See docs/spec/kubelet.md#registration.
        """
        self.registrations[request.resource_name] += 1
        if request.version != VERSION:
            text = f'requested API version "{request.version}" is not supported by kubelet. Supported version is'
            await context.abort(grpc.StatusCode.UNKNOWN, f'{text} ["{VERSION}"]')
        if not is_extended(request.resource_name):
            await context.abort(grpc.StatusCode.UNKNOWN, f'the ResourceName "{request.resource_name}" is invalid')
        try:
            await self._connect(request.resource_name, self._directory / request.endpoint)
        except PluginFailure as error:
            await context.abort(grpc.StatusCode.UNKNOWN, error.message)
        return pb.Empty()

    async def close(self) -> None:
        """Close all connections, which cancels every plugin's stream; called when the kubelet exits."""
        for timer in self._purges.values():
            timer.cancel()
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for endpoint in self._opened:
            await endpoint.close()

    async def _connect(self, resource: str, socket: Path) -> None:
        endpoint = PluginEndpoint(resource, socket, dial_timeout_s=self._dial_timeout_s)
        self._opened.append(endpoint)
        self._clients.setdefault(resource, []).append(endpoint)
        try:
            await endpoint.connect()
        except PluginFailure:
            # Under this name the kubelet ≤ 1.36 then has no client at all; the stream of an earlier one goes on.
            self._forget(endpoint)
            await endpoint.close()
            raise
        self._endpoints[resource] = endpoint
        if (timer := self._purges.pop(resource, None)) is not None:
            timer.cancel()
        stream = asyncio.create_task(self._run(endpoint), name=f"ListAndWatch of {resource}")
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _run(self, endpoint: PluginEndpoint) -> None:
        async for message in endpoint.watch():
            # Messages of an old client count too, because only the resource name matters (manager.go).
            self._ledger.report(endpoint.resource, message.devices)
            self._write_checkpoint()
            self._changed()
        await self._stream_ended(endpoint)

    def _forget(self, endpoint: PluginEndpoint) -> None:
        clients = self._clients[endpoint.resource]
        self._clients[endpoint.resource] = (
            [] if self._reregistration_race else [client for client in clients if client is not endpoint]
        )

    async def _stream_ended(self, ended: PluginEndpoint) -> None:
        resource = ended.resource
        log.info("device plugin stream ended", extra={"resource": resource})
        clients = self._clients.get(resource, [])
        if not clients or (ended not in clients and not self._reregistration_race):
            return
        found = clients[-1] if self._reregistration_race else ended
        self._forget(found)
        current = self._endpoints.get(resource)
        if current is not None and (remaining := self._clients[resource]):
            self._endpoints[resource] = remaining[-1]
        elif current is not None:
            self._ledger.disconnect(resource)
            current.stopped = True
            self._purge_later(resource)
            self._changed()
        await found.close()

    def _purge_later(self, resource: str) -> None:
        if (timer := self._purges.pop(resource, None)) is not None:
            timer.cancel()
        self._purges[resource] = asyncio.get_running_loop().call_later(self._stop_grace_s, self._purge, resource)

    def _purge(self, resource: str) -> None:
        del self._purges[resource]
        self._endpoints.pop(resource, None)
        self._ledger.purge(resource)
        self._write_checkpoint()
        self._changed()

    def _write_checkpoint(self) -> None:
        try:
            write_checkpoint(self._directory, self._ledger)
        except CheckpointFailure as error:
            # The kubelet continues; only an Allocate fails because of it.
            log.warning("failed to write checkpoint", extra={"error": str(error)})
