"""The allocator's answers within a pod's node selector: no scheduler asks it about nodes that the selector leaves out.

A gang is planned where its pods' selectors say by the allocator itself; a single pod is asked about with the nodes
that suit it, as kube-scheduler would.
"""

from collections import Counter
from collections.abc import Mapping

from allocator.gangs.gangs import NEVER
from allocator.rules.summary import sum_up
from allocator.rules.vacancy import Fit
from allocator.state.reservation import Reservation
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from npuctl.snapshot import Allocation

MISMATCH = "NodeSelectorMismatch"
"""The reason of nodes without the labels that the pod's node selector names."""

_TELLING = NEVER | {"NotAnNpuNode", "UnknownNode"}
"""Reasons that say more: no label would help."""


def place(allocation: Allocation, pod: Pod) -> Reservation:
    """Choose node and chips for a pod and reserve them.

    Raises:
        Refusal: it fits nowhere; says why.
    """
    engine, selector = allocation.engine, pod.spec.node_selector
    if not selector or engine.is_of_gang(pod):
        return engine.place(pod)
    ask = engine.request_of(pod)
    try:
        return engine.place(pod, allocation.cluster.labels.selected(selector))
    except Refusal:
        reasons = Counter(each.reason for each in refusals(allocation, pod).values())
        raise sum_up(pod.key, ask.chips, reasons) from None


def refusals(allocation: Allocation, pod: Pod) -> dict[str, Refusal]:
    """Why a pod doesn't fit, for every node where it doesn't; a request that makes no sense is refused by all."""
    nodes = allocation.cluster.nodes
    try:
        refused = allocation.engine.filter(pod).refused
    except Refusal as refusal:
        return dict.fromkeys(nodes, refusal)
    selector = pod.spec.node_selector
    if not selector:
        return refused
    suited = allocation.cluster.labels.selected(selector)
    for name, record in nodes.items():
        if name not in suited and not (name in refused and refused[name].reason in _TELLING):
            refused[name] = _mismatch(selector, record.node.metadata.labels if record.node is not None else {})
    return refused


def fits(allocation: Allocation, pod: Pod) -> list[tuple[str, Fit]]:
    """Every node a pod fits on, and how, best first.

    Raises:
        Refusal: the pod's request makes no sense on any node.
    """
    found = allocation.engine.fits(pod)
    if not pod.spec.node_selector:
        return found
    suited = allocation.cluster.labels.selected(pod.spec.node_selector)
    return [each for each in found if each[0] in suited]


def _mismatch(selector: Mapping[str, str], labels: Mapping[str, str]) -> Refusal:
    lacking = (
        f"{key}={value}, and the node has {f'{key}={labels[key]}' if key in labels else 'no such label'}"
        for key, value in sorted(selector.items())
        if labels.get(key) != value
    )
    return Refusal(MISMATCH, f"the pod's node selector asks for {'; for '.join(lacking)}")
