"""The Node object: labels for selectors, and annotations for further programs.

They are facts of the driver (docs/spec/node-report.md#node-labels). A label is only set, never removed: pods that
select on it would be killed when their kubelet restarts (docs/spec/kubelet.md#restarts).
"""

import asyncio
import re
from collections.abc import Callable, Collection, Mapping

import msgspec
import structlog

from ascend.annotations import SERVER_INDEX, SERVER_TYPE, SUPER_POD_ID
from ascend.base_device_infos import BASE_DEVICE_INFOS, write_base_device_infos
from ascend.chips import chip_ids, join_names
from ascend.daemon.observable import Observable, wait_until
from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.handler import Handler
from ascend.kube.objects import NODES, Node, NodeStatus, Resource, is_newer
from ascend.kube.reflector import Reflector
from ascend.rate_limiters import Backoff
from ascend.rules.identity import ACCELERATOR, ACCELERATOR_TYPE, CHIP_NAME, SUPER_POD_LABEL
from ascend.rules.identity import SERVER_TYPE as SERVER_TYPE_LABEL
from device_plugin.driver import Inventory
from device_plugin.health.snapshot import Snapshot
from device_plugin.publish.order import PublishingOrder

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHIP_MEMORY = "mind-cluster/npu-chip-memory"
DRIVER_VERSION = "huawei.com/driver.version"

_ACCELERATOR = "huawei-Ascend910"
_INFERENCE_BOARDS = frozenset({0x28, 0x29})
_INFERENCE_CARD = "card-910b-infer"
_MB_PER_GB = 1024
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")

PATCH_TIMEOUT_S = 3.0
"""How long to wait for an answer: an admission webhook may hang, and the next report waits as long."""


class NodeInfo(msgspec.Struct, rename="camel", frozen=True):
    """What a node reports about its software.

    Attributes:
        kubelet_version: such as ``v1.34.4``.
        container_runtime_version: such as ``containerd://2.1.4``.
    """

    kubelet_version: str = ""
    container_runtime_version: str = ""


class OwnNodeStatus(NodeStatus, frozen=True):
    """The status of the plugin's own Node, with the versions of its software."""

    node_info: NodeInfo = NodeInfo()


class OwnNode(Node, frozen=True, kw_only=True):
    """The plugin's own Node."""

    status: OwnNodeStatus = OwnNodeStatus()


OWN_NODE = Resource(OwnNode, NODES.kind, NODES.prefix, NODES.plural, NODES.namespaced)


def node_labels(server: Inventory) -> tuple[dict[str, str], list[str]]:
    """Return the labels, and a sentence for each invalid value; unknown facts are left out."""
    # Nothing but its id may be known of a chip that the driver does not list.
    first = next((chip for chip in server.chips if chip.chip_name), None)
    wanted = {
        ACCELERATOR: _ACCELERATOR,
        ACCELERATOR_TYPE: _INFERENCE_CARD if server.board_id in _INFERENCE_BOARDS else "",
        CHIP_NAME: first.chip_name if first is not None else "",
        CHIP_MEMORY: f"{first.hbm_mb // _MB_PER_GB}G" if first is not None and first.hbm_mb else "",
        DRIVER_VERSION: server.driver_version,
        SERVER_TYPE_LABEL: f"{server.chip_type}-{server.ai_cores}" if server.ai_cores else "",
        SUPER_POD_LABEL: (
            str(server.super_pod_id) if server.chip_type == "Ascend910A3" and server.super_pod_id >= 0 else ""
        ),
    }
    labels, problems = {}, []
    for key, value in wanted.items():
        if value and _LABEL_VALUE.fullmatch(value) is None:
            problems.append(f"label {key}: {value!r} is not a valid label value")
        elif value:
            labels[key] = value
    return labels, problems


def node_annotations(snapshot: Snapshot) -> dict[str, str]:
    """Return the annotations.

    See docs/spec/node-report.md#annotation-basedeviceinfos, docs/spec/node-report.md#node-annotations.
    """
    whole = (chip for chip in snapshot.chips if not snapshot.cut >> chip.chip_id & 1)
    vnpus = (
        device_type.device_name(number)
        for device_type, found in snapshot.vnpus.items()
        for number in chip_ids(found.offered)
    )
    return {
        BASE_DEVICE_INFOS: write_base_device_infos({chip.chip_id: chip.facts.address for chip in whole}, vnpus),
        SUPER_POD_ID: str(snapshot.server.super_pod_id),
        SERVER_INDEX: str(snapshot.server.server_index),
        SERVER_TYPE: "A3" if snapshot.server.chip_type == "Ascend910A3" else "",
        **snapshot.reset_annotations,
    }


def node_announcer(events: EventRecorder, node: str) -> Callable[[str, str, bool], None]:
    """Return a callback that publishes Events about a Node: reason, sentence, and whether it is a warning."""
    # The kubelet's own Events about a Node have its name as uid, and `kubectl describe node` searches for that.
    regarding = Regarding("Node", node, uid=node)

    def announce(reason: str, sentence: str, warning: bool) -> None:  # noqa: FBT001 - a callback's plain word
        events.publish(regarding, reason, sentence, action="WatchHealth", warning=warning)

    return announce


class NodeWriter:
    """Keeps the plugin's annotations and labels on the Node, beside foreign ones; the handler of its reflector.

    A Node that was deleted and made again, by its kubelet or by an administrator, has none of them.

    Args:
        client: the API server.
        node: the node's name.
        outdated: labels of ours that an earlier plugin may have left and that no longer apply; they are removed.
        announce: receives a reason, a sentence and whether it is a warning, if a label contradicts the driver.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        outdated: Collection[str] = (),
        announce: Callable[[str, str, bool], None] = lambda _reason, _sentence, _warning: None,
    ) -> None:
        self._client = client
        self._node = node
        self._outdated = outdated
        self._announce = announce
        self._written: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._version = ""  # of the last write
        self._uid = ""  # of the Node that was written
        self._server_type: str | None = None
        self.problem: str | None = "waiting for this node's Node object"
        """Why the Node is unknown, or lacks what was written; None while neither is so."""
        self.lost: Observable[None] = Observable(None)
        """Set when the Node lacks an annotation or a label that was written."""
        self.annotations: Observable[Mapping[str, str]] = Observable({})
        """The annotations that the Node has of this plugin, as far as known."""
        self.readers: list[Handler[Node]] = []
        """Get every change of the Node, too."""
        self.seen: Observable[OwnNode] = Observable(OwnNode())
        """The Node as last seen."""

    def watch(self) -> Reflector[OwnNode]:
        """Return the watch that feeds it."""
        return Reflector(self._client, OWN_NODE, self, field_selector=f"metadata.name={self._node}")

    def on_apply(self, obj: OwnNode) -> None:
        """Note whether what was written is still there; the watch shows older versions of the Node, too."""
        self.seen.set(obj)
        for reader in self.readers:
            reader.on_apply(obj)
        if not self._uid or not is_newer(obj.metadata.resource_version, self._version):
            return
        if self._uid != obj.uid:
            self._server_type = obj.metadata.labels.get(SERVER_TYPE_LABEL)
            self._lose(f"the Node {self._node} was made again, without this plugin's labels and annotations")
        elif self._written is not None:
            (annotations, labels), metadata = self._written, obj.metadata
            missing = (annotations.keys() - metadata.annotations) | (labels.keys() - metadata.labels)
            if missing:
                self._lose(f"somebody removed {', '.join(sorted(missing))} from the Node {self._node}")

    def on_delete(self, obj: OwnNode) -> None:
        """Note that the Node is gone until the kubelet registers again."""
        self.seen.set(OwnNode())
        for reader in self.readers:
            reader.on_delete(obj)
        if self._uid:
            self._lose(f"the Node {self._node} was deleted")

    def _lose(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("the Node lacks what was written", error=problem)
        self.problem = problem
        self.forget()
        self.annotations.set({})
        self.lost.set(None)

    async def learn(self) -> OwnNode:
        """Wait for the Node and return it."""
        backoff = Backoff(limit_s=5.0)
        while True:
            try:
                node = await self._client.get(OWN_NODE, self._node)
            except (ApiError, Unreachable) as error:
                self.problem = f"waiting for this node's Node object: {error}"
                log.warning("waiting for this node's Node object", node=self._node, error=str(error))
                await asyncio.sleep(backoff.next_s())
            else:
                self._server_type = node.metadata.labels.get(SERVER_TYPE_LABEL)
                self.problem = None
                self._outdated = [key for key in self._outdated if key in node.metadata.labels]
                self.seen.set(node)
                return node

    def forget(self) -> None:
        """Make the next write happen even if nothing has changed."""
        self._written = None

    async def write(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Write them if they differ from the last write.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer.
        """
        if SERVER_TYPE_LABEL in labels and self._server_type not in {None, labels[SERVER_TYPE_LABEL]}:
            self._announce(
                "NPUServerTypeCorrected",
                f"the label {SERVER_TYPE_LABEL} is {self._server_type!r}, but the driver reports "
                f"{labels[SERVER_TYPE_LABEL]}: schedulers would place pods by the rule of another product, so the "
                "label is overwritten",
                True,  # noqa: FBT003 - a callback's plain word
            )
            self._server_type = labels[SERVER_TYPE_LABEL]
        if (annotations, labels) != self._written:
            written = {**labels, **dict.fromkeys(self._outdated)}
            body = {"metadata": {"annotations": dict(annotations), "labels": written}}
            node = await self._client.patch(NODES, self._node, body, timeout_s=PATCH_TIMEOUT_S)
            self._outdated = ()
            self._written = (annotations, labels)
            self._uid, self._version, self.problem = node.uid, node.metadata.resource_version, None
            self.annotations.set(annotations)


SHOWN_LIMIT_S = 60.0
"""After this time the chips count as shown: something else may keep the number on the Node low."""


class ShownChips:
    """Finds out when the Node shows chips that became healthy, so that the report may list them as free.

    The kubelet updates its Node every ten seconds by default (``nodeStatusUpdateFrequency``). Until then Volcano calls
    a node "not stable" that reports more chips, and kube-scheduler does not know of the chips
    (docs/spec/node-report.md#stable-device-count).

    Args:
        node: the Node as last seen.
        order: has the chips, and is told which are shown.
        limit_s: the longest time that chips are waited for, in seconds.
    """

    def __init__(self, node: Observable[OwnNode], order: PublishingOrder, *, limit_s: float = SHOWN_LIMIT_S) -> None:
        self._node = node
        self._order = order
        self._limit_s = limit_s

    async def run(self) -> None:
        """Compare until cancelled."""
        order = self._order
        while True:
            await wait_until(lambda: order.unshown.value != 0, (order.unshown,))
            sources = (order.unshown, order.advertised, self._node)
            if not await wait_until(lambda: not order.unshown.value or self._shows_all(), sources, self._limit_s):
                names = join_names(chip_ids(order.unshown.value))
                log.warning("the Node does not show chips that are healthy", chips=names)
            order.shown(order.advertised.value)

    def _shows_all(self) -> bool:
        """Whether the Node has at least as many allocatable chips as the kubelet was sent healthy ones."""
        return (self._node.value.allocatable_chips or 0) >= self._order.advertised.value.bit_count()
