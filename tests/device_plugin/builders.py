"""Values for tests of the device plugin."""

from collections.abc import Mapping
from dataclasses import replace

from ascend.annotations import PREDICATE_TIME, Grant
from ascend.chips import RESOURCE, ChipSet
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ContainerStatus, Metadata, Pod, PodSpec, PodStatus
from ascend.vnpus import parse_vnpu
from device_plugin.driver import ChipFacts, ChipType, Inventory
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, FaultRecord, Snapshot
from device_plugin.health.upgrades import UpgradeReason


def pod(
    name: str,
    count: int = 0,
    *chips: int,
    time: int | None = None,
    uid: str = "",
    phase: str = "Pending",
    started: bool = False,
    reason: str = "",
    annotations: Mapping[str, str] | None = None,
    asks: Mapping[str, int] | None = None,
    init: Mapping[str, int] | None = None,
    sidecars: Mapping[str, int] | None = None,
) -> Pod:
    """A pod that requests ``count`` chips, with ``chips`` written on it, if any.

    ``asks``, ``init`` and ``sidecars`` are app containers, init containers and, after these, sidecars by name.
    """
    written = Grant(chips, time).annotations() if chips else {}
    return Pod(
        metadata=Metadata(
            name=name, namespace="default", uid=uid or f"uid-{name}", annotations={**written, **(annotations or {})}
        ),
        spec=PodSpec(
            node_name="n1",
            containers=tuple(_container(name, asked) for name, asked in (asks or {"main": count}).items()),
            init_containers=(
                *(_container(name, asked) for name, asked in (init or {}).items()),
                *(_container(name, asked, "Always") for name, asked in (sidecars or {}).items()),
            ),
        ),
        status=PodStatus(phase=phase, reason=reason, container_statuses=(ContainerStatus("main"),) if started else ()),
    )


def vnpu_pod(
    name: str, device: str = "", *, resource: str = "", count: int = 1, started: bool = False, phase: str = "Pending"
) -> Pod:
    """A pod with one container that requests ``count`` vNPUs of the size of ``device``, which is written on it."""
    resource = resource or parse_vnpu(device).resource
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            annotations={resource: device, PREDICATE_TIME: "1"} if device else {},
        ),
        spec=PodSpec(node_name="n1", containers=(Container("main", Resources(limits={resource: str(count)})),)),
        status=PodStatus(phase=phase, container_statuses=(ContainerStatus("main"),) if started else ()),
    )


def _container(name: str, count: int, restart_policy: str = "") -> Container:
    return Container(name, Resources(limits={RESOURCE: str(count)} if count else {}), restart_policy)


def fault(name: str, level: FaultLevel = FaultLevel.SEPARATE, *, since_ms: int = 0) -> FaultRecord:
    """A fault that is present."""
    return FaultRecord(int(name, 16), name, since_ms, level)


def server(*chips: ChipFacts, chip_type: ChipType = "Ascend910") -> Inventory:
    """A server with these chips; eight if none are given."""
    return Inventory(chip_type, chips or tuple(ChipFacts(chip_id, chip_id) for chip_id in range(8)))


def judged_chip(
    *,
    healthy: bool = True,
    network_healthy: bool = True,
    level: FaultLevel = FaultLevel.NORMAL,
    network_level: FaultLevel = FaultLevel.NORMAL,
    faults: tuple[FaultRecord, ...] = (),
    network_faults: tuple[FaultRecord, ...] = (),
) -> Chip:
    """A chip, healthy by default; ``snapshot`` says which one it is."""
    return Chip(
        ChipFacts(0, 0),
        level=level,
        network_level=network_level,
        faults=faults,
        network_faults=network_faults,
        network_healthy=network_healthy,
        reason="" if healthy else "Fault",
    )


def snapshot(
    *unhealthy: int,
    chips: Mapping[int, Chip] | None = None,
    of: Inventory | None = None,
    manually_separated: ChipSet = 0,
    upgrade_reasons: Mapping[int, tuple[UpgradeReason, ...]] | None = None,
    awaiting: ChipSet = 0,
    network_awaiting: ChipSet = 0,
    used: ChipSet = 0,
    running: ChipSet = 0,
) -> Snapshot:
    """The chips of a server, with ``unhealthy`` unhealthy; ``chips`` gives details of some."""
    inventory = of or server()
    details = chips or {}
    return Snapshot(
        inventory,
        tuple(
            replace(details.get(facts.phy_id) or judged_chip(healthy=facts.phy_id not in unhealthy), facts=facts)
            for facts in inventory.chips
        ),
        manually_separated,
        upgrade_reasons or {},
        awaiting,
        network_awaiting,
        used,
        running,
    )
