"""Leader election among several equal processes, by a Lease (coordination.k8s.io/v1).

The rules are those of Kubernetes' own components, so that ``kubectl get lease`` shows the same fields:

* The holder renews the lease every 2/15 of its duration. A renewal counts from the moment it was *sent*: no other
  process can have seen it earlier.
* The other candidates use no wall clock. One takes over the lease when it has not seen the record change for a whole
  duration on its own clock, counted from the *answer* that showed the last change: it can't have changed later.
* So no other process holds the lease between the last renewal sent and one duration after it. The holder stops leading
  after two thirds of that time (the renew deadline); requests that it has begun by then have the last third to end
  (``remaining_s``, less a tenth of the duration for clocks that run at different speeds).
* Every write has the resourceVersion it is based on, so of several candidates that find the lease free one gets it.
* A holder that stops releases the lease, so that the next one need not wait. It may leave a note in an annotation for
  the next one, which stays there for ``NOTE_S``: if that one dies as well, the one after it still reads the note.
* If a lease is deleted, its last known state counts for the processes that have seen it. A process that has never seen
  it takes the lease at once: it can't distinguish a deleted lease from a new cluster.
"""

import asyncio
import random
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from ascend.errors import AscendError, Conflict, LeadershipLost, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.objects import LEASES, JsonObject, Lease

log = structlog.get_logger()

NOTE_S = 120.0
"""For how long a holder keeps the note of the former one in the lease."""

NOTE = "ascend-affinity.io/note"
"""The annotation with the note."""

MARGIN = 1 / 10
"""The fraction of the duration that is never used, for clocks that run at different speeds."""


def boot_time() -> float:
    """Seconds on a clock that continues while the machine is suspended, unlike ``time.monotonic``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_identity() -> str:
    """A unique name for this process, different also from that of its predecessor in the same pod."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class LeaseName:
    """The Lease to use.

    Attributes:
        namespace: its namespace.
        name: its name.
        duration_s: how long it is valid after each renewal.
    """

    namespace: str
    name: str
    duration_s: float = 15.0

    @property
    def renew_deadline_s(self) -> float:
        """How long after its last renewal the holder leads."""
        return self.duration_s * 2 / 3

    @property
    def retry_period_s(self) -> float:
        """Time between renewals, and between reads of candidates that wait."""
        return self.duration_s * 2 / 15


class Election:
    """One candidate in the election.

    Args:
        client: the API server.
        lease: the Lease.
        identity: the candidate's unique name.
        clock: a clock, in seconds, that continues while the process or the machine is suspended.
        now_ns: the wall clock, for readers of the record; the election does not depend on it.

    Attributes:
        holder: the lease holder as last seen; empty if there is none.
        term: the number of lease transitions up to this candidate's leadership; None before and after its leadership.
        inherited: this candidate took over a lease that its former holder had not released, so that the former holder
            may still believe that it leads.
        note: what the last holder that released the lease left for its successors; empty if nothing.
    """

    def __init__(
        self,
        client: KubeClient,
        lease: LeaseName,
        identity: str,
        *,
        clock: Callable[[], float] = boot_time,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._client = client
        self._lease = lease
        self.identity = identity
        self._clock = clock
        self._now_ns = now_ns
        self.holder = ""
        self.term: int | None = None
        self.inherited = False
        self.note = ""
        self._taken_s = 0.0
        self._renewed_s = 0.0
        self._version = ""
        self._seen: Lease | None = None
        self._seen_s = 0.0
        self._won = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether this candidate leads: it holds the lease, and the renew deadline has not passed."""
        return self.term is not None and self._clock() < self._renewed_s + self._lease.renew_deadline_s

    @property
    def regarding(self) -> Regarding | None:
        """The lease, for Events on it; None before it was read."""
        if self._seen is None:
            return None
        return Regarding(LEASES.kind, self._lease.name, self._lease.namespace, self._seen.uid, LEASES.api_version)

    @property
    def remaining_s(self) -> float:
        """For how many seconds from now no other process can hold the lease; negative if that time is over."""
        if self.term is None:
            return -1.0
        return self._renewed_s + self._lease.duration_s * (1 - MARGIN) - self._clock()

    async def won(self) -> None:
        """Wait until this candidate leads."""
        await self._won.wait()

    async def run(self) -> None:
        """Wait for the lease, then hold it until cancelled.

        Raises:
            LeadershipLost: another process has taken it, or it could not be renewed in time. It must not be run again:
                the state of the process from its time as the leader can't be trusted any more.
        """
        while True:
            if await self._try_to_take():
                break
            # With jitter: otherwise all candidates would find it free, and write, at the same time.
            await asyncio.sleep(self._lease.retry_period_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter is no secret
        log.info("took the lease", term=self.term, lease=self._lease.name, identity=self.identity)
        self._won.set()
        try:
            await self._hold()
        except LeadershipLost:
            self.term = None
            raise

    async def release(self, note: str = "") -> None:
        """Release the lease, so that the next holder need not wait; no request sent as its holder may be in flight.

        If that fails, the lease expires later. ``note`` is for the next holder.
        """
        if not self.leads:
            return
        self.term = None
        try:
            # Like Kubernetes' own components: no holder, and the shortest duration.
            record = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._time()}
            await self._write(record, note=note)
        except AscendError as error:
            log.warning("can't release the lease; it expires later", error=error.message)
        else:
            log.info("released the lease", lease=self._lease.name)

    async def _try_to_take(self) -> bool:
        try:
            found = await self._read()
            if not self._is_free(found):
                return False
            last = found or self._seen
            # Our own name is from a write whose answer was lost; its former holder was recorded before that write.
            if last is not None and last.spec.holder_identity != self.identity:
                self.inherited = bool(last.spec.holder_identity)
            sent_s = self._clock()
            if found is None:
                body: JsonObject = {"metadata": {"name": self._lease.name}, "spec": self._record(1)}
                self._keep(await self._client.create(LEASES, body, self._lease.namespace))
            else:
                await self._write(self._record((found.spec.lease_transitions or 0) + 1))
        except Conflict:
            return False  # another candidate was faster
        except AscendError as error:
            log.warning("can't read or take the lease", lease=self._lease.name, error=error.message)
            return False
        self._renewed_s = self._taken_s = sent_s
        self.note = last.metadata.annotations.get(NOTE, "") if last is not None else ""
        self.holder = self.identity
        self.term = self._seen.spec.lease_transitions if self._seen is not None else None
        return True

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(self._lease.retry_period_s)
            try:
                if not await self._renew():
                    await self._renew()
            except LeadershipLost:
                raise
            except AscendError as error:
                log.warning("can't renew the lease", lease=self._lease.name, error=error.message)

    async def _renew(self) -> bool:
        """Renew it once; False if our own record has another version than expected, because an answer was lost."""
        sent_s = self._clock()
        left_s = self._renewed_s + self._lease.renew_deadline_s - sent_s
        if left_s <= 0:
            text = f"lease {self._lease.name} could not be renewed for {sent_s - self._renewed_s:.1f} s"
            raise LeadershipLost(f"{text}; another process may take it")
        note = "" if self.note and sent_s >= self._taken_s + NOTE_S else None
        try:
            await self._write({"renewTime": self._time()}, timeout_s=left_s, note=note)
        except (Conflict, NotFound):
            found = await self._read(timeout_s=left_s)
            if found is None or (found.spec.holder_identity, found.spec.lease_transitions) != (
                self.identity,
                self.term,
            ):
                fate = f"taken by {self.holder}" if found is not None else "deleted"
                raise LeadershipLost(f"lease {self._lease.name} was {fate}") from None
            return False
        self._renewed_s = sent_s
        if note is not None:
            self.note = note
        return True

    def _is_free(self, found: Lease | None) -> bool:
        # Deleting a lease does not stop its holder: the last known state counts.
        last = found or self._seen
        if last is None or last.spec.holder_identity in {None, "", self.identity}:
            return True
        duration_s = max(last.spec.lease_duration_seconds or 0, self._lease.duration_s)
        return self._clock() >= self._seen_s + duration_s

    async def _read(self, timeout_s: float = 15.0) -> Lease | None:
        timeout_s = min(timeout_s, self._lease.renew_deadline_s)
        try:
            found = await self._client.get(LEASES, self._lease.name, self._lease.namespace, timeout_s=timeout_s)
        except NotFound:
            return None
        if self._seen is None or found.spec != self._seen.spec or found.uid != self._seen.uid:
            self._seen_s = self._clock()
        self._keep(found)
        return found

    async def _write(self, spec: JsonObject, *, timeout_s: float = 15.0, note: str | None = None) -> None:
        """Write the record, and the note unless it is None."""
        metadata: JsonObject = {"resourceVersion": self._version}
        if note is not None:
            metadata["annotations"] = {NOTE: note or None}
        body: JsonObject = {"metadata": metadata, "spec": spec}
        written = await self._client.patch(
            LEASES,
            self._lease.name,
            body,
            namespace=self._lease.namespace,
            timeout_s=min(timeout_s, self._lease.retry_period_s * 2),
        )
        self._keep(written)

    def _record(self, term: int) -> JsonObject:
        now = self._time()
        return {
            "holderIdentity": self.identity,
            # Whole seconds, rounded up, for readers of the record.
            "leaseDurationSeconds": int(-(-self._lease.duration_s // 1)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": term,
        }

    def _keep(self, found: Lease) -> None:
        self._seen = found
        self._version = found.metadata.resource_version
        self.holder = found.spec.holder_identity or ""

    def _time(self) -> str:
        return datetime.fromtimestamp(self._now_ns() / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
