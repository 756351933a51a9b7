"""Bindings of a gang that the API server refuses, or whose answers are lost, on the sandbox's API server.

The others of the gang are bound by then. Its seats are kept until its scheduler has asked again.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ascend.annotations import ALLOCATED, MIN_AVAILABLE
from sandbox.apiserver import ApiServer
from tests.allocator.builders import GROUP
from tests.allocator.harness import Allocator

pytestmark = pytest.mark.asyncio(loop_scope="module")

NODES = ["n1", "n2", "n3", "n4"]
REFUSED = r"/train-[12]/binding"


def refuse(status: int, times: int = 2) -> Callable[[ApiServer], None]:
    return lambda server: server.fail_next("POST", REFUSED, status, times=times, retry_after_s=30)


async def ask(allocator: Allocator, pod: dict[str, Any]) -> bool:
    """Filter and bind a pod as kube-scheduler does; whether it is bound."""
    fitting = (await allocator.filter(pod, NODES))["NodeNames"]
    return bool(fitting) and await allocator.bind(pod, fitting[0]) == ""


@pytest.mark.parametrize(
    ("fault", "rounds"),
    [
        pytest.param(refuse(429), 2, id="too many requests"),
        pytest.param(refuse(409), 2, id="conflict"),
        pytest.param(refuse(500), 2, id="internal error"),
        pytest.param(refuse(403, 6), 4, id="forbidden by another's webhook for a while"),
        pytest.param(lambda server: server.lose_answer("POST", REFUSED, times=2), 1, id="answers lost"),
    ],
)
async def test_a_gang_of_which_bindings_fail_keeps_its_seats_and_is_whole_when_asked_for_again(
    allocator: Allocator, fault: Callable[[ApiServer], None], rounds: int
) -> None:
    for name in NODES:
        await allocator.node(name)
    annotations = {GROUP: "train", MIN_AVAILABLE: "4"}
    waiting = [await allocator.pod(f"train-{rank}", 8, annotations=annotations) for rank in range(4)]
    other = await allocator.pod("other", 1)
    fault(allocator.server)
    for tried in range(rounds):
        answers = await asyncio.gather(*(ask(allocator, pod) for pod in waiting))
        waiting = [pod for pod, is_bound in zip(waiting, answers, strict=True) if not is_bound]
        assert len(waiting) == (2 if tried < rounds - 1 else 0)
        assert not await ask(allocator, other)
    bound = [await allocator.read(f"train-{rank}") for rank in range(4)]
    assert sorted(pod["spec"]["nodeName"] for pod in bound) == NODES
    assert all(pod["metadata"]["annotations"][ALLOCATED] for pod in bound)
