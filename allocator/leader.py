"""The leader: of several allocators one decides and binds, and no Binding of a deposed one can give a chip twice.

What could go wrong: an allocator decides that a pod gets certain chips and posts the Binding, but stands still (or its
network does) before that arrives. Another one takes over, sees a pod list without it, and gives the same chips to
another pod. Then the first Binding arrives: the API server only checks that *its* pod is unbound. Three things prevent
that, each good for what the one before it leaves open:

1. **Time.** A Binding is posted only while the lease is believed in, checked on a clock that goes on while the process
   stands still; and the request ends, here and (by its ``timeout``) in the API server, before anybody else can hold the
   lease (``ascend.kube.lease``). The new leader first takes the lease, and only then reads all pods anew, from etcd and
   not from a cache. Every Binding posted in time is in that list.
2. **The fence.** A process can still be stopped between the look at the clock and the system call, and a packet can be
   on its way for minutes. So each Binding carries the name of the leader that made it (``FENCE``), and an admission
   policy in the API server (deploy/charts, policies.yaml) lets it pass only while an object that the leader writes
   (``allocator.fence``) names the same one. The API server learns of a new name by a watch, so a leader that took the
   lease from one that had not given it up waits ``SETTLE_S`` between writing its name and reading the pods. A Binding
   that is admitted before the change is in the list; one that comes after it is denied.
3. **The node.** Where the cluster knows no such policies (before 1.30), the device plugin is the last guard: it refuses
   a pod whose chips another live pod holds, and that pod fails with a reason instead of sharing a chip.

A process that has lost the lease ends, as Kubernetes' own components do: what it knows counts no more, and started
again it waits its turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from ascend.annotations import FENCE
from ascend.errors import Refusal
from ascend.kube.lease import Election

NOT_LEADER = "NotLeader"
"""The reason of an allocator that doesn't lead; nothing was done, and the one that does will answer."""

SETTLE_S = 4.0
"""How long an API server may take to learn from its watch whose Bindings may pass, and then to end what it let pass
before: that is over within the ``timeout`` of a Binding (2.5 s)."""


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave to post one Binding now.

    Attributes:
        timeout_s: within which it must have ended, everywhere.
        annotations: to be written with it.
    """

    timeout_s: float
    annotations: Mapping[str, str] = field(default_factory=dict)


def unlimited(wanted_s: float) -> Permit:
    """The leave of an allocator that has no peers."""
    return Permit(wanted_s)


async def _no_fence() -> None:
    """Where the cluster knows no admission policies."""


class Leadership:
    """One of several allocators.

    Args:
        election: its part in the election.
        close_fence: has the API server let nobody else's Bindings pass.
    """

    def __init__(self, election: Election, close_fence: Callable[[], Awaitable[None]] = _no_fence) -> None:
        self._election = election
        self._close_fence = close_fence
        self._settled = asyncio.Event()

    @property
    def leads(self) -> bool:
        """Whether it leads, and believes in it."""
        return self._election.leads

    def permit(self, wanted_s: float) -> Permit:
        """Leave to post a Binding; to be asked for right before that, and used at once.

        Args:
            wanted_s: how long the request would be given otherwise.

        Raises:
            Refusal: ``NotLeader``; nothing was posted.
        """
        if not self._election.leads:
            raise Refusal(NOT_LEADER, self.missing() or "this allocator has just stopped leading")
        return Permit(min(wanted_s, self._election.remaining_s), {FENCE: self._election.identity})

    def missing(self) -> str | None:
        """What keeps it from leading, a sentence; None while it leads."""
        if self._election.leads and self._settled.is_set():
            return None
        if self._election.leads:
            return "this allocator leads, but gives the one before it time to end"
        if self._election.term is not None or self._election.holder == self._election.identity:
            return "this allocator leads no more: it could not renew its lease"
        holder = self._election.holder
        return f"this allocator waits: {holder} leads" if holder else "this allocator waits for the lease"

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            LeadershipLost: it led, and does so no more.
        """
        await self._election.run()

    async def won(self) -> None:
        """Wait until it leads, and the one before it can do nothing any more; the pods are to be read after that."""
        await self._election.won()
        await self._close_fence()
        if self._election.inherited:
            await asyncio.sleep(SETTLE_S)
        self._settled.set()

    async def release(self) -> None:
        """Give the leadership up; no Binding may be under way any more.

        Who has inherited it and has not waited until the end keeps it until it ends by itself: the next one has to wait
        in its stead, and would not after a lease that was given up.
        """
        if self._settled.is_set() or not self._election.inherited:
            await self._election.release()
