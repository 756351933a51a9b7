"""Bindings of gangs that another scheduler posts: each is served for its node alone, and they wait for each other."""

import asyncio
from collections.abc import Mapping

import pytest

from allocator.binding.injection import HOLD_S, REFUSED_S
from allocator.state.promises import Promise
from allocator.state.reservation import Stage
from ascend.annotations import ALLOCATED
from ascend.errors import Refusal
from ascend.reasons import Reason
from tests.allocator.binding.webhook import Webhook, gang, reasons

pytestmark = pytest.mark.looptime


async def test_two_gangs_are_bound_to_the_nodes_that_their_scheduler_names() -> None:
    x, y = gang("x"), gang("y")
    webhook = Webhook(*x, *y)
    answers = await webhook.together({"n3": x[0], "n1": y[0], "n4": x[1], "n2": y[1]})
    assert reasons(answers) == ["", "", "", ""]
    assert all(isinstance(answer, Mapping) and ALLOCATED in answer for answer in answers)
    assert webhook.rig.world.ledger.count(Stage.DOUBTFUL) == 4


async def test_a_gang_with_a_refused_binding_does_not_start_in_part() -> None:
    x = gang("x")
    webhook = Webhook(*x)
    webhook.rig.world.fill("n2", [0])
    answers = await webhook.together({"n1": x[0], "n2": x[1]})
    assert reasons(answers) == [Reason.GANG_STEPPED_BACK, Reason.NOT_ENOUGH_CHIPS]
    # Its scheduler tries again and again.
    for _ in range(3):
        await asyncio.sleep(1)
        answers = await webhook.together({"n1": x[0], "n2": x[1]})
        assert all(reasons(answers))
    assert webhook.rig.world.ledger.count(Stage.DOUBTFUL) == 0


async def test_a_scheduler_that_posts_one_binding_after_the_other_waits_once() -> None:
    x = gang("x", 3)
    webhook = Webhook(*x)
    clock = asyncio.get_running_loop().time
    started_s = clock()
    for each, name in zip(x, ("n4", "n3", "n2"), strict=True):
        await webhook.inject(each, name)
    assert clock() - started_s == pytest.approx(HOLD_S, abs=0.1)
    assert webhook.rig.world.ledger.count(Stage.DOUBTFUL) == 3


async def test_a_gang_whose_rest_fits_nowhere_does_not_start_in_part() -> None:
    x = gang("x", 3)
    webhook = Webhook(*x)
    webhook.rig.world.fill("n2", [0])
    webhook.rig.world.fill("n3", [0])
    with pytest.raises(Refusal) as refused:
        await webhook.inject(x[0], "n1")
    assert refused.value.reason is Reason.GANG_DOES_NOT_FIT
    assert len(webhook.rig.world.ledger) == 0


async def test_a_refusal_long_ago_does_not_keep_a_gang_from_starting() -> None:
    x = gang("x")
    webhook = Webhook(*x)
    webhook.rig.world.fill("n2", [0])
    assert all(reasons(await webhook.together({"n1": x[0], "n2": x[1]})))
    await asyncio.sleep(REFUSED_S + 1)
    assert reasons(await webhook.together({"n1": x[0], "n3": x[1]})) == ["", ""]


async def test_an_incomplete_gang_is_refused_at_once() -> None:
    x = gang("x", 3)[:2]
    webhook = Webhook(*x)
    started_s = asyncio.get_running_loop().time()
    with pytest.raises(Refusal) as refused:
        await webhook.inject(x[0], "n1")
    assert refused.value.reason is Reason.GANG_INCOMPLETE
    assert asyncio.get_running_loop().time() == started_s


async def test_a_binding_posted_twice_does_not_start_a_gang_that_is_held() -> None:
    x = gang("x")
    webhook = Webhook(*x)
    for name in ("n2", "n3", "n4"):
        webhook.rig.world.fill(name, [0])
    answers = await asyncio.gather(*(webhook.inject(x[0], "n1") for _ in range(2)), return_exceptions=True)
    assert all(isinstance(answer, Refusal) for answer in answers)
    assert len(webhook.rig.world.ledger) == 0


async def test_a_gang_that_once_started_in_part_is_held_again_when_its_pods_are_recreated() -> None:
    x = gang("x", 3)
    webhook = Webhook(*x)
    for each, name in zip(x, ("n4", "n3", "n2"), strict=True):
        await webhook.inject(each, name)
    for each in x:
        webhook.rig.world.cluster.pod_deleted(each)
    webhook.rig.world.fill("n2", [0])
    webhook.rig.world.fill("n3", [0])
    webhook.rig.world.add(*x)
    with pytest.raises(Refusal) as refused:
        await webhook.inject(x[0], "n1")
    assert refused.value.reason is Reason.GANG_DOES_NOT_FIT


async def test_a_gang_refused_just_now_does_not_start_in_part_because_another_one_does() -> None:
    x, y = gang("x"), gang("y")
    webhook = Webhook(*x, *y)
    webhook.rig.world.fill("n2", [0])

    async def refused_meanwhile() -> None:
        await asyncio.sleep(HOLD_S / 2)
        with pytest.raises(Refusal):
            await webhook.inject(x[1], "n2")

    first = asyncio.create_task(webhook.inject(y[0], "n3"))
    await refused_meanwhile()
    second = asyncio.create_task(webhook.inject(x[0], "n1"))
    assert await first
    with pytest.raises(Refusal) as refused:
        await second
    assert "was refused just now" in refused.value.message


@pytest.mark.parametrize(("since", "reason"), [("2026-01-02T00:00:00Z", ""), ("", Reason.CHIPS_KEPT)])
async def test_a_gang_uses_what_is_kept_for_gangs_that_were_created_later(since: str, reason: str) -> None:
    x = gang("x")
    webhook = Webhook(*x)
    later = Promise("default/other", "job default/other", 0, {"n1": 0xFF}, 1e9, drains=True, since=since)
    webhook.rig.world.ledger.promises.keep(later)
    answers = await webhook.together({"n1": x[0], "n2": x[1]})
    assert reasons(answers)[0] == reason


async def test_a_binding_that_its_scheduler_gives_up_leaves_nothing_reserved() -> None:
    x, y = gang("x"), gang("y")
    webhook = Webhook(*x, *y)
    held = asyncio.create_task(webhook.inject(x[0], "n1"))
    await asyncio.sleep(HOLD_S / 2)
    held.cancel()  # the scheduler has ended
    await asyncio.gather(held, return_exceptions=True)
    assert len(webhook.rig.world.ledger) == 0
    assert reasons(await webhook.together({"n1": y[0], "n2": y[1]})) == ["", ""]
