"""Says which SuperPods the blocks of a job got, and why not others."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from allocator.rules.asked import SuperPodLimits
from allocator.superpods.demand import Demand, Kind
from ascend.grammar import count, some

_MOST_NAMED: Final = 5


def describe(free: Mapping[int, int], blocks: Mapping[int, Sequence[int]], demand: Demand) -> tuple[str, ...]:
    """Describe a placement (docs/spec/superpod.md#selection).

    Args:
        free: how many servers each SuperPod had free for the job before, by its id.
        blocks: the ids of the SuperPods of each block, one for each of its servers, by the block's id.
        demand: what the job asks for.

    Returns:
        A sentence for each SuperPod that is used, then one for each reason for which others are not.
    """
    limits = demand.limits
    used: defaultdict[int, int] = defaultdict(int)
    hosted: defaultdict[int, list[int]] = defaultdict(list)
    for block, super_pods in sorted(blocks.items()):
        for number in dict.fromkeys(super_pods):
            hosted[number].append(block)
        for number in super_pods:
            used[number] += 1
    sentences = [
        f"{_blocks(hosted[number])} in SuperPod {number}: {used[number]} of its {free.get(number, 0)} free servers, "
        f"{_reserve(free.get(number, 0) - used[number], limits)}"
        for number in sorted(used, key=lambda each: hosted[each])
    ]
    others: defaultdict[str, list[int]] = defaultdict(list)
    for number in sorted(free):
        if number not in used:
            others[_why_not(free[number], demand)].append(number)
    for why, numbers in others.items():
        named = some([f"{number} ({free[number]} free)" for number in numbers], _MOST_NAMED)
        sentences.append(f"not SuperPod {named}: {why}")
    return tuple(sentences)


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
