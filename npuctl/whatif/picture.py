"""Draws the chips of a cluster before and after changes as an SVG: a tile for each node, a square for each chip."""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final
from xml.sax.saxutils import escape

from ascend.grammar import count
from ascend.printable import printable
from npuctl.topo.nodes import ChipView, NodeView

_WIDTH: Final = 960
_MARGIN: Final = 16
_GAP: Final = 24
"""Between both halves."""

_SIDE: Final = 9
_STEP: Final = 11
"""From the beginning of a square to that of the next."""

_TILE_GAP: Final = 8
_LINE: Final = 16
_NAME: Final = 12
_NAME_WIDTH: Final = 5.2
"""The width of a character of a node's name, about."""

_IN_ROW: Final = 4
"""Chips in a row of a tile, unless a ring has more."""

_MOST_NAMED: Final = 96
"""More nodes than these have no names beside their tiles; the tips of the mouse have them."""

_MOST_NODES: Final = 640
_MOST_CHANGES: Final = 6
_MOST_LINES: Final = 12
_MOST_CHARACTERS: Final = 130


class _Look(Enum):
    """How a chip looks: fill, frame, and what that means."""

    FREE = ("#ffffff", "#9aa3ad", "free")
    HELD = ("#b9c3d0", "#9aa3ad", "in use")
    ENDS = ("#e08a2c", "#a8621a", "in use now, not then")
    STARTS = ("#2e9e5b", "#1f7442", "in use then, not now")
    CLOSED = ("#eceef1", "#d5d9de", "free, its node is not used")
    BROKEN = ("#6b7280", "#4b5563", "not healthy")
    LOST = ("#d64545", "#9f2d2d", "lost")


def draw(before: Sequence[NodeView], after: Sequence[NodeView], *, title: Sequence[str], lines: Sequence[str]) -> str:
    """Return the picture.

    Args:
        before: the nodes as they are, once everything has started that starts now.
        after: the same after the changes.
        title: the changes, a sentence each.
        lines: what is said below.
    """
    old, new = ({view.node: view for view in views} for views in (before, after))
    names, left_out = _shown(old, new)
    said = [*_notes(names, left_out), *(line for line in lines if line)]
    if len(said) > _MOST_LINES:
        said[_MOST_LINES:] = [f"and {count(len(said) - _MOST_LINES, 'more line')} (npuctl whatif -o json has all)"]
    half = (_WIDTH - 2 * _MARGIN - _GAP) / 2
    heading = [*title[:_MOST_CHANGES], *(["…"] if len(title) > _MOST_CHANGES else [])] or ["nothing changes"]
    top = _MARGIN + (len(heading) + 1) * _LINE + 8
    body, height, seen = list[str](), 0.0, dict[_Look, None]()
    for at, change in enumerate(heading):
        body.append(_text(_MARGIN, _MARGIN + at * _LINE + 10, _clipped(change), "h"))
    for at, (label, views, others) in enumerate((("now", old, new), ("then", new, old))):
        left = _MARGIN + at * (half + _GAP)
        body.append(_text(left, top, label, "b"))
        tiles = _Tiles(left, top + 8, half, named=len(names) <= _MOST_NAMED)
        for name in names:
            if name in views:
                tiles.add(views[name], others.get(name), is_after=bool(at))
        body += tiles.drawn()
        seen |= dict.fromkeys(tiles.looks)
        height = max(height, tiles.bottom)
    y = height + 2 * _LINE
    body += _legend(seen, y)
    for line in said:
        y += _LINE
        body.append(_text(_MARGIN, y + 6, _clipped(line)))
    size = f'width="{_WIDTH}" height="{y + _MARGIN:.0f}" viewBox="0 0 {_WIDTH} {y + _MARGIN:.0f}"'
    style = (
        "text{font:12px sans-serif;fill:#1f2937}.h{font-size:14px;font-weight:600}.b{font-weight:600}"
        ".n{font-size:9px;fill:#6b7280}rect{stroke-width:1}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>'
        f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(body)}</svg>\n'
    )


def _shown(old: dict[str, NodeView], new: dict[str, NodeView]) -> tuple[list[str], int]:
    """The names of the drawn nodes, only the changed nodes of a large cluster; and the number of undrawn nodes."""
    # New nodes last, so that the others have their place in both halves.
    names = [*sorted(old), *sorted(new.keys() - old)]
    if len(names) <= _MOST_NODES:
        return names, 0
    changed = [name for name in names if old.get(name) != new.get(name)]
    return changed[:_MOST_NODES], len(names) - min(len(changed), _MOST_NODES)


def _notes(names: Sequence[str], left_out: int) -> Iterator[str]:
    if left_out:
        yield f"{count(len(names), 'node')} that change; {count(left_out, 'node')} more not drawn"


class _Tiles:
    """The tiles of one half, row after row."""

    def __init__(self, left: float, top: float, width: float, *, named: bool) -> None:
        self._left, self._x, self._y, self._width = left, left, top, width
        self._named = named
        self._row = 0.0
        self._texts: list[str] = []
        self.looks: dict[_Look, None] = {}

    @property
    def bottom(self) -> float:
        """Where the last row ends."""
        return self._y + self._row

    def add(self, view: NodeView, other: NodeView | None, *, is_after: bool) -> None:
        """Add the tile of a node, which is compared with the node in the other half."""
        rows = list(_rows(view))
        wide = max((len(row) for row in rows), default=1) * _STEP
        shift = _NAME if self._named else 0
        width = max(wide, min(len(view.node) * _NAME_WIDTH, 4.0 * wide) if self._named else 0.0)
        height = shift + max(len(rows), 1) * _STEP
        if self._x > self._left and self._x + width > self._left + self._width:
            self._x, self._y, self._row = self._left, self._y + self._row + _TILE_GAP, 0.0
        if self._named:
            most = int(width / _NAME_WIDTH)
            name = view.node if len(view.node) <= most else f"…{view.node[1 - most :]}"
            self._texts.append(_text(self._x, self._y + 9, name, "n"))
        counterpart = {chip.name: chip for chip in other.chips} if other is not None else {}
        tip = [view.node, *([view.reason] if view.reason is not None else [])]
        squares = dict[_Look, list[str]]()
        for at, row in enumerate(rows):
            for number, chip in enumerate(row):
                look = _look(view, chip, other, counterpart.get(chip.name), is_after=is_after)
                x, y = self._x + number * _STEP + 0.5, self._y + shift + at * _STEP + 0.5
                squares.setdefault(look, []).append(f"M{x:g} {y:g}h{_SIDE}v{_SIDE}h-{_SIDE}z")
        tip += sorted({view.jobs.get(holder, holder) for chip in view.chips for holder in chip.holders})
        self._texts.append(f"<g><title>{escape(printable(', '.join(tip)))}</title>")
        for look, path in squares.items():
            fill, stroke, _ = look.value
            self._texts.append(f'<path fill="{fill}" stroke="{stroke}" d="{"".join(path)}"/>')
            self.looks[look] = None
        self._texts.append("</g>")
        self._x += width + _TILE_GAP
        self._row = max(self._row, float(height))

    def drawn(self) -> list[str]:
        """The elements."""
        return self._texts


def _rows(view: NodeView) -> Iterator[Sequence[ChipView]]:
    """The chips of a node by rows: those of a ring, or some beside each other."""
    groups = list(view.groups.values()) if view.group else [list(view.chips)]
    wide = max(_IN_ROW, -(-len(view.chips) // 4))
    for group in groups:
        for first in range(0, len(group), wide):
            yield group[first : first + wide]


def _look(
    view: NodeView, chip: ChipView, other: NodeView | None, counterpart: ChipView | None, *, is_after: bool
) -> _Look:
    jobs = _holders(view, chip)
    if jobs:
        if other is not None and counterpart is not None and _holders(other, counterpart) == jobs:
            return _Look.HELD
        return _Look.STARTS if is_after else _Look.ENDS
    usable = view.reason is None and chip.healthy
    was_usable = other is not None and counterpart is not None and other.reason is None and counterpart.healthy
    if usable:
        return _Look.FREE
    if is_after and was_usable:
        return _Look.LOST
    return _Look.CLOSED if chip.healthy else _Look.BROKEN


def _holders(view: NodeView, chip: ChipView) -> set[str]:
    return {view.jobs.get(holder, holder) for device in chip.devices for holder in device.holders}


def _legend(seen: dict[_Look, None], y: float) -> Iterator[str]:
    x = float(_MARGIN)
    for look in _Look:
        if look in seen:
            fill, stroke, meaning = look.value
            place = f'x="{x + 0.5:g}" y="{y - 9:g}" width="{_SIDE}" height="{_SIDE}"'
            yield f'<rect {place} fill="{fill}" stroke="{stroke}"/>'
            yield _text(x + _STEP + 3, y, meaning)
            x += _STEP + 3 + 6.4 * len(meaning) + 14


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}"{named}>{escape(printable(text))}</text>'


def _clipped(line: str) -> str:
    return line if len(line) <= _MOST_CHARACTERS else f"{line[: _MOST_CHARACTERS - 1]}…"
