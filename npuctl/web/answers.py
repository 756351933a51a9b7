"""The answers of ``queue``, ``explain`` and ``plan``, worked out one after the other in a thread.

The loop goes on meanwhile: it shows changes, and may have questions waiting.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from msgspec import structs
from rich.console import RenderableType

from ascend.chips import ChipSet
from ascend.errors import InvalidValue
from npuctl.evaluation import Evaluation
from npuctl.explain.answer import Explanation
from npuctl.explain.command import render as render_explanation
from npuctl.explain.explanation import explain
from npuctl.output import SafeConsole
from npuctl.plan.command import plan_into
from npuctl.plan.layout import render as render_plan
from npuctl.queue.entries import Queue, QueueEntry
from npuctl.reading.files import documents_in
from npuctl.reading.manifests import read_manifests
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import Source
from npuctl.topo.summary import Totals
from npuctl.web.live import MANY_NODES, KeptChips, LiveCluster, groups_of

_WIDTH: Final = 400
"""The browser breaks the lines."""

MOST_BYTES: Final = 64 * 1024
"""The largest manifest that is read."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """What waits, as of a time.

    Attributes:
        entries: the queue.
        kept: the chips that are kept, and those that pods get next.
        totals: sums over all nodes.
        groups: sums over groups of them by level; none of a few nodes.
    """

    entries: tuple[QueueEntry, ...] = ()
    kept: KeptChips = field(default_factory=KeptChips)
    totals: Totals = field(default_factory=lambda: Totals.of(()))
    groups: dict[str, list[Totals]] = field(default_factory=dict)


class Answers:
    """Answers questions about a cluster as it is when they are asked."""

    def __init__(self, live: LiveCluster) -> None:
        self._live = live
        self._thread = ThreadPoolExecutor(1, "answers")

    async def _work_out(self, work: Callable[[ClusterObjects, Source], Coroutine[Any, Any, T]]) -> T:
        objects, source = self._live.objects(), self._live.source.at_present()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: asyncio.run(work(objects(), source)))

    async def waiting(self) -> WaitingWork:
        """What waits now."""
        views = list(self._live.views.values())
        where = {view.node: self._live.location(view.node) for view in views} if len(views) >= MANY_NODES else {}

        async def work(objects: ClusterObjects, source: Source) -> WaitingWork:
            evaluation = Evaluation(objects, source.settings, source.now_ns)
            entries = await Queue(evaluation).read()
            return WaitingWork(
                entries, _kept(evaluation, entries), Totals.of(views), groups_of(views, where) if where else {}
            )

        return await self._work_out(work)

    async def explain(self, pods: Sequence[str]) -> tuple[Explanation, ...]:
        """Explain pods (``namespace/name``) of a job; those that are gone are left out."""
        wanted = frozenset(pods)

        async def work(objects: ClusterObjects, source: Source) -> tuple[Explanation, ...]:
            found = [pod for pod in objects.pods if pod.key in wanted]
            return await explain(found, objects, source.settings, source.now_ns)

        return await self._work_out(work)

    async def plan(self, manifest: str) -> str:
        """What ``npuctl plan --cluster`` says of a manifest.

        Raises:
            InvalidValue: it is too large, or invalid.
        """
        if len(manifest.encode()) > MOST_BYTES:
            raise InvalidValue(f"the manifest has more than {MOST_BYTES // 1024} KiB")

        async def work(objects: ClusterObjects, source: Source) -> str:
            name = "manifest"
            reading = read_manifests([name], documents=lambda _: documents_in(name, manifest))
            there, said = {pod.key for pod in objects.pods}, list[str]()
            plan = await plan_into(objects, reading, source, say=said.append)
            own = structs.replace(
                plan,
                pods=tuple(pod for pod in plan.pods if f"{pod.namespace}/{pod.name}" not in there),
                pending=tuple(pod for pod in plan.pending if f"{pod.namespace}/{pod.name}" not in there),
            )
            return "\n".join([in_words(render_plan(own, every_pod=False)), *said])

        return await self._work_out(work)


def _kept(evaluation: Evaluation, entries: Sequence[QueueEntry]) -> KeptChips:
    cluster, kept, due = evaluation.allocator.cluster, dict[str, ChipSet](), dict[str, ChipSet]()
    for promise in evaluation.allocator.ledger.promises:
        for node, chips in promise.chips.items():
            kept[node] = kept.get(node, 0) | chips
    starting = {(pod.node, f"{entry.namespace}/{pod.name}") for entry in entries for pod in entry.pods if pod.node}
    for name in {node for node, _ in starting}:
        for holding in cluster.nodes[name].holdings.values():
            if (name, holding.pod) in starting:
                due[name] = due.get(name, 0) | holding.occupied
    return KeptChips({node: (kept.get(node, 0), due.get(node, 0)) for node in {**kept, **due}})


def explained(answer: Explanation) -> str:
    """The answer of ``npuctl explain`` in words."""
    return in_words(render_explanation(answer))


def in_words(answer: RenderableType) -> str:
    """An answer as the command prints it, without colours."""
    console = SafeConsole(width=_WIDTH)
    lines = "".join(segment.text for segment in console.render(answer) if not segment.control).splitlines()
    return "\n".join(line.rstrip() for line in lines)
