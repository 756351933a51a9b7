"""The annotations of a pod's Binding: chips, predicate time, and what other programs read of the job.

The formats are the reference's (docs/spec/scheduling.md#pod-annotations). A pod that takes a whole node, or whose rank
table is built by an operator, also gets ``AscendReal`` and the configuration, as in the reference. The device plugin
writes both again at the hand-over: the same chips, with the addresses its driver knows.

Predicate times increase strictly, also across restarts and clock corrections: the device plugin hands pods of equal
size their chips in this order, so no two may be equal.
"""

from collections.abc import Callable
from typing import Final

from allocator.rules.job import writes_rank
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.location import Location
from allocator.state.reservation import InBlock, OnSwitch, Reservation, Stage
from allocator.switches.rooms import Use
from ascend.annotations import (
    BLOCK,
    BLOCK_SUPER_POD,
    CONFIGURATION,
    DISTRIBUTED,
    RANK,
    REAL,
    SERVER_INDEX,
    SHARED_SWITCH,
    SHARED_SWITCH_IP,
    SUPER_POD_ID,
    SWITCH_HEALTH,
    UNKNOWN,
    Grant,
    read_predicate_time,
    write_configuration,
)
from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import join_names_sorted
from ascend.errors import InvalidValue
from ascend.jobs.kubeflow import OPERATOR
from ascend.kube.objects import Node, Pod
from ascend.leaf_switches import SwitchTable
from ascend.turn import Steps

DAY_NS: Final = 24 * 3600 * 10**9

_OF_JOBS: Final = (BLOCK, BLOCK_SUPER_POD, SHARED_SWITCH, SWITCH_HEALTH, SHARED_SWITCH_IP)
"""What only a Binding writes, and is counted for the jobs of others."""


class Stamper:
    """Stamps reservations with a predicate time, and makes the annotations of their Bindings.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        now_ns: the wall clock, Unix nanoseconds.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, now_ns: Callable[[], int]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._now_ns = now_ns
        self._last = 0

    def resume(self) -> Steps[None]:
        """Read the predicate times of the pods that were bound before; call it before the first time is given out."""
        # A pod's author may write any value; one far in the future would push all later ones towards CLAIMED.
        limit = self._now_ns() + DAY_NS
        for pod in tuple(self._cluster.pods.values()):
            if pod.spec.node_name and pod.is_live:
                time = read_predicate_time(pod.metadata.annotations)
                if time is not None and time < limit:
                    self._last = max(self._last, time)
            yield

    def stamp(self, reservation: Reservation, stage: Stage, *, renew: bool = False) -> Reservation:
        """Put a reservation into a stage, with a predicate time.

        Args:
            reservation: of the ledger.
            stage: the stage it enters.
            renew: give it a new predicate time even if it has one.
        """
        time = self.next_time() if renew or reservation.predicate_time is None else None
        return self._ledger.advance(reservation.uid, stage, predicate_time=time) or reservation

    def annotations(self, pod: Pod, reservation: Reservation) -> dict[str, str]:
        """The annotations of the Binding that carries out a stamped reservation."""
        grant, job = reservation.grant, self._cluster.jobs.job_of(pod)
        # A Binding can't remove what the pod's author wrote where no policy denies it, but replace it.
        forged = {key: "" for key in _OF_JOBS if key in pod.metadata.annotations}
        written = forged | grant.annotations() | {DISTRIBUTED: "true" if job.is_distributed_with(pod) else "false"}
        if writes_rank(pod):
            written[RANK] = str(job.rank_of(pod))
        if isinstance(reservation.part, InBlock):
            written |= self._block(reservation.node, reservation.part)
        elif reservation.part is not None:
            written |= self._switch(reservation.part)
        record = self._cluster.nodes.get(reservation.node)
        if record is not None and record.node is not None:
            written |= _real(pod, grant, record.node, self._cluster.index.topology.location(reservation.node))
        return written

    def _block(self, node: str, part: InBlock) -> dict[str, str]:
        """The block of a seat, and its SuperPod (docs/spec/superpod.md#annotations)."""
        super_pod = self._cluster.index.topology.location(node).super_pod
        return {BLOCK: str(part.block), RANK: str(part.rank)} | (
            {BLOCK_SUPER_POD: str(super_pod)} if super_pod >= 0 else {}
        )

    def _switch(self, part: OnSwitch) -> dict[str, str]:
        """How the job of a seat uses its leaf switch (docs/spec/switch-affinity.md#version-2)."""
        written, state = {RANK: str(part.rank)}, part.state
        if state is not None:
            written |= {SHARED_SWITCH: str(state.use.value), SWITCH_HEALTH: str(int(not state.is_healthy))}
            table = self._cluster.switches.table
            if state.use is Use.SHARED and isinstance(table, SwitchTable) and part.switch in table.switches:
                written[SHARED_SWITCH_IP] = table.switches[part.switch]
        return written

    def next_time(self) -> int:
        """A predicate time later than all before, and not earlier than the clock; Unix nanoseconds."""
        self._last = max(self._now_ns(), self._last + 1)
        return self._last


def _real(pod: Pod, grant: Grant, node: Node, location: Location) -> dict[str, str]:
    if grant.vnpu is not None or grant.cores:
        return {}  # the device plugin writes it
    by_operator = OPERATOR in pod.metadata.labels
    if not by_operator and len(grant.chips) != node.allocatable_chips:
        return {}
    try:
        addresses = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, "")).addresses
    except InvalidValue:
        # Only this annotation has the addresses; the device plugin writes both annotations later.
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
        super_pod_id=_known(location.super_pod, node.metadata.annotations.get(SUPER_POD_ID, "")),
        server_index=_known(location.server_index, node.metadata.annotations.get(SERVER_INDEX, "")),
    )
    return {REAL: join_names_sorted(grant.chips), CONFIGURATION: configuration}


def _known(located: int, text: str) -> int:
    """The located id; else the id in the Node's annotation, UNKNOWN if that is no number."""
    if located >= 0:
        return located
    try:
        return int(text[:20])
    except ValueError:
        return UNKNOWN
