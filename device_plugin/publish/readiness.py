"""Says on the Node what ``/readyz`` says on the node itself: the condition ``AscendDevicePluginNotReady``.

It is written from the first second on, because a plugin that waits for a right, its driver or its kubelet reports
nothing else. Its message changes with its reason only: times and attempts in it would write the Node all the time.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import structlog

from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, Condition
from ascend.rate_limiters import Backoff
from device_plugin.publish.node_conditions import ENDED, NO_FAULT, NOT_READY, Lack, true_condition
from device_plugin.publish.node_health import HEARTBEAT_S, RETRY_LIMIT_S, patch_conditions, write_last

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LOOK_S: Final = 5.0
"""How often is looked; what two looks in a row find is written, so a start or a lost answer writes nothing."""


class Readiness:
    """Keeps the condition up to date.

    Args:
        client: the API server.
        node: the node's name.
        lacks: returns what the plugin lacks, each with a sentence; None if another instance works on the node.
        now: the wall clock.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        lacks: Callable[[], Mapping[Lack, str] | None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._node = node
        self._lacks = lacks
        self._now = now

    async def run(self) -> None:
        """Write until cancelled."""
        loop, backoff = asyncio.get_running_loop(), Backoff(limit_s=RETRY_LIMIT_S)
        before, written, due_s = "", "", math.inf
        while True:
            await asyncio.sleep(LOOK_S)
            lacks = self._lacks()
            if lacks is None:
                written = ""
                continue
            found = _condition(lacks)
            is_new = found.reason != written and found.reason in {before, NO_FAULT}
            before = found.reason
            if is_new or (found.reason == written and loop.time() >= due_s):
                try:
                    await self._write(found)
                except (ApiError, Unreachable) as error:
                    wait_s = backoff.after(error)
                    log.warning("readiness not written on the Node", error=str(error), retry_s=round(wait_s, 2))
                    await asyncio.sleep(wait_s)
                else:
                    backoff.reset()
                    written, due_s = found.reason, loop.time() + HEARTBEAT_S

    async def sign_off(self) -> None:
        """Say that the plugin has ended, even if it never worked; to be called after ``run``."""
        condition = Condition(NOT_READY, "Unknown", ENDED, "the device plugin has ended")
        await write_last("readiness", self._write(condition))

    async def _write(self, condition: Condition) -> None:
        shown = (await self._client.get(NODES, self._node)).status.conditions
        await patch_conditions(
            self._client, self._node, (condition,), {written.type: written for written in shown}, self._now()
        )
        log.info("readiness written on the Node", status=condition.status, reason=condition.reason)


def _condition(lacks: Mapping[Lack, str]) -> Condition:
    if not lacks:
        return Condition(NOT_READY, "False", NO_FAULT, "the device plugin lacks nothing")
    sentences = (f"{lack}: {sentence}" for lack, sentence in lacks.items())
    return true_condition(NOT_READY, ",".join(lack.reason for lack in lacks), sentences)
