"""A scheduler that knows the number of free chips alone, and whose Bindings the webhook gets."""

import asyncio
from collections.abc import Iterable
from random import Random
from types import TracebackType
from typing import Final, Self

from ascend.annotations import ALLOCATED
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.pod_devices import held_chips
from tests.allocator.binding.webhook import Webhook
from tests.allocator.builders import pod

NODES: Final = ("n1", "n2", "n3", "n4")
CHIPS: Final = 8
LONGEST_BACKOFF_S: Final = 10.0
RUN_S: Final = 5.0


class CountingScheduler:
    """Use as an async context manager.

    Args:
        gangs: gangs that fit on the empty cluster; the pods of one run once all are bound, and end after 5 s.
        singles: pods that run alone, as long.
        never: gangs that don't fit.
        is_serial: whether it posts a Binding after the answer to the last one.
        random: chooses among the nodes that have room, and the order of the pods.
    """

    def __init__(
        self,
        gangs: Iterable[list[Pod]],
        singles: Iterable[Pod],
        never: Iterable[list[Pod]],
        *,
        is_serial: bool,
        random: Random,
    ) -> None:
        never = list(never)
        self._left = [*gangs, *([each] for each in singles)]
        self._pods = {each.uid: each for pods in (*self._left, *never) for each in pods}
        self._assumed: dict[str, str] = {}
        self._bound: dict[str, Pod] = {}
        self._random = random
        self._is_serial = is_serial
        self._tasks: list[asyncio.Task[None]] = []
        self._never = [len(each) for each in never]

    def __repr__(self) -> str:
        gangs = [(len(each), each[0].priority) for each in self._left]
        return f"<gangs and single pods {gangs}, that don't fit {self._never}, is_serial={self._is_serial}>"

    async def __aenter__(self) -> Self:
        self._cycle = asyncio.Semaphore(1 if self._is_serial else len(self._pods))
        self._webhook = self._lead()
        self._ended = asyncio.Event()
        pods = [*self._pods.values()]
        self._random.shuffle(pods)
        self._tasks = [asyncio.create_task(self._schedule(each)) for each in pods]
        self._tasks.append(asyncio.create_task(self._run()))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def all_have_run(self) -> None:
        """Wait until every gang that fits was bound as a whole, and all single pods were."""
        await self._ended.wait()

    def change_leader(self) -> None:
        """Let another allocator serve the webhook, which knows what is written on the pods."""
        self._webhook = self._lead()

    def _lead(self) -> Webhook:
        return Webhook(*(self._bound.get(uid, each) for uid, each in self._pods.items()))

    async def _schedule(self, each: Pod) -> None:
        backoff_s = 1.0
        while True:
            async with self._cycle:
                if (name := self._choose(each)) is not None and await self._bind(each, name):
                    return
            await asyncio.sleep(backoff_s * self._random.uniform(1.0, 1.2))
            backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S) if name is not None else 1.0

    def _choose(self, each: Pod) -> str | None:
        used = dict.fromkeys(NODES, 0)
        for uid, name in self._assumed.items():
            used[name] += self._pods[uid].spec.containers[0].chips
        chips = each.spec.containers[0].chips
        fitting = [name for name in NODES if used[name] + chips <= CHIPS]
        return self._random.choice(fitting) if fitting else None

    async def _bind(self, each: Pod, name: str) -> bool:
        self._assumed[each.uid] = name
        webhook = self._webhook
        try:
            answer = await webhook.inject(each, name)
        except Refusal:
            answer = {}
        if ALLOCATED not in answer or webhook is not self._webhook:
            del self._assumed[each.uid]  # refused, or by a leader that leads no more: its lease denies the Binding
            return False
        chips = each.spec.containers[0].chips
        seen = pod(each.name, chips, node=name, annotations={**each.metadata.annotations, **answer})
        self._check(seen)
        self._bound[each.uid] = seen
        self._webhook.rig.world.add(seen)
        return True

    def _check(self, new: Pod) -> None:
        """No chip is given twice."""
        for other in self._bound.values():
            if other.spec.node_name == new.spec.node_name:
                assert not held_chips(new.metadata.annotations) & held_chips(other.metadata.annotations)

    async def _run(self) -> None:
        while self._left:
            for pods in [pods for pods in self._left if all(each.uid in self._bound for each in pods)]:
                await asyncio.sleep(RUN_S)
                self._left.remove(pods)
                for each in pods:
                    self._webhook.rig.world.cluster.pod_deleted(self._bound.pop(each.uid))
                    del self._assumed[each.uid], self._pods[each.uid]
            await asyncio.sleep(1)
        self._ended.set()
