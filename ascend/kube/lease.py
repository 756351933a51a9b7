"""Who of several equal processes leads: the holder of a Lease (coordination.k8s.io/v1).

The rules are those of Kubernetes' own components, so that ``kubectl get lease`` reads as it does there:

* The holder renews every 2/15 of the lease's duration. A renewal counts from the moment it was *sent*: nobody can
  have seen it earlier.
* The others don't believe any wall clock. One takes the lease over when it has not seen the record change for a whole
  duration on its own clock, counted from the *answer* that showed the last change: it cannot have changed later.
* So between the last renewal sent and one duration after it nobody else holds the lease. The holder believes in it
  for two thirds of that and then gives up; what it has begun by then has the last third to end (``remaining_s``, less a
  tenth of the duration for clocks that run at different speeds).
* Every write names the resourceVersion it builds on, so of several that find the lease free one gets it.
* A holder that ends in peace gives the lease up, and the next one need not wait.
* A lease that is deleted counts, for those who have seen it, as it was when it was last there. A process that has never
  seen one takes it at once: it can't tell a deleted lease from the first one of a new cluster.
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
from ascend.kube.objects import LEASES, JsonObject, Lease

log = structlog.get_logger()

MARGIN = 1 / 10
"""The part of a lease that is never used, for clocks that run at different speeds."""


def boot_time() -> float:
    """Seconds on a clock that goes on while the machine sleeps, unlike ``time.monotonic``."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_identity() -> str:
    """A name for this process that no other has, not even the one before it in the same pod."""
    return f"{socket.gethostname()}_{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class LeaseName:
    """Which Lease.

    Attributes:
        namespace: where it is.
        name: its name.
        duration_s: how long it is good for after each renewal.
    """

    namespace: str
    name: str
    duration_s: float = 15.0

    @property
    def belief_s(self) -> float:
        """How long after its last renewal the holder believes in it."""
        return self.duration_s * 2 / 3

    @property
    def retry_s(self) -> float:
        """Time between renewals, and between looks of those who wait."""
        return self.duration_s * 2 / 15


class Election:
    """One candidate.

    Args:
        client: the API server.
        lease: which Lease.
        identity: the candidate's own name.
        clock: seconds that go on while the process or the machine stands still.
        now_ns: the wall clock, for the record's readers; nothing depends on it.

    Attributes:
        holder: who holds the lease as last seen; empty where nobody does.
        term: how often the lease has changed hands up to our own leadership; None before it and after its end.
        inherited: we took the lease over from one who had not given it up, and who may still think it is his.
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
        self._renewed_s = 0.0
        self._version = ""
        self._seen: Lease | None = None
        self._seen_s = 0.0
        self._won = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether we hold the lease, and believe in it."""
        return self.term is not None and self._clock() < self._renewed_s + self._lease.belief_s

    @property
    def remaining_s(self) -> float:
        """For how long from now nobody else can hold the lease; less than 0 where that is over."""
        if self.term is None:
            return -1.0
        return self._renewed_s + self._lease.duration_s * (1 - MARGIN) - self._clock()

    async def won(self) -> None:
        """Wait until we lead."""
        await self._won.wait()

    async def run(self) -> None:
        """Wait for the lease, then hold it until cancelled.

        Raises:
            LeadershipLost: another has taken it, or it could not be renewed in time. It must not be run again: what the
                process knows from its time as the leader counts no more.
        """
        while True:
            if await self._try_to_take():
                break
            # At different times: all of them would otherwise find it free at once, and all but one in vain.
            await asyncio.sleep(self._lease.retry_s * random.uniform(0.8, 1.2))  # noqa: S311 - jitter is no secret
        log.info("leads from now on", term=self.term, lease=self._lease.name, identity=self.identity)
        self._won.set()
        try:
            await self._hold()
        except LeadershipLost:
            self.term = None
            raise

    async def release(self) -> None:
        """Give the lease up, so that the next one need not wait; nothing begun as its holder may be under way any more.

        Where that fails it simply ends by itself, later.
        """
        if not self.leads:
            return
        self.term = None
        try:
            # As Kubernetes' own components leave it: no holder, and a duration that is over at once.
            await self._write({"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._time()})
        except AscendError as error:
            log.warning("could not give the lease up, it ends by itself", error=error.message)
        else:
            log.info("gave the lease up", lease=self._lease.name)

    async def _try_to_take(self) -> bool:
        try:
            found = await self._read()
            if not self._is_free(found):
                return False
            last = found or self._seen
            # Our own name there is from a write whose answer was lost: whom it displaced is noted already.
            if last is not None and last.spec.holder_identity != self.identity:
                self.inherited = bool(last.spec.holder_identity)
            sent_s = self._clock()
            if found is None:
                await self._create()
            else:
                await self._write(self._record((found.spec.lease_transitions or 0) + 1))
        except Conflict:
            return False  # another one was quicker
        except AscendError as error:
            log.warning("could not ask for the lease", lease=self._lease.name, error=error.message)
            return False
        self._renewed_s = sent_s
        self.holder = self.identity
        self.term = self._seen.spec.lease_transitions if self._seen is not None else None
        return True

    async def _hold(self) -> None:
        while True:
            await asyncio.sleep(self._lease.retry_s)
            try:
                if not await self._renew():
                    await self._renew()
            except LeadershipLost:
                raise
            except AscendError as error:
                log.warning("could not renew the lease", lease=self._lease.name, error=error.message)

    async def _renew(self) -> bool:
        """Renew it once; False where the record was another than we knew, but ours: an answer was lost."""
        sent_s = self._clock()
        left_s = self._renewed_s + self._lease.belief_s - sent_s
        if left_s <= 0:
            text = f"lease {self._lease.name} could not be renewed for {sent_s - self._renewed_s:.1f} s"
            raise LeadershipLost(f"{text}; another one may take it")
        try:
            await self._write({"renewTime": self._time()}, timeout_s=left_s)
        except (Conflict, NotFound):
            found = await self._read(timeout_s=left_s)
            if found is None or (found.spec.holder_identity, found.spec.lease_transitions) != (
                self.identity,
                self.term,
            ):
                taker = self.holder if found is not None else "nobody: it was deleted"
                raise LeadershipLost(f"lease {self._lease.name} was taken by {taker}") from None
            return False
        self._renewed_s = sent_s
        return True

    def _is_free(self, found: Lease | None) -> bool:
        # Who deletes a lease doesn't end its holder: it counts as it was when it was last there.
        last = found or self._seen
        if last is None or last.spec.holder_identity in {None, "", self.identity}:
            return True
        duration_s = max(last.spec.lease_duration_seconds or 0, self._lease.duration_s)
        return self._clock() >= self._seen_s + duration_s

    async def _read(self, timeout_s: float = 15.0) -> Lease | None:
        timeout_s = min(timeout_s, self._lease.belief_s)
        try:
            found = await self._client.get(LEASES, self._lease.name, self._lease.namespace, timeout_s=timeout_s)
        except NotFound:
            return None
        if self._seen is None or found.spec != self._seen.spec or found.uid != self._seen.uid:
            self._seen_s = self._clock()
        self._keep(found)
        return found

    async def _create(self) -> None:
        metadata = {"name": self._lease.name, "namespace": self._lease.namespace}
        body: JsonObject = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": self._record(1),
        }
        self._keep(await self._client.create(LEASES, body, self._lease.namespace))

    async def _write(self, spec: JsonObject, *, timeout_s: float = 15.0) -> None:
        body: JsonObject = {"metadata": {"resourceVersion": self._version}, "spec": spec}
        written = await self._client.patch(
            LEASES,
            self._lease.name,
            body,
            namespace=self._lease.namespace,
            timeout_s=min(timeout_s, self._lease.retry_s * 2),
        )
        self._keep(written)

    def _record(self, term: int) -> JsonObject:
        now = self._time()
        return {
            "holderIdentity": self.identity,
            # Whole seconds: rounded up, for those who believe the record.
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
