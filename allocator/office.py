"""The office: whether this allocator is the one that works, how it comes to that, and how it leaves."""

import asyncio
from collections.abc import Callable

import structlog

from allocator.commit import Committer
from allocator.endpoint import Endpoint, publish
from allocator.fence import Fence
from allocator.leader import NOT_LEADER, Leadership, Permit, unlimited
from allocator.settings import Settings
from allocator.view import View
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.kube.lease import Election, LeaseName, new_identity
from ascend.observe.probes import split_address

log = structlog.get_logger()

DRAIN_S = 5.0


class Office:
    """What an allocator has to be to answer questions: the only one that binds, with a complete view.

    Args:
        settings: say whether there are others.
        client: the API server.
        view: what it has to have seen.
        boot_s: the clock of the lease; it goes on while the process or the machine stands still.
        now_ns: the wall clock, Unix nanoseconds.
    """

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        view: View,
        *,
        boot_s: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._client = client
        self._view = view
        self._open = asyncio.Event()
        self._leadership: Leadership | None = None
        self._fence: Fence | None = None
        self.permit: Callable[[float], Permit] = unlimited
        """Leave to post a Binding now."""
        if settings.leader_election:
            lease = LeaseName(settings.lease_namespace, settings.lease_name, settings.lease_duration_s)
            election = Election(client, lease, new_identity(), clock=boot_s, now_ns=now_ns)
            self._leadership = Leadership(election, self._close_fence)
            self.permit = self._leadership.permit
            if settings.fence:
                self._fence = Fence(client, lease.namespace, lease.name, election.identity, self.leads)

    def leads(self) -> bool:
        """Whether it is the only one that binds."""
        return self._leadership is None or self._leadership.leads

    def closed(self) -> Refusal | None:
        """Why it answers no questions: ``NotLeader`` or ``ViewIncomplete``; None when it does."""
        missing = self._leadership.missing() if self._leadership is not None else None
        if missing is not None and not self.leads():
            return Refusal(NOT_LEADER, missing)
        if missing is None:
            missing = self._view.missing()
        if missing is None and not self._open.is_set():
            missing = "the pods are read once more, now that nobody else binds"
        return Refusal("ViewIncomplete", missing) if missing is not None else None

    async def opened(self) -> None:
        """Wait until questions are answered."""
        await self._open.wait()

    async def run(self) -> None:
        """Take part in the election until cancelled.

        Raises:
            LeadershipLost: it led, and does so no more.
        """
        if self._leadership is not None:
            await self._leadership.run()

    async def enter(self) -> None:
        """Wait until nobody else binds and every Binding made before that is in the view."""
        await self._view.synced()
        if self._leadership is not None:
            await self._leadership.won()
            await self._view.refresh_pods()

    async def keep(self, http_address: str, grpc_address: str) -> None:
        """Answer questions from now on, and let everybody know, until cancelled.

        Args:
            http_address: where the extender listens.
            grpc_address: where gRPC does.
        """
        self._open.set()
        async with asyncio.TaskGroup() as tasks:
            if self._fence is not None:
                tasks.create_task(self._fence.keep(), name="fence")
            if self._settings.service:
                ports = {"http": split_address(http_address)[1]}
                if not grpc_address.startswith("unix:"):
                    ports["grpc"] = split_address(grpc_address)[1]
                namespace, service = self._settings.lease_namespace, self._settings.service
                here = Endpoint(namespace, service, self._settings.pod_ip, ports)
                tasks.create_task(publish(self._client, here, self.leads), name="endpoint")

    async def leave(self, committer: Committer) -> None:
        """Let the Bindings on their way end, for their outcome belongs in the log, and give the lease up."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await committer.drain()
        except TimeoutError:
            # And the lease is not given up: it ends by itself, when none of them can be on its way any more.
            log.warning("stopped with bindings on their way")
            return
        if self._leadership is not None:
            await self._leadership.release()

    async def _close_fence(self) -> None:
        if self._fence is not None:
            await self._fence.close()
