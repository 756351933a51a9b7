"""Restores what the former leader remembered, before this one places pods."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import structlog

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.memory import Memory
from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from ascend.errors import ApiError, InvalidValue, Unreachable

log = structlog.get_logger()

RETRY_S: Final = 1.0
_REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def restore(actions: Actions, cluster: Cluster, now_s: Callable[[], float]) -> Memory | None:
    """Return what is remembered, and tell the state of the cluster which chips are held and where ranks were.

    An API server that does not answer is asked until it does; malformed data is replaced.

    Args:
        actions: the requests.
        cluster: nodes and jobs.
        now_s: the wall clock, Unix seconds.

    Returns:
        What is remembered; None if the API server refuses to say.
    """
    memory = Memory()
    while True:
        try:
            memory = await actions.load(now_s())
            break
        except InvalidValue as error:
            log.warning("what is remembered of faults can't be read, and is replaced", error=error.message)
            break
        except (ApiError, Unreachable) as error:
            log.warning("nothing is rescheduled: can't read what is remembered of faults", error=str(error))
            if isinstance(error, ApiError) and error.status in _REFUSED:
                return None
        await asyncio.sleep(RETRY_S)
    for uid, each in memory.force_deleted.items():
        cluster.hold_deleted(uid, each.node, each.holding)
    for plan, recovery in memory.jobs.items():
        key = JobKey.of_plan(plan)
        cluster.faulty_nodes.note(key, recovery.faulty_nodes)
        known = cluster.blocks.of(key)
        for rank, spot in recovery.spots.items():
            if rank not in known:
                cluster.blocks.remember(key, rank, spot, now_s())
    return memory
