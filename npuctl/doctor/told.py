"""What Events of the last hour say of nodes and pods, and no object says."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from ascend.grammar import some
from ascend.kube.objects import Pod
from ascend.printable import printable
from npuctl.doctor.finding import Finding, problem, warning

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
