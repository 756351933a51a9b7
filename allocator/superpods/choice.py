"""Says which SuperPods the blocks of a job got, and why not others."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from allocator.rules.asked import SuperPodLimits
from allocator.superpods.demand import Demand, Kind
from ascend.grammar import count, some

_MOST_NAMED: Final = 5
_JOINS: Final = "the other pods of the block run elsewhere"


def describe(
    free: Mapping[int, int],
    blocks: Mapping[int, Sequence[int]],
    demand: Demand,
    running: Mapping[int, Collection[int]] | None = None,
) -> tuple[str, ...]:
    """Describe a placement (docs/spec/superpod.md#selection).

    Args:
        free: how many servers each SuperPod had free for the job before, by its id.
        blocks: the ids of the SuperPods of each block, one for each of its servers, by the block's id.
        demand: what the job asks for.
        running: the ids of the SuperPods in which pods of a block run already, by the block's id.

    Returns:
        A sentence for each SuperPod with pods that run, one for each SuperPod that is used, then one for each reason
        for which others are not.
    """
    limits, running = demand.limits, running or {}
    used: defaultdict[int, int] = defaultdict(int)
    hosted: defaultdict[int, list[int]] = defaultdict(list)
    for block, super_pods in sorted(blocks.items()):
        for number in dict.fromkeys(super_pods):
            hosted[number].append(block)
        for number in super_pods:
            used[number] += 1
    sentences = [*_where_pods_run(running)]
    sentences += [
        f"{_blocks(hosted[number])} in SuperPod {number}: {used[number]} of its {free.get(number, 0)} free servers, "
        f"{_reserve(free.get(number, 0) - used[number], limits)}"
        for number in sorted(used, key=lambda super_pod: hosted[super_pod])
    ]
    others: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(free):
        if number not in used:
            joins = not demand.may_split and blocks.keys() <= running.keys()
            others[_JOINS if joins else _why_not(free[number], demand)].append(number)
    sentences += [f"not SuperPod {_named(numbers, free)}: {why}" for why, numbers in others.items()]
    return tuple(sentences)


def describe_room(
    free: Mapping[int, int], demand: Demand, running: Mapping[int, Collection[int]] | None = None
) -> tuple[str, ...]:
    """Describe the room for the blocks of a waiting job.

    Args:
        free: how many servers each SuperPod has free for the job, by its id.
        demand: what the job asks for.
        running: the ids of the SuperPods in which pods of a block run already, by the block's id.

    Returns:
        A sentence about the job, one for each SuperPod with pods that run, then one for each number of blocks that
        SuperPods have room for.
    """
    each = "may be split among SuperPods" if demand.may_split else "must be in one SuperPod"
    sentences = [f"{count(demand.blocks, 'block')} of {count(demand.size, 'server')}, each of which {each}"]
    sentences += _where_pods_run(running or {})
    by_room: defaultdict[int, list[int]] = defaultdict(list)
    for number in sorted(free):
        by_room[free[number] // demand.size].append(number)
    for room, numbers in sorted(by_room.items(), reverse=True):
        if room:
            sentences.append(f"SuperPod {_named(numbers, free)}: room for {count(room, 'block')}")
        elif demand.may_split:
            sentences.append(f"SuperPod {_named(numbers, free)}: room for a part of a block")
        else:
            sentences.append(f"not SuperPod {_named(numbers, free)}: {_why_not(free[numbers[0]], demand)}")
    return tuple(sentences)


def advise(demand: Demand, super_pods: int) -> tuple[str, ...]:
    """Say what the makers advise against: a job of several blocks should have fewer than the cluster has SuperPods.

    Args:
        demand: what the job asks for.
        super_pods: how many SuperPods have usable servers.
    """
    if demand.blocks == 1 or demand.blocks < super_pods:
        return ()
    there = f"it has {demand.blocks} blocks, and the cluster {count(super_pods, 'SuperPod')} with usable servers"
    advice = "the makers advise fewer blocks than SuperPods"
    return (f"{there}: {advice}; it is not refused for that, and several blocks may be in one SuperPod",)


def _where_pods_run(running: Mapping[int, Collection[int]]) -> Iterator[str]:
    hosted: defaultdict[int, list[int]] = defaultdict(list)
    for block, super_pods in sorted(running.items()):
        for number in sorted(set(super_pods)):
            hosted[number].append(block)
    for number, blocks in sorted(hosted.items(), key=lambda item: item[1]):
        where = f"SuperPod {number}" if number >= 0 else "no known SuperPod"
        yield f"{_blocks(blocks)} in {where}: pods of {'it' if len(blocks) == 1 else 'them'} run there"


def _named(numbers: Sequence[int], free: Mapping[int, int]) -> str:
    return some([f"{number} ({free[number]} free)" for number in numbers], _MOST_NAMED)


def _blocks(numbers: Sequence[int]) -> str:
    return f"{'block' if len(numbers) == 1 else 'blocks'} {', '.join(map(str, numbers))}"


def _reserve(left: int, limits: SuperPodLimits) -> str:
    if not limits.reserve:
        return f"{left} are left"
    kept = "is kept" if left >= limits.reserve else f"is used, {count(left, 'server is', 'servers are')} left"
    return f"its reserve of {limits.reserve} {kept}"


def _why_not(free: int, demand: Demand) -> str:
    if free < demand.size:
        return f"fewer free servers than the {demand.size} of a block"
    if demand.kind is Kind.SERVICE:
        return "others have instances of the service, or more free servers"
    if free - demand.limits.reserve < demand.size:
        return f"a block there would use the reserve of {demand.limits.reserve}"
    if demand.kind is Kind.MIND_IE:
        return f"others are nearer to what the job names, or {'idler' if demand.idlest else 'fuller'}"
    return "more servers would be left over there, or its room is larger than the job needs"
