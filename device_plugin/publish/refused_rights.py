"""Remembers what the API server has refused this plugin for want of a right, until it has the right.

Most of what the plugin does there is tried again and again, and the rest goes on without it: only the log would tell.
"""

import asyncio
import re
from typing import Final

import structlog

from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from device_plugin.publish.rights import RIGHTS, Right, is_granted

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASK_S: Final = 60.0
"""How often the API server is asked for the rights that are lacking, by each node."""

_REFUSAL: Final = re.compile(
    r'cannot ([a-z]+) resource "([a-z]+)(?:/([a-z]+))?" in API group "([a-z0-9.]*)"(?: in the namespace "([^"]+)")?'
)
"""What an API server says of a request that no authorizer allows; what admission denies has other words."""


class RefusedRights:
    """The rights that this plugin has needed and lacks."""

    def __init__(self) -> None:
        self._lacking: set[Right] = set()

    @property
    def problem(self) -> str | None:
        """Which rights are lacking, a sentence; None if none is known to be."""
        named = "; ".join(sorted(f"{right}, for: {right.why}" for right in self._lacking))
        return f"the API server refuses to {named}" if named else None

    def note(self, error: ApiError) -> None:
        """Take over an answer that refuses a request."""
        if (found := _REFUSAL.search(error.message)) is None:
            return
        verb, resource, subresource, group, namespace = found.groups(default="")
        for right in RIGHTS:
            refused = (right.verb, right.resource, right.subresource, right.group)
            if refused == (verb, resource, subresource, group) and right.namespace in {"", namespace}:
                self._lacking.add(right)
                return

    async def follow(self, client: KubeClient) -> None:
        """Forget each right that is granted meanwhile, until cancelled."""
        while True:
            await asyncio.sleep(ASK_S)
            for right in tuple(self._lacking):
                try:
                    if await is_granted(client, right):
                        self._lacking.discard(right)
                except (ApiError, Unreachable) as error:
                    log.info("can't ask for a right", right=str(right), error=str(error))
