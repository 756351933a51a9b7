"""The leader: of several allocators one decides and binds, and no Binding of a former leader can assign a chip twice.

The danger: an allocator decides that a pod gets certain chips and posts the Binding, but is suspended (or its network
is interrupted) before the Binding arrives. Another allocator takes over, lists the pods without it, and assigns the
same chips to another pod. Then the first Binding arrives: the API server only checks that *its* pod is unbound. Three
mechanisms prevent that, each for what the one before it leaves open:

1. **Time.** A Binding is posted only while the lease is believed to be held, by a clock that advances while the process
   is suspended; and the request ends, here and (by its ``timeout``) in the API server, before another allocator can
   hold the lease (``ascend.kube.lease``). A new leader first takes the lease, and only then lists all pods again, from
   etcd and not from a cache. Every Binding posted in time is in that list.
2. **The fence.** A process can still be suspended between reading the clock and the system call, and a packet can be
   delayed for minutes. So each Binding carries the name of the leader that made it (``FENCE``), and an admission policy
   in the API server (deploy/charts, policies.yaml) admits it only while an object written by the leader
   (``allocator.leadership.fence``) has the same name. The API server learns of a new name by a watch, so a leader that
   took over a lease that was not released waits ``SETTLE_S`` between writing its name and listing the pods. A Binding
   that is admitted before the change is in the list; one that arrives after it is denied.
3. **The node.** In clusters without such policies (before 1.30), the device plugin is the last guard: it refuses a pod
   whose chips another live pod holds, and that pod fails with a reason instead of sharing a chip.

A leader that ends in peace releases the lease, so that its successor waits for nothing; it hands over the Bindings that
others may still make with chips that it gave them (``allocator.leadership.handover``). The successor of a leader that
has died does not know them. The fence denies them; without it, a successor that serves the webhook for Bindings waits
for as long as the API server may take for one. With it, only a Binding that has passed the policy and is held up by a
slow validating webhook of somebody else, for longer than the lease and ``SETTLE_S`` together, is left to the node.

A process that has lost the lease exits, as Kubernetes' own components do: its state is not trusted any more, and after
a restart it takes part in the election again.
"""

import asyncio
from collections.abc import Awaitable, Callable

from allocator.binding.binding import BindingLease
from ascend.annotations import FENCE
from ascend.errors import Refusal
from ascend.kube.lease import Election
from ascend.reasons import Reason

SETTLE_S = 4.0
"""How long an API server may take to learn from its watch whose Bindings to admit, and then to finish those it admitted
before, which end within the ``timeout`` of a Binding (2.5 s)."""


class Leader:
    """One of several allocators in the election.

    Args:
        election: its part in the election, an attribute too.
        close_fence: makes the API server deny the Bindings of all others.
        settle_s: after the lease was not released, how long the former leader's Bindings may still be made.
    """

    def __init__(
        self, election: Election, close_fence: Callable[[], Awaitable[None]], settle_s: float = SETTLE_S
    ) -> None:
        self._settle_s = settle_s
        self.election = election
        self._close_fence = close_fence
        self._settled = asyncio.Event()

    def lease(self, wanted_s: float) -> BindingLease:
        """Permission to post a Binding; request it right before posting.

        Args:
            wanted_s: the timeout of the request, if the lease lasts that long.

        Raises:
            Refusal: ``NotLeader``; nothing was posted.
        """
        if not self.election.leads:
            raise Refusal(Reason.NOT_LEADER, self.missing() or "this allocator has just lost the lease")
        return BindingLease(min(wanted_s, self.election.remaining_s), {FENCE: self.election.identity})

    def missing(self) -> str | None:
        """Why it does not lead, a sentence; None while it leads."""
        if self.election.leads and self._settled.is_set():
            return None
        if self.election.leads:
            return "this allocator holds the lease and waits for the Bindings of the former leader to end"
        if self.election.term is not None or self.election.holder == self.election.identity:
            return "this allocator no longer leads: it could not renew its lease"
        holder = self.election.holder
        return f"this allocator is a standby: {holder} leads" if holder else "this allocator waits for the lease"

    async def won(self) -> None:
        """Wait until it leads and the former leader can do nothing any more; the pods are listed after that."""
        await self.election.won()
        await self._close_fence()
        if self.election.inherited:
            await asyncio.sleep(self._settle_s)
        self._settled.set()

    async def release(self, note: str) -> None:
        """Release the lease; no Binding of its own may be in flight.

        A leader that took over an unreleased lease and has not waited for ``settle_s`` keeps it until it expires: its
        successor has to wait instead, and would not after a release.

        Args:
            note: what it hands over.
        """
        if self._settled.is_set() or not self.election.inherited:
            await self.election.release(note)
