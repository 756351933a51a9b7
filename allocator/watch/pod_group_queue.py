"""Admits Volcano's pod groups to the queue, for operators that create pods only then.

MindCluster's ascend-operator (with ``--enableGangScheduling``), Kubeflow's training operator (with
``--gang-scheduler-name=volcano``) and Volcano's job controller make a pod group, and no pods while its phase is empty
or ``Pending``. Only Volcano's scheduler changes it, to ``Inqueue``; so jobs that name another scheduler wait for ever.
The allocator changes the phase of such a group at once: whether its pods fit is decided when they exist, as for every
gang. It never touches a group whose job names a scheduler that is not served.
"""

import asyncio
from typing import Final, Protocol

import msgspec
import structlog

from allocator.settings import Settings
from ascend.errors import ApiError, Conflict, InvalidValue, NotFound, Unreachable
from ascend.jobs.kind import VOLCANO_SCHEDULER
from ascend.jobs.table import ENQUEUED
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject, OwnerReference, Resource
from ascend.kube.reflector import Reflector
from ascend.kube.workloads import OfJob

log = structlog.get_logger()

INQUEUE: Final = "Inqueue"
RETRY_S: Final = 5.0


class PodGroupStatus(msgspec.Struct, frozen=True):
    """The status of a pod group."""

    phase: str = ""


class QueuedPodGroup(OfJob, frozen=True, kw_only=True):
    """A pod group of Volcano, with its phase."""

    status: PodGroupStatus = PodGroupStatus()

    @property
    def waits(self) -> bool:
        """Whether its operator makes no pods because of its phase."""
        return self.status.phase in {"", "Pending"} and self.metadata.deletion_timestamp is None


POD_GROUPS = Resource(QueuedPodGroup, "PodGroup", "apis/scheduling.volcano.sh/v1beta1", "podgroups")


class Leads(Protocol):
    """Whether this allocator leads."""

    def leads(self) -> bool:
        """Whether it does now."""

    async def wait_until_open(self) -> None:
        """Wait until it does."""


class PodGroupQueue:
    """Admits pod groups.

    Args:
        client: the API server.
        settings: whether to, and the names of the schedulers that are served.
        leadership: only the leader admits.
        retry_s: seconds until a group is tried again whose job could not be read, or whose phase not be changed.
    """

    def __init__(self, client: KubeClient, settings: Settings, leadership: Leads, *, retry_s: float = RETRY_S) -> None:
        self._client = client
        self._is_on = settings.enqueue_pod_groups
        self._schedulers = frozenset(settings.scheduler_names)
        self._leadership = leadership
        self._retry_s = retry_s
        self._waiting: dict[str, QueuedPodGroup] = {}
        self._wake = asyncio.Event()

    def on_apply(self, obj: QueuedPodGroup) -> None:
        """Add or update a pod group."""
        if obj.waits and _job_of(obj) is not None:
            self._waiting[obj.uid] = obj
            self._wake.set()
        else:
            self._waiting.pop(obj.uid, None)

    def on_delete(self, obj: QueuedPodGroup) -> None:
        """Remove a pod group."""
        self._waiting.pop(obj.uid, None)

    async def run(self) -> None:
        """Admit pod groups until cancelled, if the settings say so."""
        if not self._is_on:
            return
        await self._leadership.wait_until_open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Reflector(self._client, POD_GROUPS, self).run(), name="watch the phase of pod groups")
            while True:
                await self._wake.wait()
                self._wake.clear()
                failed = [uid for uid, group in tuple(self._waiting.items()) if not await self._judge(group)]
                if any(uid in self._waiting for uid in failed):
                    await asyncio.sleep(self._retry_s)
                    self._wake.set()

    async def _judge(self, group: QueuedPodGroup) -> bool:
        """Admit a group if its job names only served schedulers; return False if it has to be tried again."""
        if self._waiting.get(group.uid) is not group or not self._leadership.leads():
            return True
        try:
            schedulers = await self._schedulers_of(group)
            if schedulers <= self._schedulers:
                await self._admit(group)
                log.info("admitted a pod group to the queue", group=group.key, schedulers=sorted(schedulers))
            else:
                log.debug("left a pod group to its scheduler", group=group.key, schedulers=sorted(schedulers))
        except (NotFound, Conflict):
            pass  # it has changed or is gone, and so the watch reports it
        except (ApiError, Unreachable, InvalidValue) as error:
            log.warning("could not admit a pod group to the queue", group=group.key, error=str(error))
            return False
        if self._waiting.get(group.uid) is group:
            del self._waiting[group.uid]
        return True

    async def _schedulers_of(self, group: QueuedPodGroup) -> set[str]:
        owner = _job_of(group)
        if owner is None:
            return {VOLCANO_SCHEDULER}
        job = await self._client.get(ENQUEUED[_kind(owner)], owner.name, group.metadata.namespace)
        # A job that was recreated under its name has another group.
        schedulers: set[str] = job.spec.schedulers
        return schedulers if job.uid == owner.uid else {VOLCANO_SCHEDULER}

    async def _admit(self, group: QueuedPodGroup) -> None:
        # With its version, so that a phase that Volcano has written meanwhile is not overwritten.
        version = {"uid": group.uid, "resourceVersion": group.metadata.resource_version}
        body: JsonObject = {"metadata": version, "status": {"phase": INQUEUE}}
        namespace = group.metadata.namespace
        try:
            await self._client.patch(POD_GROUPS, group.name, body, namespace=namespace, subresource="status")
        except NotFound:
            # In Volcano's definition up to 1.9 the status is no subresource.
            await self._client.patch(POD_GROUPS, group.name, body, namespace=namespace)


def _kind(owner: OwnerReference) -> str:
    return f"{owner.api_version.partition('/')[0]} {owner.kind}"


def _job_of(group: QueuedPodGroup) -> OwnerReference | None:
    """The job for which an operator has made a group; None if its phase keeps no pods from being created."""
    owner = group.metadata.controller
    return owner if owner is not None and _kind(owner) in ENQUEUED else None
