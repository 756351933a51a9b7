"""Which node a pod should come back to: the one that has its images and files (spec/scheduling.md §1.4, step 3)."""

from collections.abc import Iterable, Mapping


def prefer(rank: int, previous: Mapping[int, str], fitting: Iterable[str], *, faulty: bool = False) -> str | None:
    """The node for a pod among those it fits on; None where there are none.

    Args:
        rank: the pod's rank in its job.
        previous: where the pods of the job were, by rank.
        fitting: the nodes, best first.
        faulty: its own node had a fault: it is the last resort instead of the first choice.
    """
    nodes = list(fitting)
    own = previous.get(rank)
    if not faulty and own in nodes:
        return own
    unused = next((node for node in nodes if node not in previous.values()), None)
    if unused is not None:
        return unused
    return own if own in nodes else next(iter(nodes), None)
