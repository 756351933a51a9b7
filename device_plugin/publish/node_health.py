"""Writes the Node's conditions about its chips, and its taint, and removes the taint (``node_conditions.py``)."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import ApiError, Conflict, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import NODES, Condition, JsonObject, Node, Taint, is_newer
from ascend.rate_limiters import Backoff
from device_plugin.health.snapshot import Snapshot
from device_plugin.publish.node_conditions import (
    CONDITIONS,
    ENDED,
    OTHER_PLUGIN,
    TAINT,
    TaintRule,
    node_conditions,
    unknown_conditions,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

HEARTBEAT_S: Final = 300.0
"""How often the time of the last heartbeat is written, by default of the node-problem-detector too."""
LOOK_S: Final = 5.0
"""How often is looked for another plugin that serves the node."""
MIN_GAP_S: Final = 1.0
RETRY_LIMIT_S: Final = 30.0
SIGN_OFF_S: Final = 1.0
"""How long the last write of the taint may take, and then that of the conditions."""
SIGN_OFF_RETRY_S: Final = 0.02


class NodeHealthWriter:
    """Keeps conditions and taint up to date; a handler of the Node's changes.

    Args:
        client: the API server.
        node: the node's name.
        snapshots: the node's chips.
        rule: which faults taint the Node; None if none does: the taint of an earlier plugin is removed then.
        now: the wall clock.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        *,
        snapshots: Observable[Snapshot | None],
        rule: TaintRule | None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._node = node
        self._snapshots = snapshots
        self._rule = rule
        self._now = now
        self._seen: Observable[Node | None] = Observable(None)

    def on_apply(self, obj: Node) -> None:
        """Take over a change of the Node; the watch shows this program's own writes too, later."""
        before = self._seen.value
        if before is None or is_newer(obj.metadata.resource_version, before.metadata.resource_version):
            self._seen.set(obj)

    def on_delete(self, obj: Node) -> None:  # noqa: ARG002 - a handler's signature
        """Take over that the Node is gone."""
        self._seen.set(None)

    async def run(self, other_plugin: Callable[[], str | None]) -> None:
        """Write until cancelled.

        Args:
            other_plugin: returns the sentence about another plugin that serves the node; None if there is none.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(limit_s=RETRY_LIMIT_S)
        sources = (self._snapshots, self._seen)
        heartbeat_s = -HEARTBEAT_S
        while True:
            versions = [source.version for source in sources]
            snapshot, node = self._snapshots.value, self._seen.value
            if snapshot is None or node is None:
                await wait_for_change(sources, versions)
                continue
            if (other := other_plugin()) is not None:
                conditions, taint = unknown_conditions(OTHER_PLUGIN, other), None
            else:
                conditions, taint = node_conditions(snapshot), self._taint(snapshot, node)
            is_due = loop.time() >= heartbeat_s + HEARTBEAT_S
            error = await self._write(node, conditions, taint, is_due=is_due)
            if error is not None:
                wait_s = backoff.after(error)
                log.warning("health not written on the Node", error=str(error), retry_s=round(wait_s, 2))
                await asyncio.sleep(wait_s)
                continue
            backoff.reset()
            if is_due:
                heartbeat_s = loop.time()
            if self._seen.value is node:  # nothing was written
                await wait_for_change(sources, versions, LOOK_S)
            else:
                await asyncio.sleep(MIN_GAP_S)

    async def sign_off(self) -> None:
        """Say that nobody watches the chips any more, and remove the taint, which nobody would remove later.

        To be called once nothing else writes them, and no other plugin serves the node.
        """
        if (node := self._seen.value) is None:
            return
        # The API server may have executed a write that the end interrupted, and the watch does not show it in time.
        if self._rule is not None or any(taint.key == TAINT for taint in node.spec.taints):
            await write_last("taint", self._remove_taint())
        conditions = unknown_conditions(ENDED, "the device plugin has ended")
        await write_last("conditions", self._write_conditions(_shown(node), conditions))

    async def _remove_taint(self) -> None:
        while True:
            with contextlib.suppress(Conflict):  # the kubelet's write, or this program's own that the end interrupted
                await self._write_taint(None)
                return
            await asyncio.sleep(SIGN_OFF_RETRY_S)

    def _taint(self, snapshot: Snapshot, node: Node) -> Taint | None:
        present = next((taint.value for taint in node.spec.taints if taint.key == TAINT), None)
        return self._rule.taint(snapshot, present) if self._rule is not None else None

    async def _write(
        self, node: Node, conditions: Sequence[Condition], taint: Taint | None, *, is_due: bool
    ) -> ApiError | Unreachable | None:
        """Write missing conditions and taints; return the last error: a missing right does not stop the rest."""
        refused: ApiError | Unreachable | None = None
        shown = _shown(node)
        if is_due or any(shown.get(condition.type) != condition for condition in conditions):
            try:
                await self._write_conditions(shown, conditions)
            except (ApiError, Unreachable) as error:
                refused = error
        present = [found for found in node.spec.taints if found.key == TAINT]
        if present != ([taint] if taint is not None else []):
            try:
                await self._write_taint(taint)
            except (ApiError, Unreachable) as error:
                refused = error
        return refused

    async def _write_conditions(self, shown: Mapping[str, Condition], conditions: Sequence[Condition]) -> None:
        self.on_apply(await patch_conditions(self._client, self._node, conditions, shown, self._now()))
        if any(shown.get(condition.type) != condition for condition in conditions):
            log.info(
                "conditions written",
                conditions={condition.type: f"{condition.status}, {condition.reason}" for condition in conditions},
            )

    async def _write_taint(self, taint: Taint | None) -> None:
        # Taints are one list: those of others are kept as they are, with fields that this program does not know, and
        # the version makes the write fail if somebody has changed them meanwhile.
        answer = await self._client.request("GET", NODES.path(name=self._node))
        found: dict[str, Any] = msgspec.json.decode(answer)
        present = found["spec"].get("taints", ())
        others = [taint for taint in present if taint.get("key") != TAINT]
        taints = [*others, *([msgspec.to_builtins(taint)] if taint is not None else [])]
        body = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"]}, "spec": {"taints": taints}}
        self.on_apply(await self._client.patch(NODES, self._node, body))
        if taint is not None:
            log.warning("the Node is tainted", taint=f"{taint.key}={taint.value}:{taint.effect}")
        elif len(others) < len(present):
            log.info("the Node's taint is removed", taint=TAINT)


async def write_last(part: str, write: Awaitable[None]) -> None:
    """Write on the Node that the plugin has ended; a failure is logged, and the end not delayed by it."""
    try:
        async with asyncio.timeout(SIGN_OFF_S):
            await write
    except (ApiError, Unreachable, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        log.warning("the end of the plugin is not written on the Node", part=part, error=reason)


async def patch_conditions(
    client: KubeClient, node: str, conditions: Sequence[Condition], shown: Mapping[str, Condition], now: datetime
) -> Node:
    """Write conditions of a Node, beside foreign conditions; ``shown`` are the present conditions, by type.

    Raises:
        ApiError: the server refuses.
        Unreachable: it does not answer.
    """
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    written: list[JsonObject] = []
    for condition in conditions:
        body = {**msgspec.to_builtins(condition), "lastHeartbeatTime": stamp}
        if condition.type not in shown or shown[condition.type].status != condition.status:
            body["lastTransitionTime"] = stamp
        written.append(body)
    body = {"status": {"conditions": written}}
    return await client.patch(NODES, node, body, subresource="status", content_type=STRATEGIC_MERGE_PATCH)


def _shown(node: Node) -> dict[str, Condition]:
    return {condition.type: condition for condition in node.status.conditions if condition.type in CONDITIONS}
