"""Keeps chips for pods whose scheduler waits for their volumes.

kube-scheduler chooses a node, then has the volumes of the pod provisioned there (a StorageClass with
WaitForFirstConsumer), waits for up to 600 s (``bindTimeoutSeconds`` of its plugin VolumeBinding), and only then asks to
bind the pod. The volumes are on that node, so its chips must still be there. So the claims of a pod are read while it
has chips reserved and is not bound: while one of them is not bound, the reservation is renewed, and with it the plan of
the pod's gang.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from allocator.binding.barrier import Barrier
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import KubeObject, Pod, Resource

log = structlog.get_logger()

SELECTED_NODE = "volume.kubernetes.io/selected-node"
"""On a claim, by its pod's scheduler: the node on which the volume is provisioned."""

PERIOD_S = 1.0

READ_S = 5.0
"""Time between two reads of the same claim."""

_TIMEOUT_S = 5.0

_UNBOUND = frozenset({Stage.RESERVED, Stage.PLANNED, Stage.HELD})


class ClaimStatus(msgspec.Struct, frozen=True):
    """A claim's status."""

    phase: str = ""


class Claim(KubeObject, frozen=True, kw_only=True):
    """A PersistentVolumeClaim."""

    status: ClaimStatus = ClaimStatus()

    def is_awaited_on(self, node: str, stage: Stage) -> bool:
        """Whether the claim is not bound yet, so that the pod's scheduler may wait for the volume on a node.

        A volume that exists already is bound without ``SELECTED_NODE``. But the seats of a gang are not kept on such an
        account: nothing says whether the scheduler has called for a pod without it.
        """
        selected = self.metadata.annotations.get(SELECTED_NODE, node if stage is Stage.RESERVED else "")
        return self.status.phase != "Bound" and selected == node


CLAIMS = Resource(Claim, "PersistentVolumeClaim", "api/v1", "persistentvolumeclaims")


@dataclass(slots=True)
class _Wait:
    """A pod whose volumes are waited for: since when, when its claims were read last, and whether one was unbound."""

    since_s: float
    read_s: float
    unbound: bool = False


class VolumeWaits:
    """Renews the reservations of pods whose volumes are not bound.

    Args:
        client: the API server.
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        barrier: waits with the gangs of these pods.
        limit_s: for how long a pod's chips are kept at most; 0 to read no claims.
        monotonic: the clock.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        barrier: Barrier,
        *,
        limit_s: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._waits: dict[str, _Wait] = {}
        self._is_forbidden = False
        barrier.excuse(lambda: (uid for uid, wait in self._waits.items() if wait.unbound))

    def __contains__(self, uid: object) -> bool:
        """Whether the volumes of a pod are waited for."""
        wait = self._waits.get(uid) if isinstance(uid, str) else None
        return wait is not None and wait.unbound

    async def run(self) -> None:
        """Check once a second until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.check()

    async def check(self) -> None:
        """Read the claims of pods that were given chips some time ago, and renew their reservations."""
        if not self._limit_s or self._is_forbidden:
            return
        for uid in [uid for uid in self._waits if self._ledger.get(uid) is None]:
            del self._waits[uid]
        for reservation in self._ledger:
            pod = self._cluster.pods.get(reservation.uid)
            if reservation.stage in _UNBOUND and pod is not None and pod.spec.volumes and pod.waits_for_chips:
                await self._check(pod, reservation)

    async def _check(self, pod: Pod, reservation: Reservation) -> None:
        now_s = self._monotonic()
        wait = self._waits.setdefault(pod.uid, _Wait(reservation.since_s, reservation.since_s))
        if now_s - wait.read_s < READ_S:
            return
        wait.read_s = now_s
        wait.unbound = now_s - wait.since_s < self._limit_s and await self._has_unbound(pod, reservation)
        held = self._ledger.get(pod.uid)
        if wait.unbound and held is not None and held.node == reservation.node:
            self._ledger.renew(pod.uid)

    async def _has_unbound(self, pod: Pod, reservation: Reservation) -> bool:
        for volume in pod.spec.volumes:
            name = volume.claim(pod.name)
            if not name:
                continue
            try:
                claim = await self._client.get(CLAIMS, name, pod.metadata.namespace, timeout_s=_TIMEOUT_S)
            except NotFound:
                continue
            except Unreachable:
                return True  # unknown: the scheduler can't bind anything either
            except ApiError as error:
                self._is_forbidden = True
                log.warning("can't read claims: chips are not kept for pods that wait for volumes", error=error.message)
                return False
            if claim.is_awaited_on(reservation.node, reservation.stage):
                return True
        return False
