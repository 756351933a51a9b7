"""What the programs say of themselves and of pods: the conditions of device plugins, and Events of the last hour.

A plugin that is killed leaves its condition ``AscendDevicePluginNotReady`` as it was, so that counts only while the
plugin may live: a plugin that is registered at its kubelet offers chips, and one that lives writes the condition again
every 300 s.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ascend.grammar import several, some
from ascend.kube.objects import Condition, Node, Pod
from ascend.printable import printable
from device_plugin.publish.node_conditions import NOT_READY, Lack
from npuctl.doctor.finding import Finding, problem, warning

_LACKS: Final[Mapping[str, str]] = {
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
WITHOUT_CHIPS: Final = "NPURunsWithoutChips"
ADVICE: Final[Mapping[str, str]] = {
    WITHOUT_CHIPS: "delete the pod",
    "NPUAllocationMismatch": "if the kubelet has lost its checkpoint, delete the pods when it suits",
    "NPUForeignProcess": "end the process (docs/device-plugin.md#foreign-processes)",
    "NPUSegmentInUse": "end the container that has the vNPU, or destroy the vNPU with npu-smi",
    "NPUResetFailed": "reset the chip with npu-smi, or restart the server (docs/hot-reset.md)",
    "NPUResetCancelled": "see why the Node can't be written: the chips are not reset",
    "NPUReschedulingHeld": "docs/rescheduling.md says when it goes on; the allocator's log has each cause",
}
"""The reasons of these Events, with what to do."""


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
        state = "does not run, or can't reach the API server; it was" if is_over else "is"
        advice = _ENDED if is_over else _LACKS.get(reason.partition(",")[0], "npuctl doctor there says more")
        sentence = f"the device plugin of {several('node', names)} {state} not ready: {min(told)[1]}"
        yield problem(sentence, advice, nodes=names)


def check_certificates(expiring: Iterable[tuple[str, float]], now_s: float) -> Iterator[Finding]:
    """What the Events of the allocator say of certificates: they are repeated until a certificate is renewed."""
    for note, seen_s in expiring:
        certificate, _, advice = note.partition(": ")
        found = problem if " expired at " in certificate else warning
        if now_s - seen_s <= OLD_S:
            yield found(certificate, f"{advice} (docs/allocator.md#certificates)")


class EventSighting(NamedTuple):
    """The last sighting of an Event: reason and note, and the object with its uid."""

    reason: str
    note: str
    kind: str
    key: str
    uid: str


def check_told(told: Iterable[EventSighting], pods: Iterable[Pod]) -> Iterator[Finding]:
    """Say what the Events say, by reason; not of pods that have ended."""
    live = {pod.uid for pod in pods if pod.is_live}
    alike: dict[str, dict[tuple[str, str], str]] = {}
    for sighting in told:
        if sighting.kind != "Pod" or sighting.uid in live:
            notes = alike.setdefault(sighting.reason, {})
            notes.pop((sighting.kind, sighting.key), None)  # so that the last of all is the last in order
            notes[sighting.kind, sighting.key] = sighting.note
    for reason, notes in sorted(alike.items()):
        *others, ((kind, key), note) = notes.items()
        also = f"; also on {some([key for (_, key), _ in others])}" if others else ""
        found = problem if reason == WITHOUT_CHIPS else warning
        sentence = f"{reason} on {kind.lower()} {key}, within the last hour: {printable(note)}{also}"
        named = {wanted: tuple(key for kind, key in notes if kind == wanted) for wanted in ("Node", "Pod")}
        yield found(sentence, ADVICE[reason], nodes=named["Node"], pods=named["Pod"])
