"""Compares the allocator's state with the API server's objects now and then, and counts where they differ.

While the objects are read the cluster goes on, so what differs once may only have happened meanwhile: a difference
counts when a second look finds the same one. Objects are decoded and put together in a thread; the event loop only
compares, some nodes at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import structlog

from allocator.groups import KINDS
from allocator.state.audit import Difference, compare_by_parts, rebuild
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.deviceinfo import LABELS, NAMESPACE
from ascend.errors import UNREADABLE, ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import BATCH_JOBS, CONFIG_MAPS, NODES, PODS, STATEFUL_SETS, Resource, T

log = structlog.get_logger()

SECOND_LOOK_S = 10.0
PAGE_SIZE = 500
_SHOWN = 20


class _Meta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] | None = None


class SelfAudit:
    """Audits an allocator.

    Args:
        client: the API server.
        cluster: what is compared.
        ledger: its reservations.
        namespaces: where the ConfigMaps are that tell of the nodes.
        show: told how many differences there are, after every look.
        period_s: how often; 0 is never.
        second_look_s: how long to wait before a difference is believed.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        *,
        namespaces: Iterable[str] = (NAMESPACE,),
        show: Callable[[int], None],
        period_s: float,
        second_look_s: float = SECOND_LOOK_S,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._namespaces = tuple(dict.fromkeys(namespaces))
        self._show = show
        self._period_s = period_s
        self._second_look_s = second_look_s

    async def run(self, synced: Callable[[], Awaitable[None]]) -> None:
        """Audit until cancelled, once the view is complete."""
        if not self._period_s:
            return
        await synced()
        while True:
            await asyncio.sleep(self._period_s)
            try:
                found = await self.look()
            except (ApiError, Unreachable) as error:
                log.info("could not compare the state with the API server", error=str(error))
                continue
            self._show(len(found))
            for difference in found[:_SHOWN]:
                log.error(
                    "the state is not what the API server has",
                    about=difference.object,
                    field=difference.field,
                    kept=difference.kept,
                    rebuilt=difference.rebuilt,
                )

    async def look(self) -> list[Difference]:
        """The differences that are still there at a second look.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer, or not understandably.
        """
        first = set(await self._differences())
        if not first:
            return []
        await asyncio.sleep(self._second_look_s)
        return [each for each in await self._differences() if each in first]

    async def _differences(self) -> list[Difference]:
        labels = ",".join(f"{key}={value}" for key, value in LABELS.items())
        nodes = await self._read(NODES)
        reports: list[msgspec.Raw] = []
        for namespace in self._namespaces:
            reports += await self._read(CONFIG_MAPS, namespace=namespace, labels=labels)
        stateful_sets = await self._read(STATEFUL_SETS)
        batch_jobs = await self._read(BATCH_JOBS)
        groups = await self._groups()
        pods = await self._read(PODS)
        twin = self._cluster.twin()
        await asyncio.to_thread(
            lambda: rebuild(
                twin,
                nodes=_decode(nodes, NODES),
                reports=_decode(reports, CONFIG_MAPS),
                pods=_decode(pods, PODS),
                owners=[*_decode(stateful_sets, STATEFUL_SETS), *_decode(batch_jobs, BATCH_JOBS)],
                groups={kind: _decode(some, KINDS[kind]) for kind, some in groups.items()},
            )
        )
        found: list[Difference] = []
        for part in compare_by_parts(self._cluster, self._ledger, twin):
            found += part
            await asyncio.sleep(0)
        return sorted(found)

    async def _groups(self) -> dict[str, list[msgspec.Raw]]:
        found = {}
        for kind in KINDS.keys() & self._cluster.jobs.watched_kinds:
            try:
                found[kind] = await self._read(KINDS[kind])
            except NotFound:
                # The kind has gone, which its watch finds out when it looks again.
                continue
        return found

    async def _read(self, resource: Resource[T], *, namespace: str = "", labels: str = "") -> list[msgspec.Raw]:
        items: list[msgspec.Raw] = []
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": labels} if labels else {})}
        while True:
            raw = await self._client.request("GET", resource.path(namespace=namespace), query=query)
            try:
                page = msgspec.json.decode(raw, type=_Page)
            except UNREADABLE as error:
                raise Unreachable(f"the list of {resource.plural} is not understood: {error}") from error
            items += page.items or ()
            if not page.metadata.continue_:
                return items
            query["continue"] = page.metadata.continue_


def _decode(items: list[msgspec.Raw], resource: Resource[T]) -> list[T]:
    found = []
    for raw in items:
        try:
            found.append(msgspec.json.decode(raw, type=resource.type))
        except UNREADABLE:
            # The reflectors have said so, and ignore it too.
            continue
    return found
