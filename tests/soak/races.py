"""Pods of one size are created and deleted together under disturbances: their chips are never swapped."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from ascend.chips import chip_ids
from ascend.errors import NotFound
from ascend.kube.objects import PODS
from tests.soak.lane import Lane, Mismatch

_SIZES: Final = (1, 1, 1, 2, 2, 2, 4)

EVENTS: Final = {
    "nothing": 40,
    "pods deleted at once": 12,
    "pods deleted with grace": 12,
    "pods created again": 20,
    "watches dropped": 4,
    "watches paused": 4,
    "API slow": 4,
    "plugin killed": 1,
    "kubelet restarted": 1,
}
"""Disturbances of a batch of pods during admission, with their weights."""

APART: Final = {"/pods forbidden": 1.5, "/pods slow": 0.1}
"""Without the kubelet's list of pods, the documented rule (oldest decision first) can be wrong: counted separately."""

_KILLS: Final = frozenset({"plugin killed", "kubelet restarted"})


@dataclass(slots=True)
class RaceTally:
    """Counts of what was done.

    Attributes:
        races: admissions of a pod while others of its size were pending; all records agreed after each.
        alone: admissions of a pod that was the only one of its size, checked as well.
        refused: pods the kubelet failed because plugin or kubelet was killed around their admission.
        batches: batches by disturbance.
        apart: admissions without the kubelet's list of pods.
        swapped: the number of these whose records differ.
    """

    races: int = 0
    alone: int = 0
    refused: int = 0
    batches: Counter[str] = field(default_factory=Counter)
    apart: int = 0
    swapped: int = 0


class Races:
    """Batches of pods on one lane.

    Args:
        lane: the node.
        tally: the counts to update.
    """

    def __init__(self, lane: Lane, tally: RaceTally) -> None:
        self._lane = lane
        self._tally = tally
        # Names are reused, so that pods are recreated under the same name.
        self._names = [f"p{number}" for number in range(12)]

    async def one(self) -> int:
        """Fill the node with pods, disturb them, check all records, delete some; return the number of races.

        Raises:
            Mismatch: the records do not agree.
        """
        lane = self._lane
        kinds = {**EVENTS, **APART}
        (event,) = lane.rng.choices(list(kinds), list(kinds.values()))
        self._tally.batches[event] += 1
        try:
            return await self._batch(event)
        except Mismatch as error:
            raise Mismatch(f"{event}: {error}") from error

    async def _batch(self, event: str) -> int:
        lane = self._lane
        wanted = self._choose()
        unanswered = lane.unanswered
        async with self._around(event):
            await asyncio.gather(*(lane.place(name, chips) for name, chips in wanted.items()))
            await asyncio.sleep(lane.rng.choice((0.0, 0.0, 0.002, 0.005, 0.01)))
            await self._disturb(event, wanted)
            pods = await asyncio.gather(*(lane.settled(name) for name in wanted))
        if event in _KILLS:
            await lane.until_registered()
        sizes = Counter(len(chips) for chips in wanted.values())
        # A busy machine has the same effect as a slow kubelet.
        apart = event in APART or lane.unanswered > unanswered
        races = 0
        for pod in pods:
            if pod.status.phase == "Failed":
                if event not in _KILLS and not apart:
                    raise Mismatch(f"refused although nothing was killed: {lane.describe(pod.name)}")
                self._tally.refused += 1
                continue
            if apart:
                await self._check_apart(pod.name, killed=event in _KILLS)
                continue
            lane.check(pod)
            contested = sizes[len(wanted[pod.name])] > 1
            races += contested
            self._tally.alone += not contested
        lane.check_nothing_is_held_twice()
        self._tally.races += races
        leaving = list(lane.granted)
        lane.rng.shuffle(leaving)
        keep = 0 if apart else lane.rng.choice((0, 0, 1))
        await lane.delete(*leaving[keep:])
        return races

    def _choose(self) -> dict[str, tuple[int, ...]]:
        """Choose new pods for all free chips, mostly of one size."""
        lane = self._lane
        names = [name for name in self._names if name not in lane.granted]
        lane.rng.shuffle(names)
        free = list(chip_ids(lane.free))
        lane.rng.shuffle(free)
        size = lane.rng.choice(_SIZES)
        chosen: dict[str, tuple[int, ...]] = {}
        while free:
            if lane.rng.random() < 0.1 or size > len(free):
                size = lane.rng.choice([each for each in _SIZES if each <= len(free)])
            chosen[names.pop()] = tuple(free[:size])
            del free[:size]
        return chosen

    async def _disturb(self, event: str, wanted: dict[str, tuple[int, ...]]) -> None:
        lane, server = self._lane, self._lane.cluster.server
        if event.startswith("pods "):
            victims = lane.rng.sample(list(wanted), lane.rng.randint(1, max(1, len(wanted) // 2)))
            for victim in victims:
                await self._remove(victim, grace_s=30 if event == "pods deleted with grace" else 0)
                chips = wanted.pop(victim)
                if event == "pods created again":
                    await lane.place(victim, chips)
                    wanted[victim] = chips
        elif event == "watches dropped":
            server.drop_watches()
        elif event == "watches paused":
            server.pause_watches()
            await asyncio.sleep(lane.rng.uniform(0, 0.05))
            server.resume_watches()
        elif event == "plugin killed":
            await lane.plugin.kill()
            await lane.until_unregistered()
            await lane.plugin.start()
        elif event == "kubelet restarted":
            await lane.restart_kubelet()
            await lane.until_registered()

    async def _remove(self, name: str, grace_s: int) -> None:
        """Delete a pod during admission; return once the API server no longer has it."""
        lane = self._lane
        pod = await lane.cluster.client.get(PODS, name, "default")
        path = PODS.path(namespace="default", name=name)
        with suppress(NotFound):
            await lane.cluster.client.request("DELETE", path, body={"gracePeriodSeconds": grace_s})

        def gone() -> bool:
            found = lane.find(name)
            return found is None or found.uid != pod.uid

        await lane.until(gone, f"pod {name} is gone")
        del lane.granted[name]

    @asynccontextmanager
    async def _around(self, event: str) -> AsyncIterator[None]:
        lane = self._lane
        answer, server = lane.node.kubelet.pods_answer, lane.cluster.server
        path = r"/pods"
        if event == "API slow":
            server.delay(path, lane.rng.uniform(0.005, 0.03))
        answer.forbidden = event == "/pods forbidden"
        if event == "/pods slow":
            answer.hold()
        try:
            yield
        finally:
            server.delay(path, 0.0)
            answer.forbidden = False
            answer.release()

    async def _check_apart(self, name: str, *, killed: bool) -> None:
        """Check that the claim has the real chips, even if those of another pod, unless a killed program lost them."""

        def is_true() -> bool:
            pod = self._lane.find(name)
            return pod is not None and self._lane.has_true_claim(pod)

        if not killed:
            await self._lane.until(is_true, f"the claim of {name} has its chips: {self._lane.describe(name)}")
        pod = self._lane.find(name)
        assert pod is not None
        self._tally.apart += 1
        try:
            self._lane.check(pod)
        except Mismatch:
            self._tally.swapped += 1


async def race_many(lane: Lane, races: int, tally: RaceTally, progress: Callable[[int], None]) -> None:
    """Run batches until there were ``races`` races.

    Raises:
        Mismatch: the records do not agree; the text names the race.
    """
    batches, done = Races(lane, tally), 0
    while done < races:
        try:
            run = await batches.one()
        except Mismatch as error:
            raise Mismatch(f"after {done} races: {error}") from error
        done += run
        progress(run)
