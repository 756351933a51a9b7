"""What the device plugins say of themselves on their Nodes: the condition ``AscendDevicePluginNotReady``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ascend.conditions import NOT_READY, Lack
from ascend.grammar import some
from ascend.kube.objects import Node
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
        Lack.KUBELETS_PODS: "grant get nodes/pods (nodes/proxy before Kubernetes 1.33), or name the kubelet's "
        "certificate (devicePlugin.kubelet); until then pods that start together can get each other's chips",
    }.items()
}


def check_plugins(nodes: Iterable[Node]) -> Iterator[Finding]:
    """Say which plugins are not ready, alike ones together; a plugin that has not started yet counts as well."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for node in nodes:
        for each in node.status.conditions:
            if each.type == NOT_READY and each.status == "True":
                alike.setdefault(each.reason, []).append((node.name, printable(each.message)))
    for reason, told in sorted(alike.items()):
        names = tuple(sorted(name for name, _ in told))
        where = f"node {names[0]} is" if len(names) == 1 else f"{len(names)} nodes ({some(names)}) is"
        advice = _ADVICE.get(reason.partition(",")[0], "npuctl doctor there says more")
        yield problem(f"the device plugin of {where} not ready: {min(told)[1]}", advice, nodes=names)
