"""Puts nominations and gates together, and runs them while this allocator leads."""

import asyncio
from collections.abc import Callable

from allocator.binding.lapsed import LapsedHolds
from allocator.decision.engine import DecisionEngine
from allocator.metrics import AllocatorMetrics
from allocator.nomination.gates import Gates
from allocator.nomination.nominator import Nominator
from allocator.nomination.writes import Writes
from allocator.observe.journal import Journal
from allocator.settings import Settings
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod
from ascend.turn import Turn


class Nominations:
    """Decides ahead of the scheduler.

    Args:
        client: the API server.
        engine: decides.
        journal: records why gated pods wait.
        metrics: counts nominations and lifted gates.
        lapsed: as for ``Nominator``.
        settings: what is nominated and gated.
        monotonic: the clock.
        now_s: the wall clock, Unix seconds.

    Attributes:
        nominator: nominates pods.
        gates: gates pods, and lifts their gates.
    """

    def __init__(
        self,
        client: KubeClient,
        engine: DecisionEngine,
        journal: Journal,
        metrics: AllocatorMetrics,
        lapsed: LapsedHolds,
        *,
        settings: Settings,
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
    ) -> None:
        self._cluster = engine.cluster
        self._writes = writes = Writes(client, per_s=settings.nominate_per_s, monotonic=monotonic)
        self.nominator = Nominator(engine, writes, metrics, lapsed, settings, monotonic=monotonic)
        self.gates = Gates(
            engine,
            self.nominator,
            writes,
            metrics,
            waits=journal.on_gated_refusal,
            settings=settings,
            monotonic=monotonic,
            now_s=now_s,
        )

    async def run(self) -> None:
        """Nominate pods, and lift gates, until cancelled. Call it once this allocator leads."""
        self.nominator.freed = self.gates.look
        self._cluster.followers.add(self._on_pod, self._on_deletion)
        turn = Turn()
        for uid in tuple(self._cluster.pods):
            if (pod := self._cluster.pods.get(uid)) is not None:
                self._on_pod(pod)
            await turn.share()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.nominator.run(), name="nominator")
                # Pods may have a gate of an earlier time, when pods were gated.
                tasks.create_task(self.gates.run(), name="gates")
        finally:
            await self._writes.close()

    def _on_pod(self, pod: Pod) -> None:
        # Nominations first: a gated pod of a former leader may have one.
        self.nominator.pod_applied(pod)
        self.gates.pod_applied(pod)

    def _on_deletion(self, pod: Pod) -> None:
        self.nominator.pod_deleted(pod)
        self.gates.pod_deleted(pod)
