"""The informers: they list and watch each kind of ``allocator.state.kinds`` and keep the cluster's state current."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from allocator.state.cluster import Cluster
from allocator.state.kinds import WatchedKind, watched_kinds
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from ascend.kube.reflector import Reflector
from ascend.rate_limiters import Backoff
from ascend.turn import Turn

log = structlog.get_logger()

DISCOVERY_S: Final = 60.0
"""How often it is checked whether an optional kind is served."""

LOOK_S: Final = 1.0
"""The shortest time between two checks, if pods that name such an object come in between."""


class Informers:
    """Feeds a cluster from the API server.

    Args:
        client: the API server.
        cluster: it is kept current.
        health_namespace: the setting ``node_health_namespace``.
        monotonic: the clock for ``age_s``.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        *,
        health_namespace: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        def informer(kind: WatchedKind) -> "Reflector[Any] | OptionalInformer":
            def make() -> Reflector[Any]:
                return make_reflector(client, cluster, kind, health_namespace, monotonic)

            return OptionalInformer(client, cluster, kind, make) if kind.is_optional else make()

        self._cluster = cluster
        self._settled = asyncio.Event()
        kinds = watched_kinds(health_namespace)
        self._informers = {kind.name: informer(kind) for kind in kinds}
        (self._pods,) = (
            informer
            for kind, informer in zip(kinds, self._informers.values(), strict=True)
            if kind.resource is PODS and isinstance(informer, Reflector)
        )

    def missing(self) -> str | None:
        """The informers that have not synced, a sentence; None once all have."""
        if self._settled.is_set():
            return None
        waiting = [name for name, informer in self._informers.items() if not informer.synced.is_set()]
        if not waiting:
            return "the informers have synced; their first lists are being read"
        return f"the informers have not synced: waiting for {', '.join(waiting)}"

    async def wait_until_synced(self) -> None:
        """Wait until all informers have synced, and the cluster has what they have listed."""
        await self._settled.wait()

    async def refresh_pods(self) -> None:
        """Wait until the informer has seen every Binding that the API server has made by now."""
        await self._pods.refresh()

    @property
    def age_s(self) -> float | None:
        """Seconds since the last contact with the API server, on the quietest watch; None before all had one."""
        ages = [informer.age_s for informer in self._informers.values()]
        return max((age for age in ages if age is not None), default=None) if None not in ages else None

    @property
    def objects(self) -> dict[str, Mapping[str, Any]]:
        """The copies by name of their kind; a kind that is not served is missing."""
        copies = {name: informer.objects for name, informer in self._informers.items()}
        return {name: copy for name, copy in copies.items() if copy is not None}

    async def run(self) -> None:
        """Keep the cluster current until cancelled."""
        self._cluster.begin()
        async with asyncio.TaskGroup() as tasks:
            for name, informer in self._informers.items():
                tasks.create_task(informer.run(), name=f"watch {name}")
            tasks.create_task(self._settle(), name="first lists")

    async def _settle(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()
        await Turn().share_between(self._cluster.settle())
        self._settled.set()


class OptionalInformer:
    """The informer of a kind that comes with a custom resource: it runs while the API server serves the kind.

    Args:
        client: the API server.
        cluster: it is kept current.
        kind: the kind.
        reflector: makes the reflector of the kind.
        discovery_s: how often it is checked whether the kind is served.

    Attributes:
        synced: set once all objects are known; there are none while the kind is not served.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        kind: WatchedKind,
        reflector: Callable[[], Reflector[Any]],
        *,
        discovery_s: float = DISCOVERY_S,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._kind = kind
        self._make_reflector = reflector
        self._discovery_s = discovery_s
        self._reflector: Reflector[Any] | None = None
        self._look = asyncio.Event()
        self.synced = asyncio.Event()
        cluster.jobs.discovery.register(kind.jobs, kind.name, self._look.set)

    @property
    def age_s(self) -> float | None:
        """Seconds since the last contact with the server; 0 while the kind is not served, None before that is known."""
        if self._reflector is not None:
            return self._reflector.age_s
        return 0.0 if self.synced.is_set() else None

    @property
    def objects(self) -> Mapping[str, Any] | None:
        """The copy; None while the kind is not served."""
        return self._reflector.objects if self._reflector is not None else None

    async def run(self) -> None:
        """Watch the kind whenever it is served, until cancelled."""
        while True:
            self._look.clear()
            waiting = self._cluster.jobs.discovery.waiting_for(self._kind.name)
            if await self._is_served():
                await self._watch()
            else:
                self._cluster.jobs.not_served(self._kind.name, waiting)
            self.synced.set()
            await asyncio.sleep(min(LOOK_S, self._discovery_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._discovery_s):
                    await self._look.wait()

    async def _watch(self) -> None:
        log.info("watching an optional kind", kind=self._kind.name)
        reflector = self._reflector = self._make_reflector()
        async with asyncio.TaskGroup() as tasks:
            watch = tasks.create_task(reflector.run(), name=f"watch {self._kind.name}")
            await reflector.synced.wait()
            self._cluster.jobs.on_watched(self._kind.jobs, self._kind.name)
            self.synced.set()
            is_served = True
            while is_served:
                await asyncio.sleep(self._discovery_s)
                is_served = await self._is_served()
            watch.cancel()
        log.info("an optional kind is no longer served", kind=self._kind.name)
        self._cluster.on_unserved(self._kind.jobs, self._kind.name)
        self._reflector = None

    async def _is_served(self) -> bool:
        backoff = Backoff()
        while True:
            try:
                await self._client.request("GET", self._kind.resource.path(), query={"limit": "1"}, timeout_s=30.0)
            except NotFound:
                return False
            except (ApiError, Unreachable) as error:
                # Forbidden does not mean not served: the pods of a gang must not be treated as single pods.
                log.warning("can't list an optional kind", kind=self._kind.name, error=str(error))
                await asyncio.sleep(backoff.next_s())
            else:
                return True


def make_reflector(
    client: KubeClient,
    cluster: Cluster,
    kind: WatchedKind,
    health_namespace: str = "",
    monotonic: Callable[[], float] = time.monotonic,
) -> Reflector[Any]:
    """The reflector that feeds a cluster with the objects of a kind.

    Args:
        client: the API server.
        cluster: it is kept current.
        kind: the kind.
        health_namespace: the setting ``node_health_namespace``.
        monotonic: the clock for ``age_s``.
    """
    return Reflector(
        client,
        kind.resource,
        _Handler(cluster, kind),
        namespace=kind.namespace(health_namespace),
        label_selector=kind.label_selector,
        field_selector=kind.field_selector,
        unkept=kind.unkept(cluster) if kind.unkept is not None else None,
        unreadable=partial(cluster.on_unreadable, kind.jobs) if kind.is_optional else None,
        monotonic=monotonic,
    )


@dataclass(frozen=True, slots=True)
class _Handler:
    cluster: Cluster
    kind: WatchedKind

    def on_apply(self, obj: Any) -> None:
        """Add or update an object."""
        self.kind.apply(self.cluster, obj)

    def on_delete(self, obj: Any) -> None:
        """Remove an object."""
        self.kind.delete(self.cluster, obj)
