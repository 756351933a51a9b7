"""What people are told about the switches of a job."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from allocator.switches.rooms import SwitchState, Use
from ascend.leaf_switches import Spot, SwitchTable


def describe_switches(
    spots: Mapping[int, Spot], states: Mapping[int, SwitchState], table: SwitchTable
) -> tuple[str, ...]:
    """Say which pods of a job are below which switch, a sentence each, in the order of the ranks.

    Args:
        spots: where the pods are, by rank.
        states: how the job uses its switches; empty where that is not known.
        table: the switches.
    """
    ranks: defaultdict[int, list[int]] = defaultdict(list)
    for rank, spot in sorted(spots.items()):
        ranks[spot.switch].append(rank)
    said = []
    for switch, own in ranks.items():
        address, state = table.switches.get(switch, ""), states.get(switch)
        where = f"switch {switch}" + (f" ({address})" if address else "")
        use = f", {state.use.name.lower()}" if state is not None and state.use is not Use.FREE else ""
        healthy = "" if state is None or state.is_healthy else ": it shares more switches than it should"
        what = "rank" if len(own) == 1 else "ranks"
        said.append(f"{what} {_ranges(own)} below {where}{use}{healthy}")
    return tuple(said)


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers, as in ``0-3, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
