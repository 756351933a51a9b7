"""Values for tests of the device plugin."""

from collections.abc import Mapping

from ascend.annotations import Grant
from ascend.chips import RESOURCE
from ascend.kube.objects import Container, ContainerStatus, Metadata, Pod, PodSpec, PodStatus, Resources
from ascend.products import ASCEND_910A
from device_plugin.driver import ChipReading, Reading
from device_plugin.rules.snapshot import Snapshot, take


def pod(
    name: str,
    count: int = 0,
    *chips: int,
    time: int | None = None,
    uid: str = "",
    phase: str = "Pending",
    started: bool = False,
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A pod that asks for ``count`` chips and has ``chips`` written on it, if any."""
    written = Grant(chips, time).annotations() if chips else {}
    return Pod(
        metadata=Metadata(
            name=name, namespace="default", uid=uid or f"uid-{name}", annotations={**written, **(annotations or {})}
        ),
        spec=PodSpec(
            node_name="n1",
            containers=[Container("main", Resources(limits={RESOURCE: str(count)} if count else {}))],
        ),
        status=PodStatus(phase=phase, container_statuses=[ContainerStatus("main")] if started else []),
    )


def snapshot(*unhealthy: int) -> Snapshot:
    """A 910A server with these chips unhealthy."""
    chips = tuple(ChipReading(chip_id, healthy=chip_id not in unhealthy) for chip_id in range(8))
    return take(Reading(ASCEND_910A, chips), None, 0)
