"""Whether this allocator answers calls: only as the leader, with synced informers; and how leading stops."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from allocator.binding.binding import BindingLease
from allocator.leadership.endpoint import Endpoint, publish
from allocator.leadership.fence import Fence
from allocator.leadership.handover import HandOver
from allocator.leadership.leader import SETTLE_S, Leader
from allocator.settings import Settings
from allocator.state.ledger import DOUBT_S
from allocator.watch.informers import Informers
from ascend.addresses import split_address
from ascend.errors import Refusal
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.lease import Election, LeaseName, new_identity
from ascend.reasons import Reason

log = structlog.get_logger()

DRAIN_S = 5.0


class Leadership:
    """The conditions of answering calls: no other allocator binds, and the informers have synced.

    Args:
        settings: the settings of leader election.
        client: the API server.
        informers: must have synced.
        handover: hands the Bindings that may still be made over to the next leader.
        boot_s: the clock of the lease; it advances while the process or the machine is suspended.
        now_ns: the wall clock, Unix nanoseconds.
    """

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        informers: Informers,
        handover: HandOver,
        *,
        boot_s: Callable[[], float],
        now_ns: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._client = client
        self._informers = informers
        self._handover = handover
        self._open = asyncio.Event()
        self._leader: Leader | None = None
        self._fence: Fence | None = None
        self.lease: Callable[[float], BindingLease] = BindingLease
        """Permission to post a Binding now."""
        if settings.leader_election:
            lease = LeaseName(settings.lease_namespace, settings.lease_name, settings.lease_duration_s)
            election = Election(client, lease, new_identity(), clock=boot_s, now_ns=now_ns)
            settle_s = SETTLE_S
            if "bindings" in settings.webhooks and not settings.fence:
                # Nothing denies the Bindings of others that have got chips from a dead leader: they end by the API
                # server's own limit. They got them while it held the lease, which has expired since.
                settle_s = max(SETTLE_S, DOUBT_S - settings.lease_duration_s)
            self._leader = Leader(election, self._close_fence, settle_s)
            self.lease = self._leader.lease
            if settings.fence:
                self._fence = Fence(client, lease.namespace, lease.name, election.identity, self.leads)

    def leads(self) -> bool:
        """Whether it is the only allocator that binds."""
        return self._leader is None or self._leader.election.leads

    def regarding(self) -> Regarding | None:
        """The lease, for Events on it; None without leader election, or before it was read."""
        return self._leader.election.regarding if self._leader is not None else None

    def why_closed(self) -> Refusal | None:
        """Why it answers no calls: ``NotLeader`` or ``ViewIncomplete``; None if it does."""
        missing = self._leader.missing() if self._leader is not None else None
        if missing is not None and not self.leads():
            return Refusal(Reason.NOT_LEADER, missing)
        if missing is None:
            missing = self._informers.missing()
        if missing is None and not self._open.is_set():
            missing = "the pods are listed again, now that no other allocator binds"
        return Refusal(Reason.VIEW_INCOMPLETE, missing) if missing is not None else None

    async def wait_until_open(self) -> None:
        """Wait until calls are answered."""
        await self._open.wait()

    async def run(self) -> None:
        """Take part in the election until cancelled.

        Raises:
            LeadershipLost: it led, and no longer does.
        """
        if self._leader is not None:
            await self._leader.election.run()

    async def enter(self) -> None:
        """Wait until no other allocator binds and every Binding made before that is seen."""
        await self._informers.wait_until_synced()
        if self._leader is not None:
            await self._leader.won()
            await self._informers.refresh_pods()
            try:
                taken = self._handover.read(self._leader.election.note)
            except ValueError as error:
                log.warning("the note of the former leader can't be read", error=str(error))
                await asyncio.sleep(DOUBT_S)
                await self._informers.refresh_pods()
                return
            if taken:
                log.info("reserved the chips of Bindings that the former leader handed over", pods=len(taken))

    async def keep(self, addresses: Mapping[str, str]) -> None:
        """Answer calls from now on, and keep fence and Service pointing to this allocator, until cancelled.

        Args:
            addresses: where it listens, by the name of the Service's port.
        """
        self._open.set()
        async with asyncio.TaskGroup() as tasks:
            if self._fence is not None:
                tasks.create_task(self._fence.keep(), name="fence")
            if self._settings.service:
                listening = {name: address for name, address in addresses.items() if not address.startswith("unix:")}
                ports = {name: split_address(address)[1] for name, address in listening.items()}
                namespace, service = self._settings.lease_namespace, self._settings.service
                here = Endpoint(namespace, service, self._settings.pod_ip, ports)
                tasks.create_task(publish(self._client, here, self.leads), name="endpoint")

    async def leave(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Wait for the own Bindings in flight, whose outcome belongs in the log, and release the lease.

        Args:
            drain: waits for the Bindings in flight.
        """
        try:
            async with asyncio.timeout(DRAIN_S):
                await drain()
        except TimeoutError:
            # The lease is not released: it expires, when none of them can be in flight any more.
            log.warning("stopped with Bindings in flight")
            return
        if self._leader is None:
            return
        note = self._handover.write()
        if note is None:
            log.warning("too many Bindings may still be made to hand them over; the lease is not released")
            return
        await self._leader.release(note)

    async def _close_fence(self) -> None:
        if self._fence is not None:
            await self._fence.close()
