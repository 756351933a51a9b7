"""Restores what the former leader remembered, before this one places pods."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import structlog

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.fault_watch import why_lost
from allocator.rescheduling.memory import Deleted, Memory
from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from ascend.chips import chip_ids
from ascend.errors import ApiError, Unreachable

log = structlog.get_logger()

RETRY_S: Final = 1.0
_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def restore(actions: Actions, cluster: Cluster, now_s: Callable[[], float]) -> Memory | None:
    """Return what is remembered, and tell the state of the cluster which chips are held and where ranks were.

    An API server that does not answer is asked until it does. What can't be read of pods deleted by force may have held
    any chip of a node that is not Ready now: these are held as if they had been such a pod's.

    Args:
        actions: the requests.
        cluster: nodes and jobs.
        now_s: the wall clock, Unix seconds.

    Returns:
        What is remembered; None if the API server refuses to say.
    """
    while True:
        try:
            memory = await actions.load(now_s())
            break
        except (ApiError, Unreachable) as error:
            log.warning("nothing is rescheduled: can't read what is remembered of faults", error=str(error))
            if isinstance(error, ApiError) and error.status in _REFUSED:
                return None
        await asyncio.sleep(RETRY_S)
    memory.doubtful = _doubtful(memory, cluster, now_s())
    for uid, deleted in (memory.force_deleted | memory.doubtful).items():
        cluster.hold_deleted(uid, deleted.node, deleted.holding)
    for plan, recovery in memory.jobs.items():
        key = JobKey.of_plan(plan)
        cluster.faulty_nodes.note(key, recovery.faulty_nodes)
        known = cluster.blocks.of(key)
        for rank, spot in recovery.spots.items():
            if rank not in known:
                cluster.blocks.remember(key, rank, spot, now_s())
    return memory


def _doubtful(memory: Memory, cluster: Cluster, now_s: float) -> dict[str, Deleted]:
    """The chips that unreadable pods may hold: all chips of lost nodes, or of the nodes that are named."""
    nodes = {entry.node for entry in memory.unread_pods.values()}
    concerns_all = bool(memory.broken) or "" in nodes
    found: dict[str, Deleted] = {}
    for name, record in cluster.nodes.items():
        if why_lost(record, name) is None or not (concerns_all or name in nodes):
            continue
        chips = record.product.all_chips if record.product is not None else record.held
        if chips:
            found[f"unreadable on {name}"] = Deleted("", name, now_s, list(chip_ids(chips)))
    return found
