"""What is written on a pod in its Binding: its chips, and what others read of its job (spec/scheduling.md §1.6).

A pod that takes a whole node, or whose rank table an operator builds, also gets ``AscendReal`` and the configuration
right away, as the reference does. The device plugin writes both again when it hands the chips over: the same chips,
with the addresses its driver knows.
"""

from allocator.rules.job import OPERATOR, writes_rank
from allocator.state.jobs import Jobs
from ascend.annotations import (
    BASE_DEVICE_INFOS,
    CONFIGURATION,
    DISTRIBUTED,
    RANK,
    REAL,
    SERVER_INDEX,
    SUPER_POD_ID,
    UNKNOWN,
    Grant,
    read_base_device_infos,
    write_configuration,
)
from ascend.chips import join_names_sorted
from ascend.errors import InvalidValue
from ascend.kube.objects import Node, Pod


def inscribe(pod: Pod, grant: Grant, jobs: Jobs, node: Node | None) -> dict[str, str]:
    """All annotations of a pod's Binding.

    Args:
        pod: the pod.
        grant: its chips and the time of the decision.
        jobs: know its job.
        node: where it goes; None where its object has not been seen.
    """
    written = grant.annotations() | {DISTRIBUTED: "true" if jobs.is_distributed(pod) else "false"}
    if writes_rank(pod):
        written[RANK] = str(jobs.job_of(pod).rank_of(pod))
    if node is not None:
        written |= _real(pod, grant, node)
    return written


def _real(pod: Pod, grant: Grant, node: Node) -> dict[str, str]:
    by_operator = OPERATOR in pod.metadata.labels
    if not by_operator and len(grant.chips) != node.allocatable_chips:
        return {}
    try:
        addresses = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, ""))
    except InvalidValue:
        # The addresses are nowhere else; the device plugin will write all this.
        return {}
    if not by_operator and len(grant.chips) != len(addresses):
        return {}
    if any(chip not in addresses for chip in grant.chips):
        return {}
    configuration = write_configuration(
        pod_name=pod.name,
        pod_uid=pod.uid,
        host_ip=node.internal_ip,
        devices={chip: addresses[chip] for chip in grant.chips},
        super_pod_id=_number(node.metadata.annotations.get(SUPER_POD_ID, "")),
        server_index=_number(node.metadata.annotations.get(SERVER_INDEX, "")),
    )
    return {REAL: join_names_sorted(grant.chips), CONFIGURATION: configuration}


def _number(text: str) -> int:
    try:
        return int(text[:20])
    except ValueError:
        return UNKNOWN
