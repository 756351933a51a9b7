"""The AI cores left on a node whose chips are cut while pods run, and the choice of a pod's part of a chip.

The best chip is the one that has the least left on which the vNPU fits, so that whole chips stay free. AI CPUs and
media units (DVPP) of a chip are counted beside its AI cores (docs/spec/vnpu.md#filter). The templates are those of
the node's own chips: the reference takes them from any node of the cluster.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from allocator.rules.request import ChipRequest, counted_chips, counted_vnpus, requested_what
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES, Divisible, Media, VnpuTemplate, divisible_kinds

HAS_NO_CORES: Final = f"the node does not offer {RESOURCE_CORES}"
"""Ends the refusal of a node that offers no AI cores."""

MEDIA_LABEL: Final = "vnpu-dvpp"
LEVEL_LABEL: Final = "vnpu-level"

_ALL_FREE, _SOME_USED, _NONE_FREE = 2, 1, 0


class ChipLeft(msgspec.Struct, frozen=True, order=True, gc=False):
    """What is left of a chip.

    Attributes:
        cores: AI cores.
        cpus: AI CPUs.
        media: 2 if no vNPU uses the media units, 1 if they are shared, 0 if one has all of them.
        chip: its physical id.
    """

    cores: int
    cpus: int
    media: int
    chip: int

    @classmethod
    def whole(cls, kind: Divisible, chip: int) -> "ChipLeft":
        """A chip of which nothing is in use."""
        return cls(kind.cores, kind.cpus, _ALL_FREE, chip)

    def fits(self, template: VnpuTemplate) -> bool:
        """Whether a vNPU can be cut out of what is left."""
        needed = {Media.ALL: _ALL_FREE, Media.SHARED: _SOME_USED, Media.NONE: _NONE_FREE}[template.media]
        return self.cores >= template.cores and self.cpus >= template.cpus and self.media >= needed

    def without(self, template: VnpuTemplate) -> "ChipLeft":
        """What is left beside one more vNPU; never less than nothing, whatever pods are said to have."""
        most = {Media.ALL: _NONE_FREE, Media.SHARED: _SOME_USED, Media.NONE: _ALL_FREE}[template.media]
        cores, cpus = max(self.cores - template.cores, 0), max(self.cpus - template.cpus, 0)
        return ChipLeft(cores, cpus, min(self.media, most), self.chip)


class ChosenCut(NamedTuple):
    """The best part of a node for a template.

    Attributes:
        cut: the vNPU.
        left: what was left of its chip.
    """

    cut: Cut
    left: ChipLeft


class CoresLeft(msgspec.Struct, frozen=True, gc=False):
    """What a node has left of AI cores.

    Attributes:
        kind: the kind of its chips.
        cut: the healthy chips of which parts are in use, by id; of the others, those that are free are whole.
        room: how many more AI cores the kubelet would admit.
        used: how many AI cores are in use.
        unknown: why it is unknown what is in use, a sentence; empty if it is known.
    """

    kind: Divisible
    cut: tuple[ChipLeft, ...] = ()
    room: int = 0
    used: int = 0
    unknown: str = ""

    def left_of(self, chip: int, free: ChipSet) -> ChipLeft | None:
        """The rest of a chip; None if the chip is not healthy, or wholly in use by a pod.

        Args:
            chip: its physical id.
            free: the chips of which nothing is in use.
        """
        if free >> chip & 1:
            return ChipLeft.whole(self.kind, chip)
        return next((rest for rest in self.cut if rest.chip == chip), None)

    def without(self, cut: Cut, free: ChipSet) -> "CoresLeft":
        """The rest after one more vNPU was cut; ``free`` are the chips that were wholly unused."""
        left = self.left_of(cut.chip, free)
        chips = self.cut
        if left is not None:
            others = (rest for rest in chips if rest.chip != cut.chip)
            chips = tuple(sorted((*others, left.without(cut.size)), key=lambda rest: rest.chip))
        return msgspec.structs.replace(self.without_cores(cut.size.cores), cut=chips)

    def without_cores(self, cores: int) -> "CoresLeft":
        """What is left after so many AI cores of whole chips were taken."""
        return CoresLeft(self.kind, self.cut, max(self.room - cores, 0), self.used + cores, self.unknown)

    def keeping(self, cuts: Iterable[Cut], chips: ChipSet, free: ChipSet) -> tuple["CoresLeft", ChipSet]:
        """The rest beside the parts kept for others, and the chips then neither in use nor kept.

        Others may still have something of it; the kubelet counts only what is free of it as well.

        Args:
            cuts: the vNPUs that are kept.
            chips: the chips that are kept as a whole; the free ones of them are no longer in ``free``.
            free: the chips of which nothing is in use.
        """
        left = {rest.chip: rest for rest in self.cut}
        room = self.room - sum(left.pop(chip).cores for chip in list(left) if chips >> chip & 1)
        for cut in cuts:
            before = ChipLeft.whole(self.kind, cut.chip) if free >> cut.chip & 1 else left.get(cut.chip)
            if before is not None:
                left[cut.chip] = before.without(cut.size)
                room -= before.cores - left[cut.chip].cores
                free &= ~(1 << cut.chip)
        ordered = tuple(rest for _, rest in sorted(left.items()))
        return CoresLeft(self.kind, ordered, max(room, 0), self.used, self.unknown), free

    def has(self, cut: Cut, free: ChipSet) -> bool:
        """Whether a vNPU can be cut; ``free`` are the chips of which nothing is in use."""
        left = self.left_of(cut.chip, free)
        return cut.size in self.kind.templates and left is not None and left.fits(cut.size)

    def choose(self, template: VnpuTemplate, free: ChipSet) -> ChosenCut | None:
        """The best chip for a template; None if it fits on none. ``free`` are the chips of which nothing is in use."""
        fitting = [rest for rest in self.cut if rest.fits(template)]
        if not fitting and free:
            fitting = [ChipLeft.whole(self.kind, (free & -free).bit_length() - 1)]
        if not fitting:
            return None
        best = min(fitting)
        return ChosenCut(Cut(best.chip, template.name), best)

    @property
    def closed(self) -> Refusal | None:
        """Why nothing can be given, whatever is requested; None if something may be."""
        if not self.unknown:
            return None
        return Refusal(Reason.UNREADABLE_POD, f"the free AI cores are unknown: {self.unknown}")

    def template_or_chips(self, request: ChipRequest) -> VnpuTemplate | int | Refusal:
        """What a request stands for here: a template, or a number of whole chips; or why nothing can be given."""
        return self.closed or part_or_chips(self.kind, request)

    def cores(self, free: ChipSet) -> int:
        """How many AI cores are free; ``free`` are the chips of which nothing is in use."""
        return 0 if self.unknown else free.bit_count() * self.kind.cores + sum(rest.cores for rest in self.cut)


def cores_left(
    kind: Divisible, cuts: Iterable[Cut], *, excluded: ChipSet, counted: int, allocatable: int, unknown: str = ""
) -> CoresLeft:
    """What a node has left of AI cores beside its pods.

    Args:
        kind: the kind of its chips.
        cuts: the vNPUs of its pods.
        excluded: the chips of which no pod may get a part: unhealthy ones, and those that pods hold as a whole.
        counted: how many AI cores the kubelet counts for its pods.
        allocatable: how many AI cores the kubelet has in all.
        unknown: why it is unknown what is in use, a sentence.
    """
    chips: dict[int, ChipLeft] = {}
    for cut in cuts:
        if not excluded >> cut.chip & 1:
            chips[cut.chip] = chips.get(cut.chip, ChipLeft.whole(kind, cut.chip)).without(cut.size)
    ordered = tuple(left for _, left in sorted(chips.items()))
    return CoresLeft(kind, ordered, max(allocatable - counted, 0), counted, unknown)


def part_or_chips(kind: Divisible, request: ChipRequest) -> VnpuTemplate | int | Refusal:
    """What a request for AI cores stands for on chips of a kind: a template, or a number of whole chips.

    See docs/spec/vnpu.md#choice-of-the-template.
    """
    has_choice = any(size.cores == request.cores and size.media is not Media.SHARED for size in kind.templates)
    found: VnpuTemplate | int | None = kind.whole_chips(request.cores) or kind.template(request.cores, request.media)
    if found is None and not has_choice:
        found = kind.template(request.cores)
    if found is None:
        sentence = f"{request.what} requested; a pod on this node may request {_valid([kind])}"
        return Refusal(Reason.NO_SUCH_VNPU, sentence)
    if request.with_labels and not has_choice:
        sentence = f"{_label_of(request)} needs {_LABELLED}; this node has chips with {kind.memory_gb} GB"
        return Refusal(Reason.NO_SUCH_VNPU, sentence)
    return found


def requested_cores(pod: Pod) -> ChipRequest | None:
    """What a pod requests in AI cores; None if it requests none.

    Raises:
        Refusal: ``InvalidRequest`` if several containers request some, it requests chips or other vNPUs as well, a
            label is invalid, or no chip allows it.
    """
    requests = [(container.name, number) for container, _ in pod.ordered_containers if (number := container.cores)]
    if not requests:
        return None
    if len(requests) > 1:
        where = ", ".join(f"{number} in container {name}" for name, number in requests)
        sentence = f"{RESOURCE_CORES}: {where}; AI cores may be requested in one container"
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key}: {sentence}")
    if counted_chips(pod) or counted_vnpus(pod):
        sentence = "beside AI cores a pod may request neither chips nor other vNPUs"
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key} requests {requested_what(pod)}; {sentence}")
    media = _label(pod, MEDIA_LABEL, tuple(Media), Media.SHARED)
    level = _label(pod, LEVEL_LABEL, ("low", "high"), "low")
    request = ChipRequest(
        0, cores=requests[0][1], media=Media(media), with_labels=media != Media.SHARED or level != "low"
    )
    if (why := _fits_no_kind(request)) is not None:
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key} {why}")
    return request


@functools.lru_cache(maxsize=1024)  # called by every decision, with the same few requests
def _fits_no_kind(request: ChipRequest) -> str | None:
    """Why no kind of chip allows a request for AI cores, a part of a sentence; None if one does."""
    kinds = divisible_kinds()
    if any(not isinstance(part_or_chips(kind, request), Refusal) for kind in kinds):
        return None
    unlabelled = ChipRequest(0, cores=request.cores)
    if any(not isinstance(part_or_chips(kind, unlabelled), Refusal) for kind in kinds):
        return f"requests {request.what}; {_label_of(request)} needs 10 AI cores of {_LABELLED}"
    return f"requests {request.what}; a pod may request {_valid(kinds)}, depending on the chips of its node"


def fits_beside(cut: Cut, others: Iterable[Cut]) -> bool:
    """Whether a vNPU fits on its chip beside others, for some kind of chip that has the template."""
    there = [other for other in others if other.chip == cut.chip]
    for kind in divisible_kinds():
        left = ChipLeft.whole(kind, cut.chip)
        for other in there:
            left = left.without(other.size)
        if cut.size in kind.templates and left.fits(cut.size):
            return True
    return False


@functools.lru_cache(maxsize=1024)  # called by every decision, with the same few numbers
def fewest_chips(cores: int) -> int:
    """How many whole chips a number of AI cores stands for: the fewest, on chips of whatever kind; 0 for a part."""
    return min(filter(None, (kind.whole_chips(cores) for kind in divisible_kinds())), default=0)


def no_cores(request: ChipRequest) -> Refusal:
    """Why a node refuses AI cores that does not offer them."""
    return Refusal(Reason.NO_SUCH_VNPU, f"{request.what} requested, {HAS_NO_CORES}")


_LABELLED: Final = "a chip with 32 GB (910B4)"
"""The chips on which the labels of pods choose among templates."""


def _label_of(request: ChipRequest) -> str:
    """The label by which a pod asks for more than a number of AI cores."""
    is_of_media = request.media is not Media.SHARED
    return f"label {MEDIA_LABEL}={request.media}" if is_of_media else f"label {LEVEL_LABEL}=high"


def _label(pod: Pod, key: str, values: Sequence[str], default: str) -> str:
    value = pod.metadata.labels.get(key, default)
    if value not in values:
        sentence = f"label {key}={value[:40]} is none of {', '.join(values)}"
        raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key}: {sentence}")
    return value


def _valid(kinds: Iterable[Divisible]) -> str:
    """The valid numbers of AI cores: ``5 or 10, or a multiple of 20``."""
    there = list(kinds)
    parts = sorted({number for kind in there for number in kind.parts})
    chips = sorted({kind.cores for kind in there})
    return f"{_either(parts)}, or a multiple of {_either(chips)}"


def _either(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
