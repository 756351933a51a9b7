"""Why a pod waits: node by node, by the code that decides, and what would help."""

from collections.abc import Callable, Iterable

import msgspec
from msgspec import structs

from allocator.gangs.gangs import NEVER
from allocator.rules.request import ChipRequest, counted_chips
from allocator.rules.vacancy import OCCUPIED
from allocator.settings import Settings
from ascend.annotations import held_chips
from ascend.chips import chip_ids, chip_name
from ascend.deviceinfo import NAMESPACE, node_name
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import ConfigMap, Pod
from ascend.reasons import Reason
from npuctl.output import Group, group
from npuctl.planning import Candidate, Why, candidates_of, job_name, waits
from npuctl.remedies import Remedy, Scene, pods_to_end, remedies
from npuctl.selection import MISMATCH, place, refusals
from npuctl.snapshot import Allocation, Snapshot

MOST_NODES = 200
"""What would help is looked for on so many nodes at most, those first where only other pods are in the way."""

_HOPELESS = NEVER | {"NotAnNpuNode", "InvalidRequest", "WrongProduct", MISMATCH}
"""Reasons of nodes that no change to what is on them helps."""


class Explanation(msgspec.Struct, frozen=True):
    """All there is to say of a pod's place.

    Attributes:
        namespace: the pod's.
        name: the pod's.
        job: ``namespace/name`` of its job.
        request: how many chips it asks for.
        state: ``none`` (it asks for no chips), ``finished``, ``placed``, ``terminating`` (it is being deleted, so
            nobody gives it a node any more), ``fits`` (a node would do, and it is not bound yet) or ``waits``.
        node: where it is, where it is placed.
        chips: which it holds.
        reason: why it waits.
        message: the same as a sentence.
        gang: it is placed together with others of its job, or not at all.
        scheduler: what its scheduler says of it.
        groups: the nodes' reasons, the most frequent first.
        nodes: every node that refuses it.
        candidates: every node that fits, best first.
        remedies: what would make it fit, the smallest changes first.
        examined: on how many nodes a remedy was looked for.
        advice: what to do instead where there is no remedy: sentences, for people.
    """

    namespace: str
    name: str
    job: str
    request: int
    state: str
    node: str = ""
    chips: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    gang: bool = False
    scheduler: str = ""
    groups: tuple[Group, ...] = ()
    nodes: dict[str, Why] = {}
    candidates: tuple[Candidate, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    examined: int = 0
    advice: tuple[str, ...] = ()


def explain(pod: Pod, snapshot: Snapshot, settings: Settings, now_ns: int) -> Explanation:
    """Say why a pod has no place, or where it has one.

    Args:
        pod: one of the snapshot's.
        snapshot: the objects.
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
    """
    allocation = Allocation.of(snapshot, settings, lambda: now_ns / 1e9)
    namespace, name, job = pod.metadata.namespace, pod.name, job_name(allocation.cluster.jobs, pod)
    begun = Explanation(namespace, name, job, counted_chips(pod), "none", scheduler=_condition(pod))
    if not pod.requests_chips and not waits(pod, allocation.engine):
        return begun
    if not pod.is_live:
        why = pod.status.message or "its containers have ended"
        return structs.replace(begun, state="finished", reason=pod.status.reason, message=why)
    if pod.spec.node_name:
        return _placed(begun, pod)
    if pod.is_terminating:
        return structs.replace(begun, state="terminating")
    refused = refusals(allocation, pod)
    candidates = candidates_of(allocation, pod)
    told = structs.replace(
        begun,
        gang=allocation.engine.is_of_gang(pod),
        groups=group(refused),
        nodes={node: Why(each.reason, each.message) for node, each in sorted(refused.items())},
        candidates=candidates,
    )
    try:
        place(allocation, pod)
    except Refusal as refusal:
        waiting = structs.replace(told, state="waits", reason=refusal.reason, message=refusal.message)
        helped = _helped(waiting, _ask(allocation, pod), _Trial(snapshot, settings, now_ns))
        return helped if helped.remedies else structs.replace(helped, advice=_advice(helped, pod, allocation))
    return structs.replace(told, state="fits")


def _placed(begun: Explanation, pod: Pod) -> Explanation:
    placed = structs.replace(begun, state="placed", node=pod.spec.node_name)
    try:
        chips = tuple(map(chip_name, chip_ids(held_chips(pod.metadata.annotations))))
    except InvalidValue as error:
        return structs.replace(placed, reason="UnreadablePod", message=str(error))
    if not chips:
        sentence = f"pod {pod.key} is on node {pod.spec.node_name}, but no annotation says which chips it holds"
        return structs.replace(placed, reason="UnreadablePod", message=sentence)
    return structs.replace(placed, chips=chips)


def _ask(allocation: Allocation, pod: Pod) -> ChipRequest | None:
    try:
        return allocation.engine.request_of(pod)
    except Refusal:
        return None


class _Trial:
    """Tries changes of single nodes.

    Args:
        snapshot: the objects.
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
    """

    def __init__(self, snapshot: Snapshot, settings: Settings, now_ns: int) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._nodes = {node.name: node for node in snapshot.nodes}
        self._reports: dict[str, ConfigMap] = {}
        for each in snapshot.config_maps:
            name = node_name(each.name)
            if name is not None and each.metadata.namespace == NAMESPACE:
                self._reports[name] = each
        self._pods: dict[str, list[Pod]] = {}
        for pod in snapshot.pods:
            if pod.spec.node_name and pod.is_live:
                self._pods.setdefault(pod.spec.node_name, []).append(pod)

    def search(self, ask: ChipRequest, nodes: Iterable[str]) -> list[Remedy]:
        """What would help on any of these nodes, the smallest changes first."""
        fits = self._judge(ask)
        scenes = [self._scene(name) for name in nodes if name in self._nodes]
        # Where it fits as things are, something else than the node is in the way, and any change would seem to help.
        scenes = [scene for scene in scenes if not fits(scene)]
        found = [each for scene in scenes for each in remedies(scene, fits, self._now_ns // 10**9)]
        if not found:
            several = (pods_to_end(scene, fits) for scene in scenes)
            found = [each for each in several if each is not None]
        return sorted(found, key=lambda each: (len(each.targets), each.node, each.kind, each.targets))

    def _scene(self, name: str) -> Scene:
        return Scene(self._nodes[name], self._reports.get(name), tuple(self._pods.get(name, ())))

    def _judge(self, ask: ChipRequest) -> Callable[[Scene], bool]:
        def fits(scene: Scene) -> bool:
            alone = Allocation.of(scene.snapshot(), self._settings, lambda: self._now_ns / 1e9)
            return alone.cluster.index.best(ask) is not None

        return fits


def _helped(waiting: Explanation, ask: ChipRequest | None, trial: _Trial) -> Explanation:
    if ask is None:
        return waiting
    why = waiting.nodes
    likely = sorted(why, key=lambda node: (why[node].reason not in OCCUPIED, node))
    examined = [node for node in likely if why[node].reason not in _HOPELESS][:MOST_NODES]
    return structs.replace(waiting, remedies=tuple(trial.search(ask, examined)), examined=len(examined))


def _advice(waiting: Explanation, pod: Pod, allocation: Allocation) -> tuple[str, ...]:
    """What to do where something else than a node is in the way; as in docs/reasons.md, for this pod."""
    job = allocation.cluster.jobs.job_of(pod)
    missing = job.min_available - job.present
    labels = ",".join(f"{key}={value}" for key, value in sorted(pod.spec.node_selector.items()))
    cures = {
        Reason.GANG_INCOMPLETE: f"create the missing {f'{missing} pods' if missing != 1 else 'pod'} of job {job.key}",
        Reason.GROUP_MISSING: f"create the {job.kind} {job.key}, or correct the name that the pod gives",
        MISMATCH: f"label a node with room {labels}, or change the pod's node selector, which asks for that",
    }
    reasons = {waiting.reason, *(each.reason for each in waiting.groups)}
    return tuple(cure for reason, cure in cures.items() if reason in reasons)


def _condition(pod: Pod) -> str:
    return next((each.message for each in pod.status.conditions if each.type == "PodScheduled"), "")
