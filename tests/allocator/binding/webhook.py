"""The webhook for Bindings on a small cluster, and pods of gangs whose Bindings a scheduler posts to it."""

import asyncio
from collections.abc import Mapping

from allocator.binding.annotations import Stamper
from allocator.binding.binding import PodRef
from allocator.binding.injection import Injector
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.binding.rig import NOW_NS, BinderWorld
from tests.allocator.builders import GROUP, node, pod

OLD, NEW = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def gang(name: str, size: int = 2, *, since: str = OLD, priority: int = 0) -> list[Pod]:
    """The pods of a gang."""
    annotations = {GROUP: name, MIN_AVAILABLE: str(size)}
    ranks = range(size)
    return [pod(f"{name}-{rank}", 8, annotations=annotations, since=since, priority=priority) for rank in ranks]


class Webhook:
    """The webhook of an allocator with four servers."""

    def __init__(self, *pods: Pod) -> None:
        self.rig = BinderWorld(*pods)
        self.rig.world.add(node("n3"), node("n4"))
        self.injector = Injector(
            pods=self.rig.pods,
            engine=self.rig.world.engine,
            barrier=self.rig.barrier,
            stamper=Stamper(self.rig.world.cluster, self.rig.world.ledger, lambda: NOW_NS),
            monotonic=asyncio.get_running_loop().time,
        )

    async def inject(self, each: Pod, name: str) -> Mapping[str, str]:
        return await self.injector.inject(PodRef.of(each), name)

    async def together(self, nodes: Mapping[str, Pod]) -> list[Mapping[str, str] | BaseException]:
        """Post Bindings at the same time; nodes and their pods."""
        calls = (self.inject(each, name) for name, each in nodes.items())
        return await asyncio.gather(*calls, return_exceptions=True)


def reasons(answers: list[Mapping[str, str] | BaseException]) -> list[str]:
    """The reason of each refusal; empty for an injected Binding."""
    return [answer.reason if isinstance(answer, Refusal) else "" for answer in answers]
