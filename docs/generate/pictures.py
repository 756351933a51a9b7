"""Pictures of the documentation, drawn from what the code decides."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from allocator.rules.asked import SuperPodLimits
from allocator.superpods.repair import Nodes, RepairPlan, Slot, place_job
from allocator.superpods.stages import Share, place_blocks

_SUPER_PODS: Final = {0: 12, 1: 10, 2: 7, 3: 12}
_USED_BY_OTHERS: Final = {"0-0", "0-1", "1-0", "2-0", "3-0", "3-1", "3-2"}
_SIZE, _BLOCKS = 3, 6
_FAILED: Final = {"0-4", "1-2", "2-1"}
_FULL_AFTER: Final = {"2-4", "2-5", "2-6"}
"""Nodes that others have taken before the job is placed again: the block of SuperPod 2 finds no room there."""

_CELL, _STEP, _ROW, _LEFT, _TOP = 26, 32, 54, 108, 62
_PANEL: Final = _LEFT + 12 * _STEP + 24
# Okabe and Ito's colours, which can be distinguished with every colour vision; the number of the block is in each cell.
_COLOURS: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")


def super_pod_repair() -> str:
    """A job's blocks before and after faults, as SVG: placed and repaired by the allocator's own functions."""
    limits = SuperPodLimits(12, 2)
    everywhere = [f"{number}-{index}" for number, size in _SUPER_PODS.items() for index in range(size)]

    def free(without: set[str]) -> Nodes:
        names: dict[int, list[str]] = {number: [] for number in _SUPER_PODS}
        for name in everywhere:
            if name not in without:
                names[_super_pod(name)].append(name)
        return Nodes({number: len(each) for number, each in names.items()}, names.__getitem__, _super_pod)

    def place(room: Mapping[int, int], need: int) -> Sequence[Share]:
        return place_blocks(room, _SIZE, need, limits)

    ranks = {block: [Slot(block * _SIZE + at) for at in range(_SIZE)] for block in range(_BLOCKS)}
    first = _nodes(place_job(ranks, free(_USED_BY_OTHERS), place))
    again = {block: [Slot(slot.rank, first[slot.rank]) for slot in slots] for block, slots in ranks.items()}
    lost = _USED_BY_OTHERS | _FAILED | _FULL_AFTER
    second = _nodes(place_job(again, free(lost), place))
    panels = (
        ("before", {node: rank // _SIZE for rank, node in first.items()}, set[str](), _USED_BY_OTHERS),
        ("after three faults", {node: rank // _SIZE for rank, node in second.items()}, _FAILED,
         _USED_BY_OTHERS | _FULL_AFTER),
    )  # fmt: skip
    height = _TOP + _ROW * len(_SUPER_PODS) + 34
    size = f'viewBox="0 0 {2 * _PANEL} {height}" width="{2 * _PANEL}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">',
        "<title>The blocks of a job before and after faults</title>",
        f'<rect width="{2 * _PANEL}" height="{height}" fill="white"/>',
    ]
    for at, (title, blocks, failed, used) in enumerate(panels):
        lines += _panel(at * _PANEL, title, blocks, failed, used)
    note = "A number is the block of a pod; grey: used by other jobs; a cross: failed."
    lines += [_text(16, height - 12, note, size=12, fill="#666666"), "</svg>", ""]
    return "\n".join(lines)


def _panel(left: int, title: str, blocks: Mapping[str, int], failed: set[str], used: set[str]) -> list[str]:
    lines = [_text(left + 16, 28, title, size=15, weight="600")]
    for number, size in _SUPER_PODS.items():
        top = _TOP + number * _ROW
        lines.append(_text(left + 16, top + 18, f"SuperPod {number}", size=13))
        for index in range(size):
            name, x = f"{number}-{index}", left + _LEFT + index * _STEP
            block = blocks.get(name)
            fill = _COLOURS[block] if block is not None else "#d0d0d0" if name in used else "white"
            lines.append(
                f'<rect x="{x}" y="{top}" width="{_CELL}" height="{_CELL}" rx="3" fill="{fill}" stroke="#999999"/>'
            )
            if block is not None:
                lines.append(_text(x + 9, top + 18, str(block), size=13, weight="600", fill="white"))
            if name in failed:
                ends = f"M{x + 6} {top + 6}l14 14m0 -14l-14 14"
                lines.append(f'<path d="{ends}" stroke="#222222" stroke-width="2.5" fill="none"/>')
    return lines


def _nodes(found: object) -> dict[int, str]:
    assert isinstance(found, RepairPlan)  # noqa: S101 - there is room for all
    return {rank: each.node for rank, each in found.placed.items()}


def _super_pod(name: str) -> int:
    return int(name.partition("-")[0])


def _text(x: int, y: int, text: str, *, size: int, weight: str = "400", fill: str = "#222222") -> str:
    style = f'font-size="{size}" font-weight="{weight}" fill="{fill}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(text)}</text>'


IMAGES: Final = Path(__file__).parents[1] / "images"
PICTURES: Final[Mapping[Path, Callable[[], str]]] = {IMAGES / "superpod-repair.svg": super_pod_repair}
