"""Tells containers where their chips are: variables of each container, and a file about the server.

The variables name the chips of the container. The file has the links of all chips of the server, and where the server
is; it is the same for all containers, so nothing has to be removed with a pod, and a container that is started again
finds it (docs/spec/kubelet.md#using-the-response).
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import structlog

from ascend.daemon.observable import Observable, wait_for_change
from ascend.deviceinfo import NAMESPACE
from ascend.errors import ApiError, NotFound, Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, NODES, Node
from ascend.leaf_switches import NAME as SWITCHES
from ascend.leaf_switches import SwitchTable, read_switches
from ascend.products import Product
from ascend.rules.identity import RACK_LABEL, SERVER_TYPE, identify
from device_plugin.health.snapshot import Snapshot
from device_plugin.pods.container_edits import ContainerEdits

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

FILE: Final = "node.json"
INSIDE: Final = Path("/etc/ascend-affinity/topology")
"""The folder in containers."""
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
PREFIX: Final = "ASCEND_AFFINITY_"

REFRESH_S: Final = 300.0
"""How often Node and leaf switches are read again."""
READ_LIMIT_S: Final = 1.0


class ChipPlace(msgspec.Struct, frozen=True):
    """A chip in the file.

    Attributes:
        id: physical id, as in ``ASCEND_VISIBLE_DEVICES`` and in the chip's device node.
        ring: the number of the ring, mesh or card of dies whose chips are linked; null if the product is unknown.
        card: the card it is on; null if unknown.
        die: its number on the card; null if unknown.
        numa_node: the closest NUMA node; null if unknown.
    """

    id: int
    ring: int | None
    card: int | None
    die: int | None
    numa_node: int | None


class NodeTopology(msgspec.Struct, frozen=True, tag_field="schema", tag="ascend-affinity/topology/v1"):
    """The file.

    Attributes:
        node: the name of the Node.
        product: of the server; null if unknown.
        super_pod: the id of its SuperPod; null if it is in none.
        server_index: its number there; null likewise.
        rack: the rack, by the Node's label; null without one.
        leaf_switch: the number of its leaf switch in MindCluster's ConfigMap; null if unknown.
        leaf_switch_ip: its address; null likewise.
        zone: by the Node's label; null without one.
        chips: all chips of the server.
    """

    node: str
    product: str | None
    super_pod: int | None
    server_index: int | None
    rack: str | None
    leaf_switch: int | None
    leaf_switch_ip: str | None
    zone: str | None
    chips: tuple[ChipPlace, ...]


def node_topology(node: Node, snapshot: Snapshot, address: str, switches: SwitchTable | None) -> NodeTopology:
    """Return what is known about the server.

    Args:
        node: the Node; its labels name product, rack and zone.
        snapshot: the chips.
        address: the InternalIP of the Node, by which it is in the table of leaf switches.
        switches: that table; None if there is none.
    """
    labels, server = node.metadata.labels, snapshot.server
    product = _product(node, snapshot)
    spot = switches.servers.get(address) if switches is not None else None
    return NodeTopology(
        node=node.name,
        product=product.name if product is not None else None,
        super_pod=server.super_pod_id if server.super_pod_id >= 0 else None,
        server_index=server.server_index if server.server_index >= 0 else None,
        rack=labels.get(RACK_LABEL),
        leaf_switch=spot.switch if spot is not None else None,
        leaf_switch_ip=switches.switches.get(spot.switch) if spot is not None and switches is not None else None,
        zone=labels.get(ZONE_LABEL),
        chips=tuple(
            ChipPlace(
                facts.phy_id,
                _ring(product, facts.phy_id),
                facts.card_id if facts.is_listed else None,
                facts.device_id if facts.is_listed else None,
                facts.numa_node,
            )
            for facts in (chip.facts for chip in snapshot.chips)
        ),
    )


def _product(node: Node, snapshot: Snapshot) -> Product | None:
    metadata, by_driver = node.metadata, {SERVER_TYPE: f"{snapshot.server.chip_type}-"}
    try:
        return identify(node.name, metadata.labels | by_driver, metadata.annotations, snapshot.all_chips)
    except Refusal as refusal:
        log.info("the links of the chips are unknown", reason=refusal.reason, error=refusal.message)
        return None


def _ring(product: Product | None, chip: int) -> int | None:
    rings = product.rings if product is not None else ()
    return next((number for number, ring in enumerate(rings) if ring >> chip & 1), None)


def variables(topology: NodeTopology, chips: Sequence[int]) -> dict[str, str]:
    """Return the variables of a container with these chips; what is unknown has none."""
    rings = {chip.id: chip.ring for chip in topology.chips}
    own = [rings.get(chip) for chip in chips]
    found = {
        "CHIPS": ",".join(map(str, chips)),
        "RINGS": ",".join(map(str, own)) if None not in own else None,
        "SUPER_POD": topology.super_pod,
        "SERVER_INDEX": topology.server_index,
        "RACK": topology.rack,
        "LEAF_SWITCH": topology.leaf_switch,
    }
    return {f"{PREFIX}{name}": str(value) for name, value in found.items() if value is not None}


class TopologyFile:
    """Adds to each container where its chips are.

    Args:
        folder: the folder of the file on the node. Where it does not exist, containers get the variables only: the
            plugin's own pod lacks it, or the node was not prepared.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: NodeTopology | None = None
        self._written: NodeTopology | None = None  # to the file

    def update(self, topology: NodeTopology) -> None:
        """Take over what is known, and write the file if it has changed."""
        self._known = topology
        if topology == self._written:
            return
        content = msgspec.json.format(msgspec.json.encode(topology)) + b"\n"
        # A new file, so that a reader never sees a part of one. Containers see it, because the folder is mounted.
        fresh = self._folder / f".{FILE}.{os.getpid()}.tmp"
        try:
            if not self._folder.is_dir():
                return
            fresh.write_bytes(content)
            fresh.chmod(0o644)
            fresh.replace(self._folder / FILE)
            self._written = topology
        except OSError as error:
            log.warning("the topology of the node is not written", path=str(self._folder / FILE), error=error.strerror)
            with contextlib.suppress(OSError):
                fresh.unlink()

    def add(self, edits: ContainerEdits, chips: Sequence[int]) -> ContainerEdits:
        """Return the edits of a container with these chips, and where they are."""
        if self._known is None:
            return edits
        envs = {**edits.envs, **variables(self._known, chips)}
        if self._written is None:
            return replace(edits, envs=envs)
        envs[f"{PREFIX}TOPOLOGY"] = str(INSIDE / FILE)
        return replace(edits, envs=envs, mounts={str(INSIDE): str(self._folder)})


class TopologyUpdates:
    """Keeps what containers are told up to date with the chips, the Node's labels and the table of leaf switches.

    Args:
        client: the API server.
        node: the Node as read at the start.
        address: its InternalIP.
        snapshots: the chips.
        topology: is kept up to date.
    """

    def __init__(
        self,
        client: KubeClient,
        node: Node,
        address: str,
        snapshots: Observable[Snapshot | None],
        topology: TopologyFile,
    ) -> None:
        self._client = client
        self._node = node
        self._address = address
        self._snapshots = snapshots
        self._topology = topology
        self._switches: SwitchTable | None = None
        self._facts: tuple[object, ...] | None = None

    async def begin(self) -> None:
        """Take over what is known at the start; what can't be read in time is told to later containers."""
        await self._read()
        self._update()

    async def run(self) -> None:
        """Keep it up to date until cancelled."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + REFRESH_S
        while True:
            versions = (self._snapshots.version,)
            await wait_for_change((self._snapshots,), versions, due_s - loop.time())
            if loop.time() >= due_s:
                await self._read()
                due_s = loop.time() + REFRESH_S
                self._facts = None  # a file that could not be written is written now
            self._update()

    def _update(self) -> None:
        """Take over what is known; each pod that comes or goes makes a snapshot, with the same facts."""
        if (snapshot := self._snapshots.value) is None:
            return
        facts = (self._node, self._switches, snapshot.server, *(chip.facts for chip in snapshot.chips))
        if facts != self._facts:
            self._facts = facts
            self._topology.update(node_topology(self._node, snapshot, self._address, self._switches))

    async def _read(self) -> None:
        """Read Node and table; what can't be read stays as it was."""
        try:
            async with asyncio.timeout(READ_LIMIT_S):
                self._node = await self._client.get(NODES, self._node.name)
                table = read_switches(await self._client.get(CONFIG_MAPS, SWITCHES, NAMESPACE))
        except NotFound:
            self._switches = None
        except (ApiError, Unreachable, TimeoutError) as error:
            log.info("the leaf switch is not read", error=str(error) or "no answer in time")
        else:
            self._switches = table if isinstance(table, SwitchTable) else None
            if not isinstance(table, SwitchTable):
                log.info("the leaf switch is unknown", error=table)
