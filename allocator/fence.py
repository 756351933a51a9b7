"""The fence: an object that names the one allocator whose Bindings the API server lets pass.

An admission policy compares it with what a Binding says of who made it (``allocator.leader`` says why). The Lease
itself would do, but the API server (seen in 1.34.4: apiserver/pkg/admission/plugin/policy/generic, ensureParams…)
follows objects of its own kinds for policies only until the last such policy is deleted, and never again until it is
restarted: after a reinstallation all Bindings would be denied. Objects of a kind of our own it follows every time.

Every write names the version it builds on, so that a leader that stood still can't put its name back.
"""

import asyncio
from collections.abc import Callable

import structlog

from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import LEADERS, JsonObject

log = structlog.get_logger()

PERIOD_S = 10.0
"""Time between writes; where nothing differs the API server stores nothing."""
RETRY_S = 0.5


class Fence:
    """Our name on the object.

    Args:
        client: the API server.
        namespace: where the object is.
        name: its name.
        identity: what a Binding of ours says of who made it.
        leads: whether we lead.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str, leads: Callable[[], bool]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._leads = leads
        self._version = ""

    async def close(self) -> None:
        """Put our name on it, so that nobody else's Bindings pass; tried until it is done or we lead no more."""
        while self._leads():
            if await self._written():
                break
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Keep it so until cancelled, also when somebody deletes it."""
        while self._leads():
            await asyncio.sleep(PERIOD_S)
            await self.close()

    async def _written(self) -> bool:
        try:
            await self._write()
        except (ApiError, Unreachable) as error:
            log.warning("could not close the fence", fence=self._name, error=error.message)
            return False
        return True

    async def _write(self) -> None:
        content: JsonObject = {"spec": {"holder": self._identity}}
        try:
            if not self._version:
                await self._look()
            body: JsonObject = {"metadata": {"resourceVersion": self._version}, **content}
            written = await self._client.patch(LEADERS, self._name, body, namespace=self._namespace)
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "ascend-affinity.io/v1alpha1", "kind": "Leader", "metadata": metadata, **content}
            written = await self._client.create(LEADERS, body, self._namespace)
        except Conflict:
            self._version = ""  # somebody has written it: looked at again, if we still lead
            raise
        self._version = written.metadata.resource_version

    async def _look(self) -> None:
        found = await self._client.get(LEADERS, self._name, self._namespace)
        self._version = found.metadata.resource_version
