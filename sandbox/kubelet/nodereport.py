"""The Node object: made at the kubelet's start, and kept true whenever devices change."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import datetime

from ascend.errors import ApiError, Conflict, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import NODES, JsonObject, Node
from sandbox.kubelet.ledger import Ledger
from sandbox.pods import is_extended

log = logging.getLogger(__name__)


class NodeReport:
    """Keeps the Node object true, and holds the copy that admission looks at.

    Args:
        client: the API server.
        name: the node's.
        address: its InternalIP.
        labels: besides ``kubernetes.io/hostname``; set when the kubelet starts.
        ledger: the devices.
        now: wall clock.
        changed: called after every report that was written.
        reset: forget the extended resources an earlier kubelet reported: there was no checkpoint to know them from.
    """

    def __init__(
        self,
        client: KubeClient,
        name: str,
        *,
        address: str,
        labels: Mapping[str, str],
        ledger: Ledger,
        now: Callable[[], datetime],
        changed: Callable[[], None],
        reset: bool,
    ) -> None:
        self._client = client
        self._name = name
        self._address = address
        self._labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels}
        self._ledger = ledger
        self._now = now
        self._changed = changed
        self._reset = reset
        self._dirty = asyncio.Event()
        self._reported: set[str] = set()
        self.node = Node()
        """As the API server last had it from this kubelet."""
        self.ready = asyncio.Event()
        """Set once the Node exists."""

    def refresh(self) -> None:
        """Devices may have changed."""
        self._dirty.set()

    async def run(self) -> None:
        """Report until cancelled."""
        backoff = Backoff(first_s=0.02, limit_s=1.0)
        self._dirty.set()
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._report()
                backoff.reset()
            except (ApiError, Unreachable) as error:
                log.warning("could not report the node", extra={"node": self._name, "error": str(error)})
                self._dirty.set()
                await asyncio.sleep(backoff.next_s())

    async def _report(self) -> None:
        # What an earlier kubelet reported is nothing that this one has said.
        shown = (self.node if self.ready.is_set() else await self._ensure()).status
        if not self.ready.is_set() and self._reset:
            self._reported |= {each for each in shown.capacity if is_extended(each)}
        capacities = self._ledger.capacities()
        # A resource that is forgotten is shown as an explicit 0, never removed (kubelet_node_status.go).
        self._reported |= capacities.keys()
        counts = {**dict.fromkeys(self._reported, (0, 0)), **capacities}
        capacity = {name: str(count) for name, (count, _) in counts.items()}
        allocatable = {name: str(count) for name, (_, count) in counts.items()}
        unchanged = capacity.items() <= shown.capacity.items() and allocatable.items() <= shown.allocatable.items()
        if not self.ready.is_set() or not unchanged:
            body = {"status": self._status(capacity, allocatable)}
            self.node = await self._client.patch(
                NODES, self._name, body, subresource="status", content_type=STRATEGIC_MERGE_PATCH
            )
        self.ready.set()
        self._changed()

    async def _ensure(self) -> Node:
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
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": stamp,
            "lastTransitionTime": stamp,
        }
        plain = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        addresses = [
            {"type": "InternalIP", "address": self._address},
            {"type": "Hostname", "address": self._name},
        ]
        return {
            "capacity": {**plain, **capacity},
            "allocatable": {**plain, **allocatable},
            "conditions": [condition],
            "addresses": addresses,
        }
