"""Checks the chips of bound pods."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from ascend.kube.objects import Pod
from ascend.pod_devices import read_grant
from ascend.products import ASCEND_910A
from ascend.slices import effective_request


@dataclass(frozen=True, slots=True)
class Audit:
    """Counts of bound pods.

    Attributes:
        bound: all bound pods.
        nodes: the number of nodes they are on.
        violations: pods whose chips are in two rings although one is required, are too few or too many, or are assigned
            to another pod too.
        without: pods without chips in their annotations, which may get chips of any rings.
    """

    bound: int
    nodes: int
    violations: int
    without: int


def audit(pods: Iterable[Pod]) -> Audit:
    """Check every bound pod."""
    bound = [pod for pod in pods if pod.spec.node_name]
    taken: defaultdict[str, int] = defaultdict(int)
    violations = without = 0
    for pod in bound:
        grant = read_grant(pod.metadata.annotations)
        if grant is None:
            without += 1
            continue
        request = effective_request(pod.container_requests)
        in_one_ring = any(not grant.chip_set & ~ring for ring in ASCEND_910A.rings)
        is_whole = grant.chip_set == ASCEND_910A.all_chips
        is_right = len(grant.chips) == request and (in_one_ring or is_whole)
        violations += not is_right or bool(taken[pod.spec.node_name] & grant.chip_set)
        taken[pod.spec.node_name] |= grant.chip_set
    return Audit(len(bound), len({pod.spec.node_name for pod in bound}), violations, without)
