"""The watches of pod groups: each runs while the API server has the kind, and is looked for again now and then.

The kinds come with Volcano or with the coscheduling plugin; a cluster without them is as good as any other.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from allocator.rules.job import COSCHEDULING, VOLCANO
from allocator.state.jobs import Jobs
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import COSCHEDULING_POD_GROUPS, VOLCANO_POD_GROUPS, PodGroup, Resource
from ascend.kube.reflector import Reflector

log = structlog.get_logger()

LOOK_AGAIN_S = 60.0
KINDS = {VOLCANO: VOLCANO_POD_GROUPS, COSCHEDULING: COSCHEDULING_POD_GROUPS}


class GroupWatch:
    """Feeds the jobs with the groups of one kind.

    Args:
        client: the API server.
        jobs: what is fed.
        kind: the kind, as jobs call it.
        monotonic: the clock for ``age_s``.
        look_again_s: how often to see whether the kind has come or gone.
    """

    def __init__(
        self,
        client: KubeClient,
        jobs: Jobs,
        kind: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        look_again_s: float = LOOK_AGAIN_S,
    ) -> None:
        self._client = client
        self._jobs = jobs
        self._kind = kind
        self._resource: Resource[PodGroup] = KINDS[kind]
        self._monotonic = monotonic
        self._look_again_s = look_again_s
        self._reflector: Reflector[PodGroup] | None = None
        self.synced = asyncio.Event()
        """Set once it is known which groups there are, none where the API server does not have the kind."""

    @property
    def age_s(self) -> float | None:
        """Seconds since the server was last heard of; 0 where there is nothing to hear, None before that is known."""
        if self._reflector is not None:
            return self._reflector.age_s
        return 0.0 if self.synced.is_set() else None

    def applied(self, group: PodGroup) -> None:
        """A group is new or has changed."""
        self._jobs.group_applied(self._kind, group)

    def deleted(self, group: PodGroup) -> None:
        """A group is gone."""
        self._jobs.group_deleted(self._kind, group)

    async def run(self) -> None:
        """Watch the groups whenever there is something to watch, until cancelled."""
        while True:
            if await self._exists():
                await self._follow()
            self.synced.set()
            await asyncio.sleep(self._look_again_s)

    async def _follow(self) -> None:
        log.info("watching pod groups", kind=self._kind)
        reflector = self._reflector = Reflector(self._client, self._resource, self, monotonic=self._monotonic)
        task = asyncio.create_task(reflector.run(), name=f"watch {self._kind}")
        try:
            await _either(task, reflector.synced.wait())
            self._jobs.watched(self._kind)
            self.synced.set()
            exists = True
            while exists:
                await _either(task, asyncio.sleep(self._look_again_s))
                exists = await self._exists()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        log.info("pod groups are no longer served", kind=self._kind)
        self._jobs.unwatched(self._kind)
        self._reflector = None

    async def _exists(self) -> bool:
        backoff = Backoff()
        while True:
            try:
                await self._client.request("GET", self._resource.path(), query={"limit": "1"}, timeout_s=30.0)
            except NotFound:
                return False
            except (ApiError, Unreachable) as error:
                # Not allowed is not the same as not there: a gang must not be taken for single pods.
                log.warning("can't read pod groups", kind=self._kind, error=str(error))
                await asyncio.sleep(backoff.next_s())
            else:
                return True


async def _either(task: "asyncio.Task[None]", other: Coroutine[Any, Any, object]) -> None:
    """Wait for the other; the task is to go on meanwhile, and its failure is ours."""
    waiting = asyncio.create_task(other)
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        waiting.cancel()
