"""Which of several gangs is served whose Bindings another scheduler posts."""

import asyncio
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.injection import HOLD_S, REFUSED_S, ROOM_S
from allocator.gangs.start_queue import TURN_S
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.binding.counting import CountingScheduler
from tests.allocator.binding.webhook import NEW, OLD, Webhook, gang, reasons
from tests.allocator.builders import pod

pytestmark = pytest.mark.looptime


def clock() -> float:
    return asyncio.get_running_loop().time()


async def post_until_bound(webhook: Webhook, each: Pod, name: str, *, retry_s: float = 1.0) -> float:
    """Post a Binding again and again, as a scheduler does; returns how long that took."""
    started_s = clock()
    while True:
        with suppress(Refusal):
            await webhook.inject(each, name)
            return clock() - started_s
        await asyncio.sleep(retry_s)


async def contend(webhook: Webhook, held: Pod, refused: Pod) -> None:
    """A Binding is held on server n1, and that of a pod of another gang, whose turn is next, is refused there."""
    first, second = webhook.together({"n1": held}), webhook.together({"n1": refused})
    answers = await asyncio.gather(first, second)
    assert [*map(reasons, answers)] == [[Reason.GANG_STEPPED_BACK], [Reason.NOT_ENOUGH_CHIPS]]


async def test_a_gang_does_not_start_in_part_while_another_one_is_served() -> None:
    x, y = gang("x", 3, since=NEW), gang("y", 3, since=OLD)
    webhook = Webhook(*x, *y)
    held = asyncio.create_task(webhook.inject(x[0], "n1"))
    await asyncio.sleep(0.1)
    assert reasons(await webhook.together({"n1": y[0]})) == [Reason.NOT_ENOUGH_CHIPS]
    assert reasons(await webhook.together({"n2": x[1]})) == [Reason.GANG_STEPPED_BACK]
    with pytest.raises(Refusal, match="job default/y starts first"):
        await held
    assert reasons(await webhook.together({"n1": y[0], "n2": y[1], "n3": y[2]})) == ["", "", ""]


async def test_two_gangs_do_not_both_start_in_part() -> None:
    x, y = gang("x", 3), gang("y", 3)
    webhook = Webhook(*x, *y)
    assert reasons(await webhook.together({"n1": x[0], "n2": y[0]})) == ["", Reason.GANG_STEPPED_BACK]
    answers = await webhook.together({"n3": x[1], "n4": y[1], "n2": x[2]})
    assert reasons(answers) == ["", Reason.GANG_STEPPED_BACK, ""]


async def test_an_incomplete_gang_does_not_keep_others_waiting() -> None:
    incomplete, x = gang("incomplete", 3, since=OLD)[:2], gang("x", since=NEW)
    webhook = Webhook(*incomplete, *x)
    held = asyncio.create_task(webhook.inject(x[0], "n1"))
    await asyncio.sleep(0.1)
    assert reasons(await webhook.together({"n1": incomplete[0]})) == [Reason.GANG_INCOMPLETE]
    started_s = clock()
    assert await webhook.inject(x[1], "n2")
    assert await held
    assert clock() == started_s


async def test_the_turn_of_a_gang_whose_bindings_are_not_posted_ends() -> None:
    x, y = gang("x", since=NEW), gang("y", since=OLD)
    webhook = Webhook(*x, *y)
    started_s = clock()
    await contend(webhook, x[0], y[0])  # y is older: its turn
    await asyncio.gather(*(post_until_bound(webhook, each, f"n{n}") for n, each in enumerate(x, start=1)))
    assert TURN_S <= clock() - started_s <= TURN_S + 1


async def test_the_turn_lasts_as_long_as_bindings_are_made() -> None:
    x, y = gang("x", since=NEW), gang("y", 4, since=OLD)
    webhook = Webhook(*x, *y)
    await contend(webhook, x[0], y[0])
    await asyncio.sleep(REFUSED_S)
    waiting = asyncio.create_task(post_until_bound(webhook, x[0], "n4"))
    await webhook.inject(y[0], "n1")
    for each, name in zip(y[1:], ("n2", "n3", "n4"), strict=True):
        await asyncio.sleep(TURN_S - 2)
        await webhook.inject(each, name)
    waiting.cancel()


async def test_gangs_that_do_not_fit_delay_one_that_fits_by_seconds() -> None:
    tall = [gang(f"tall{number}", 5, since=OLD) for number in range(6)]
    x = gang("x", since=NEW)
    webhook = Webhook(*(each for pods in tall for each in pods), *x)
    posting = [
        asyncio.create_task(post_until_bound(webhook, pods[rank], f"n{rank + 1}", retry_s=3.0))
        for pods in tall
        for rank in range(4)
    ]
    await asyncio.sleep(5)
    took_s = await asyncio.gather(post_until_bound(webhook, x[0], "n1"), post_until_bound(webhook, x[1], "n2"))
    assert max(took_s) <= 2 * ROOM_S
    for each in posting:
        each.cancel()


async def test_a_gang_that_lacks_a_pod_delays_others_by_seconds() -> None:
    x, y = gang("x", 3), gang("y")
    running = [
        pod(each.name, 8, node=f"n{n}", chips=range(8), annotations=each.metadata.annotations)
        for n, each in enumerate(x[:2], start=1)
    ]
    webhook = Webhook(*running, x[2], *y)
    assert reasons(await webhook.together({"n1": x[2]})) == [Reason.PEER_ON_NODE]
    webhook.rig.world.cluster.pod_deleted(x[2])
    took_s = await asyncio.gather(post_until_bound(webhook, y[0], "n3"), post_until_bound(webhook, y[1], "n4"))
    assert max(took_s) <= 2 * ROOM_S


async def test_the_gang_of_the_highest_priority_is_served_first() -> None:
    low, high = gang("low", 3, since=OLD), gang("high", 3, since=NEW, priority=10)
    webhook = Webhook(*low, *high)
    held = asyncio.create_task(webhook.inject(high[0], "n1"))
    await asyncio.sleep(0.1)
    assert reasons(await webhook.together({"n1": low[0]})) == [Reason.NOT_ENOUGH_CHIPS]  # it waits, and is the only one
    answers = await webhook.together({"n2": high[1], "n3": high[2], "n4": low[1]})
    assert reasons(answers) == ["", "", Reason.GANG_STEPPED_BACK]
    assert await held


async def test_a_gang_that_has_started_in_part_and_does_not_fit_keeps_no_chips_from_others() -> None:
    x, y = gang("x", 4), gang("y")
    running = [
        pod(each.name, 8, node=f"n{number}", chips=range(8), annotations=each.metadata.annotations)
        for number, each in enumerate((*x[:2], y[0]), start=1)
    ]
    webhook = Webhook(*running, *x[2:], y[1])
    assert reasons(await webhook.together({"n4": x[2]})) == [Reason.GANG_DOES_NOT_FIT]
    assert len(webhook.rig.world.ledger) == 0
    assert await post_until_bound(webhook, y[1], "n4") <= 2 * ROOM_S


async def test_single_pods_are_bound_while_gangs_wait() -> None:
    x, y, single = gang("x", since=NEW), gang("y", since=OLD), pod("single", 8)
    webhook = Webhook(*x, *y, single)
    await contend(webhook, x[0], y[0])
    started_s = clock()
    assert await webhook.inject(single, "n1")
    assert clock() == started_s
    assert reasons(await webhook.together({"n2": y[0], "n3": y[1]})) == ["", ""]


async def test_the_next_leader_serves_the_gang_first_that_has_started_in_part() -> None:
    x, y = gang("x", 3, since=NEW), gang("y", 3, since=OLD)
    before = Webhook(*x, *y)
    started_s = clock()
    answer = await before.inject(x[0], "n1")
    assert clock() - started_s == pytest.approx(HOLD_S)
    bound = pod("x-0", 8, node="n1", annotations={**x[0].metadata.annotations, **answer})
    after = Webhook(bound, *x[1:], *y)
    answers = await after.together({"n2": x[1], "n3": y[0]})
    assert reasons(answers) == ["", Reason.GANG_STEPPED_BACK]
    assert reasons(await after.together({"n4": x[2]})) == [""]


async def test_a_gang_that_was_created_anew_waits_by_its_new_priority() -> None:
    x, y = gang("x", since=NEW), gang("y", since=OLD)
    webhook = Webhook(*x, *y)
    await contend(webhook, x[0], y[0])
    for each in y:
        webhook.rig.world.cluster.pod_deleted(each)
    again = [pod(each.name + "b", 8, annotations=each.metadata.annotations, priority=-1) for each in y]
    webhook.rig.world.add(*again)
    assert reasons(await webhook.together({"n1": x[0], "n2": x[1]})) == ["", ""]


@st.composite
def schedulers(draw: st.DrawFn) -> CountingScheduler:
    """Gangs of several sizes and priorities, single pods, and gangs that don't fit."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0, 0, 10])), min_size=2, max_size=5))
    gangs = [
        gang(f"g{number}", size, priority=priority, since=f"2026-01-01T00:00:{number:02}Z")
        for number, (size, priority) in enumerate(shapes)
    ]
    singles = [pod(f"s{number}", 2) for number in range(draw(st.integers(0, 6)))]
    never = [gang(f"never{number}", 5, since=OLD) for number in range(draw(st.integers(0, 2)))]
    is_serial, random = draw(st.booleans()), Random(draw(st.integers(0, 999)))
    return CountingScheduler(gangs, singles, never, is_serial=is_serial, random=random)


@given(schedulers(), st.none() | st.floats(0, 20))
async def test_every_gang_that_fits_starts_as_a_whole(scheduler: CountingScheduler, change_s: float | None) -> None:
    async with scheduler:
        if change_s is not None:
            await asyncio.sleep(change_s)
            scheduler.change_leader()
        # The scheduler chooses nodes by chance, so chance decides how many turns a gang needs: few examples take 300 s.
        async with asyncio.timeout(1200):
            await scheduler.all_have_run()
