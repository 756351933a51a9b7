"""Writes what the node's own object tells of its chips: annotations and labels."""

import asyncio
from collections.abc import Collection, Mapping

import structlog

from ascend.errors import ApiError, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES, Node
from device_plugin.rules.node_labels import SERVER_TYPE_LABEL

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

PATCH_TIMEOUT_S = 3.0
"""How long an answer is waited for: some admission webhook may hang, and the next report has to wait as long."""


class NodeWriter:
    """Keeps our annotations and labels on the Node; those of others stay.

    Args:
        client: the API server.
        node: the node's name.
        outdated: labels of ours that say nothing any more; taken away where an earlier plugin left them.
    """

    def __init__(self, client: KubeClient, node: str, outdated: Collection[str] = ()) -> None:
        self._client = client
        self._node = node
        self._outdated = outdated
        self._written: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._keeps_server_type = False
        self.problem: str | None = "waiting for this node's Node object"
        """Why nothing is known of the Node yet; None once it was there."""

    async def learn(self) -> Node:
        """The Node, as soon as there is one; whoever has set its ``servertype`` knows better."""
        backoff = Backoff(limit_s=5.0)
        while True:
            try:
                node = await self._client.get(NODES, self._node)
            except (ApiError, Unreachable) as error:
                log.warning("waiting for this node's Node object", node=self._node, error=str(error))
                await asyncio.sleep(backoff.next_s())
            else:
                self._keeps_server_type = SERVER_TYPE_LABEL in node.metadata.labels
                self.problem = None
                self._outdated = [key for key in self._outdated if key in node.metadata.labels]
                return node

    def forget(self) -> None:
        """Write at the next opportunity, changed or not."""
        self._written = None

    async def write(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Write what differs from the last time.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer.
        """
        if self._keeps_server_type:
            labels = {key: value for key, value in labels.items() if key != SERVER_TYPE_LABEL}
        if (annotations, labels) != self._written:
            told = {**labels, **dict.fromkeys(self._outdated)}
            body = {"metadata": {"annotations": dict(annotations), "labels": told}}
            await self._client.patch(NODES, self._node, body, timeout_s=PATCH_TIMEOUT_S)
            self._outdated = ()
            self._written = (annotations, labels)
