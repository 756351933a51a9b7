"""The Registration service on kubelet.sock and what follows from a registration (spec/kubernetes.md §1.2 to §1.5).

Clients are kept by resource name, in exactly the order of steps of kubelet ≤ 1.36 (plugin/v1beta1/handler.go), because
its flaw is part of the contract plugins must live with: where an old plugin's stream ends after a new one has
registered, the *new* client is the one found under the name, and is disconnected. 1.37 tells them apart.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services
from sandbox.kubelet.checkpoint import CheckpointFailure, write_checkpoint
from sandbox.kubelet.endpoint import Endpoint, PluginFailure
from sandbox.kubelet.ledger import Ledger
from sandbox.pods import is_extended

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import _ServicerContext

log = logging.getLogger(__name__)

VERSION: Final = "v1beta1"
SOCKET_NAME: Final = "kubelet.sock"


class Plugins(services.RegistrationServicer):
    """The registered plugins.

    Args:
        directory: where plugins' sockets are.
        ledger: told of devices.
        changed: called after every change of the ledger.
        reregistration_race: behave as kubelet ≤ 1.36.
        dial_timeout_s: how long to wait for a plugin's socket.
        stop_grace_s: how long after its stream's end a resource is still remembered.
    """

    def __init__(
        self,
        directory: Path,
        ledger: Ledger,
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
        self._clients: dict[str, Endpoint] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._opened: list[Endpoint] = []
        self._streams: set[asyncio.Task[None]] = set()
        self._purges: dict[str, asyncio.TimerHandle] = {}
        self.registrations = 0
        """As ``kubelet_device_plugin_registration_total``: counted before validation."""

    def endpoint(self, resource: str) -> Endpoint | None:
        """The plugin to ask about a resource; it may be stopped."""
        return self._endpoints.get(resource)

    def expect(self, resource: str) -> None:
        """A checkpoint knows the resource: forget it too if its plugin stays away."""
        self._purge_later(resource)

    async def Register(self, request: pb.RegisterRequest, context: "_ServicerContext") -> pb.Empty:  # noqa: N802 - name of the RPC
        """A plugin introduces itself; answered after it has been dialled and has told its options (§1.3)."""
        self.registrations += 1
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
        """The kubelet exits: every plugin's stream is cancelled."""
        for timer in self._purges.values():
            timer.cancel()
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        for endpoint in self._opened:
            await endpoint.close()

    async def _connect(self, resource: str, socket: Path) -> None:
        endpoint = Endpoint(resource, socket, dial_timeout_s=self._dial_timeout_s)
        self._opened.append(endpoint)
        self._clients[resource] = endpoint
        try:
            await endpoint.connect()
        except PluginFailure:
            self._clients.pop(resource, None)
            await endpoint.close()
            raise
        self._endpoints[resource] = endpoint
        if (timer := self._purges.pop(resource, None)) is not None:
            timer.cancel()
        stream = asyncio.create_task(self._run(endpoint), name=f"ListAndWatch of {resource}")
        self._streams.add(stream)
        stream.add_done_callback(self._streams.discard)

    async def _run(self, endpoint: Endpoint) -> None:
        async for message in endpoint.watch():
            # An old client's messages count as well: they are taken by resource name (manager.go).
            self._ledger.report(endpoint.resource, message.devices)
            self._write_checkpoint()
            self._changed()
        await self._stream_ended(endpoint)

    async def _stream_ended(self, ended: Endpoint) -> None:
        resource = ended.resource
        log.info("the stream of a device plugin ended", extra={"resource": resource})
        found = self._clients.get(resource)
        if found is None or (found is not ended and not self._reregistration_race):
            return
        del self._clients[resource]
        current = self._endpoints.get(resource)
        if current is not None:
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
            # The kubelet goes on: only an Allocate fails for it.
            log.warning("writing checkpoint encountered", extra={"error": str(error)})
