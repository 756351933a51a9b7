"""The fence: an object that names the one allocator whose Bindings the API server admits.

An admission policy compares it with the name in each Binding (``allocator.leadership.leader`` has the reason). The
Lease itself could serve, but the API server (seen in 1.34.4: apiserver/pkg/admission/plugin/policy/generic,
ensureParams…) watches objects of built-in kinds for policies only until the last such policy is deleted, and not again
before it is restarted: after a reinstallation all Bindings would be denied. Objects of a custom resource are watched
every time.

Every write has the resourceVersion it builds on, so a former leader that was suspended can't write its name again.
"""

import asyncio
from collections.abc import Callable

import structlog

from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import LEADERS, JsonObject

log = structlog.get_logger()

PERIOD_S = 10.0
"""Time between writes; the API server stores nothing if the object is unchanged."""
RETRY_S = 0.5


class Fence:
    """This allocator's name in the object.

    Args:
        client: the API server.
        namespace: the object's namespace.
        name: the object's name.
        identity: the name of this allocator in its Bindings.
        leads: whether this allocator leads.
    """

    def __init__(self, client: KubeClient, namespace: str, name: str, identity: str, leads: Callable[[], bool]) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._leads = leads
        self._version = ""

    async def close(self) -> None:
        """Write the name, so that no other allocator's Bindings are admitted; retried while this allocator leads."""
        while self._leads():
            try:
                await self._write()
                return
            except (ApiError, Unreachable) as error:
                log.warning("can't close the fence", fence=self._name, error=error.message)
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Keep the name written until cancelled, also if the object is deleted."""
        while self._leads():
            await asyncio.sleep(PERIOD_S)
            await self.close()

    async def _write(self) -> None:
        content: JsonObject = {"spec": {"holder": self._identity}}
        try:
            if not self._version:
                found = await self._client.get(LEADERS, self._name, self._namespace)
                self._version = found.metadata.resource_version
            body: JsonObject = {"metadata": {"resourceVersion": self._version}, **content}
            written = await self._client.patch(LEADERS, self._name, body, namespace=self._namespace)
        except NotFound:
            metadata = {"name": self._name, "namespace": self._namespace}
            body = {"apiVersion": "ascend-affinity.io/v1alpha1", "kind": "Leader", "metadata": metadata, **content}
            written = await self._client.create(LEADERS, body, self._namespace)
        except Conflict:
            self._version = ""  # another process has written it: read again, if this one still leads
            raise
        self._version = written.metadata.resource_version
