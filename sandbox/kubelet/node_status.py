"""The Node object: created when the kubelet starts, and updated at its next periodic look when devices have changed."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from ascend.errors import ApiError, Conflict, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import NODES, JsonObject, Node
from ascend.rate_limiters import Backoff
from sandbox.kubelet.ledger import ResourceLedger
from sandbox.kubelet.runtime import NODE_IP
from sandbox.pods import is_extended, timestamp_now

log = logging.getLogger(__name__)


class NodeStatusUpdater:
    """Updates the Node object, and keeps the copy that admission uses.

    Args:
        client: the API server.
        name: the node's name.
        ledger: the devices.
        changed: called after every update.
        reset: report the extended resources of an earlier kubelet as 0, because there was no checkpoint.
        version: of the kubelet, such as ``v1.34.4``.
        period_s: the time between two looks, whenever devices change; 10 s on a real kubelet by default. 0: at once.
    """

    def __init__(
        self,
        client: KubeClient,
        name: str,
        *,
        ledger: ResourceLedger,
        changed: Callable[[], None],
        reset: bool,
        version: str,
        period_s: float,
    ) -> None:
        self._client = client
        self._name = name
        self._labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
        self._ledger = ledger
        self._changed = changed
        self._reset = reset
        self._version = version
        self._period_s = period_s
        self._outdated = asyncio.Event()
        self.node = Node()
        """The Node as this kubelet last wrote it."""
        self.ready = asyncio.Event()
        """Set once the Node exists."""

    def refresh(self) -> None:
        """Update the Node, because devices may have changed."""
        self._outdated.set()

    async def run(self) -> None:
        """Update the Node until cancelled."""
        backoff = Backoff(first_s=0.02, limit_s=1.0)
        self._outdated.set()
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        while True:
            await self._outdated.wait()
            if self.ready.is_set() and self._period_s:
                await asyncio.sleep(self._period_s - (loop.time() - started_s) % self._period_s)
            self._outdated.clear()
            try:
                await self._update()
                backoff.reset()
            except (ApiError, Unreachable) as error:
                log.warning("failed to update node status", extra={"node": self._name, "error": str(error)})
                self._outdated.set()
                await asyncio.sleep(backoff.next_s())

    async def _update(self) -> None:
        # The first update is written even without a change: what an earlier kubelet reported is not this one's report.
        shown = (self.node if self.ready.is_set() else await self._register()).status
        known = {name: quantity for name, quantity in shown.capacity.items() if is_extended(name)}
        removed = self._ledger.take_removed()
        if not self.ready.is_set() and self._reset:
            removed |= known.keys()
        # A resource that was removed is reported as an explicit 0 in one update, whether or not that succeeds. Others
        # that the device manager does not know count as set by somebody else: all of them is allocatable
        # (nodestatus/setters.go).
        known |= dict.fromkeys(removed, "0")
        capacities = self._ledger.capacities()
        capacity = known | {name: str(count) for name, (count, _) in capacities.items()}
        allocatable = known | {name: str(count) for name, (_, count) in capacities.items()}
        unchanged = capacity.items() <= shown.capacity.items() and allocatable.items() <= shown.allocatable.items()
        if not self.ready.is_set() or not unchanged:
            body = {"status": self._status(capacity, allocatable)}
            self.node = await self._client.patch(
                NODES, self._name, body, subresource="status", content_type=STRATEGIC_MERGE_PATCH
            )
        self.ready.set()
        self._changed()

    async def _register(self) -> Node:
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": self._name, "labels": self._labels},
            "spec": {},
        }
        try:
            return await self._client.create(NODES, body)
        except Conflict:
            return await self._client.patch(NODES, self._name, {"metadata": {"labels": self._labels}})

    def _status(self, capacity: Mapping[str, str], allocatable: Mapping[str, str]) -> JsonObject:
        now = timestamp_now()
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        native = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        addresses = [
            {"type": "InternalIP", "address": NODE_IP},
            {"type": "Hostname", "address": self._name},
        ]
        return {
            "capacity": {**native, **capacity},
            "allocatable": {**native, **allocatable},
            "conditions": [condition],
            "addresses": addresses,
            "nodeInfo": {"kubeletVersion": self._version},
        }
