"""What the device plugins say of themselves on their Nodes: the condition ``AscendDevicePluginNotReady``.

A plugin that is killed leaves the condition as it was, so it counts only while the plugin may live: a plugin that is
registered at its kubelet offers chips, and one that lives writes the condition again every 300 s.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from ascend.conditions import NOT_READY, Lack
from ascend.grammar import some
from ascend.kube.objects import Condition, Node
from ascend.printable import printable
from npuctl.doctor.finding import Finding, problem

_ADVICE: Final[Mapping[str, str]] = {
    lack.reason: advice
    for lack, advice in {
        Lack.NODE: "see whether its kubelet runs, and what the API server answers (the plugin's log)",
        Lack.START: "grant the right (helm upgrade); until then the node offers no chips",
        Lack.DRIVER: "npuctl doctor there says more; dmesg; install the driver, or restart the server",
        Lack.PODS: "grant the right to list pods (helm upgrade); until then the node offers no chips",
        Lack.LOCK: "mount the kubelet's folder of device plugins, and free its disk",
        Lack.KUBELET: "see whether the kubelet runs, and its log; keep other device plugins off the node",
        Lack.REPORT: "mend it: after 15 minutes no pod is placed there (StaleReport)",
        Lack.CLAIMS: "grant the right to patch pods, or name the plugin in allocator.policies.writers, "
        "before another device plugin follows there: it would give the chips again",
        Lack.KUBELETS_PODS: "grant get nodes/pods (nodes/proxy before Kubernetes 1.33) and nodes/metrics, or name the "
        "kubelet's certificate (devicePlugin.kubelet); until then pods that start together can get each other's "
        "chips, or other plugins of the resource are noticed late",
        Lack.RIGHTS: "grant them (helm upgrade); until then the node goes without what they are for",
    }.items()
}


OLD_S: Final = 330
"""The device plugin writes its report, and its condition, at least every 300 s."""

_WHILE_REGISTERED: Final = {lack.reason for lack in (Lack.REPORT, Lack.CLAIMS, Lack.KUBELETS_PODS, Lack.RIGHTS)}
"""What a plugin lacks that has registered at its kubelet."""
_ENDED: Final = "start it; the log of its pod there says why it ended, or why it can't reach the API server"


def unready(nodes: Iterable[Node]) -> dict[str, Condition]:
    """The conditions of the plugins that are not ready, or were not when they wrote last, by node."""
    conditions = ((node.name, condition) for node in nodes for condition in node.status.conditions)
    return {name: entry for name, entry in conditions if entry.type == NOT_READY and entry.status == "True"}


def check_plugins(
    nodes: Iterable[Node], heartbeats: Mapping[str, float], unoffered: Collection[str], now_s: float
) -> Iterator[Finding]:
    """Say which plugins are not ready, alike ones together; a plugin that has not started yet counts as well.

    Args:
        nodes: all nodes.
        heartbeats: when the plugin of a node has written its condition last, Unix seconds, as far as that is known.
        unoffered: the nodes whose kubelets offer no chips although some are healthy.
        now_s: the time, Unix seconds.
    """
    alike: dict[tuple[bool, str], list[tuple[str, str]]] = {}
    for name, condition in unready(nodes).items():
        contradicted = name in unoffered and set(condition.reason.split(",")) <= _WHILE_REGISTERED
        is_over = contradicted or now_s - heartbeats.get(name, now_s) > OLD_S
        alike.setdefault((is_over, condition.reason), []).append((name, printable(condition.message)))
    for (is_over, reason), told in sorted(alike.items()):
        names = tuple(sorted(name for name, _ in told))
        where = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes ({some(names)})"
        state = "does not run, or can't reach the API server; it was" if is_over else "is"
        advice = _ENDED if is_over else _ADVICE.get(reason.partition(",")[0], "npuctl doctor there says more")
        yield problem(f"the device plugin of {where} {state} not ready: {min(told)[1]}", advice, nodes=names)
