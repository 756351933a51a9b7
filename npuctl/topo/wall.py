"""Lays out many nodes on one screen: a glyph for each chip, and a letter for each job."""

import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from ascend.grammar import count
from npuctl.topo.chip_map import COLOURS, MARKS
from npuctl.topo.nodes import ChipView, NodeView
from npuctl.topo.summary import Totals, by_product

_JOBS: Final = string.ascii_uppercase + string.ascii_lowercase.translate({ord(mark): None for mark in "ox"})
"""``o`` and ``x`` stand for marks on a terminal that lacks them."""

_FREE: Final = "·"
_CLOSED: Final = "_"
_OTHERS: Final = "+"
_CUT: Final = "%"
_CONFLICT: Final = "!"
_BROKEN: Final = "#"

_MOST_GROUPS: Final = 4
"""More groups of linked chips than these are not set apart."""

_STEP: Final = 4
"""The number of nodes in a line is a multiple of it, so that they can be counted."""

_LEGEND_LINES: Final = 4
"""Lines of the legend of jobs at least, if there are so many jobs."""

_PARTS: Final = re.compile(r"[-._]")


class Wall:
    """All chips of many nodes: by product, in the order of the nodes, as many side by side as there is room for.

    Args:
        views: the nodes.
        width: the columns.
        lines: how many lines there are; None without a limit. The legend gets what the nodes leave of it.

    Attributes:
        height: the number of its lines.
    """

    def __init__(self, views: Sequence[NodeView], width: int, lines: int | None) -> None:
        self._views = views
        self._before, self._after = _common([view.node for view in views])
        self._rows = list(self._lay_out(width))
        held = Counter(job for view in views for chip in view.chips for job in _jobs(view, chip))
        ranked = sorted(held.items(), key=lambda job: (-job[1], job[0]))
        names = [f"{job} ({number})" for job, number in ranked]
        left = len(names) if lines is None else max(lines - len(self._rows) - 2, _LEGEND_LINES)
        shown, self._legend = _fitting(names[: len(_JOBS)], width, left)
        self._letters = {job: (_JOBS[at], COLOURS[at % len(COLOURS)]) for at, (job, _) in enumerate(ranked[:shown])}
        self._others = ranked[shown:]
        self.height = len(self._rows) + len(self._legend) + 2

    def __rich_console__(self, _console: Console, _options: ConsoleOptions) -> RenderResult:
        for label, views, tile in self._rows:
            line = Text(label, style="" if views else "bold", no_wrap=True)
            for view in views:
                line.append(" ")
                before = line.cell_len
                for glyphs, style in self._tile(view):
                    line.append(glyphs, style)
                line.append(" " * (tile - line.cell_len + before))
            line.rstrip()
            yield line
        yield from self._legend
        yield self._glyphs()
        yield Text(str(Totals.of(self._views)))

    def _lay_out(self, width: int) -> Iterator[tuple[str, Sequence[NodeView], int]]:
        """Yield the lines: a label, the nodes, and the columns of each; the head of a product has no nodes."""
        named = f", {self._before}*{self._after}" if self._before or self._after else ""
        for totals in by_product(self._views):
            views = [view for view in self._views if view.product == totals.product]
            free = f"{totals.free} of {count(totals.chips, 'chip')} free"
            yield f"{totals.product or '-'}: {count(totals.nodes, 'node')}{named}, {free}", (), 0
            labels = [view.node.removeprefix(self._before).removesuffix(self._after) for view in views]
            longest, tile = max(map(len, labels)), max(sum(map(len, _groups(view))) for view in views)
            # A blank between groups of linked chips, and then two between nodes.
            gaps = max(len(_groups(view)) for view in views) - 1
            tile += gaps + (gaps > 0)
            number = max((width - longest) // (tile + 1), 1)
            number -= number % _STEP if number > _STEP else 0
            for first in range(0, len(views), number):
                yield labels[first].ljust(longest), views[first : first + number], tile

    def _tile(self, view: NodeView) -> Iterator[tuple[str, str]]:
        """Yield the glyphs of a node in parts of one style."""
        for number, group in enumerate(_groups(view)):
            if number:
                yield " ", ""
            styled = [self._glyph(view, chip) for chip in group]
            for style, run in groupby(styled, itemgetter(1)):
                yield "".join(glyph for glyph, _ in run), style
        if not view.chips:
            yield "?", ""

    def _glyph(self, view: NodeView, chip: ChipView) -> tuple[str, str]:
        if len(chip.holders) > 1:
            return _CONFLICT, "bold white on red"
        if chip.health in MARKS:
            mark, style, _ = MARKS[chip.health]
            return (_BROKEN, "bold white on red") if chip.holders and not chip.healthy else (mark, style)
        if chip.holders:
            return self._letters.get(_jobs(view, chip)[0], (_OTHERS, ""))
        if chip.vnpus or chip.slices:
            return _CUT, ""
        return (_FREE, "dim") if view.reason is None else (_CLOSED, "dim")

    def _glyphs(self) -> Text:
        chips = [chip for view in self._views for chip in view.chips]
        health = {chip.health for chip in chips}
        said = [f"{_FREE} free"]
        if self._others:
            held = count(sum(number for _, number in self._others), "chip")
            said.insert(0, f"{_OTHERS} {count(len(self._others), 'other job')} ({held})")
        if any(view.reason is not None for view in self._views):
            said.append(f"{_CLOSED} free on a node that is not used")
        if any(chip.vnpus or chip.slices for chip in chips):
            said.append(f"{_CUT} cut")
        if any(len(chip.holders) > 1 for chip in chips):
            said.append(f"{_CONFLICT} held by several pods")
        if any(chip.holders and not chip.healthy for chip in chips):
            said.append(f"{_BROKEN} held, though it is not healthy")
        said += [f"{mark} {meaning}" for name, (mark, _, meaning) in MARKS.items() if name in health]
        return Text("; ".join(said), style="dim")


def _groups(view: NodeView) -> Sequence[Sequence[ChipView]]:
    """The chips in groups that are set apart."""
    groups = list(view.groups.values()) if view.group else []
    return groups if 1 < len(groups) <= _MOST_GROUPS else [view.chips]


def _jobs(view: NodeView, chip: ChipView) -> list[str]:
    return [view.jobs.get(holder, holder) for holder in chip.holders]


def _fitting(names: Sequence[str], width: int, lines: int) -> tuple[int, list[Text]]:
    """How many of these jobs fit into so many lines, and the lines of the legend."""
    for shown in range(len(names), 0, -1):
        longest = max(map(len, names[:shown])) + 4
        columns = max(width // longest, 1)
        needed = -(-shown // columns)
        if needed <= lines:
            break
    else:
        return 0, []
    made = []
    for row in range(needed):
        line = Text()
        for at in range(row, shown, needed):
            line.append(f"{_JOBS[at]} ", style=COLOURS[at % len(COLOURS)]).append(names[at].ljust(longest - 2))
        line.rstrip()
        made.append(line)
    return shown, made


def _common(names: Iterable[str]) -> tuple[str, str]:
    """What the names of all nodes begin and end with, in whole parts; empty for a single node."""
    listed = list(names)
    if len(listed) < 2:  # noqa: PLR2004 - one name has nothing in common
        return "", ""
    before = _beginning(listed)
    before = before[: max((found.end() for found in _PARTS.finditer(before)), default=0)]
    after = _beginning([name[::-1] for name in listed])[::-1]
    at = _PARTS.search(after)
    return before, after[at.start() :] if at is not None else ""


def _beginning(names: Sequence[str]) -> str:
    """What all names begin with: the first and the last of them differ most."""
    first, last = min(names), max(names)
    return first[: next((at for at, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))]
