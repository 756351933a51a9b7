"""A line chart as SVG, without a library: a few panels side by side, one line for each series."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Final, TypeAlias
from xml.sax.saxutils import escape

Points: TypeAlias = Sequence[tuple[float, float]]

_PANEL: Final = (400, 300)
_LEFT, _TOP, _GAP, _BELOW, _LINE = 56, 66, 70, 52, 20
_STEPS: Final = 6
_INK, _FAINT, _GRID = "#222222", "#666666", "#e2e2e2"
# Okabe and Ito's colours, which can be distinguished with every colour vision; the dashes are for black and white.
_STYLES: Final = (
    ("#0072b2", "", 3.0),
    ("#e69f00", "", 2.0),
    ("#009e73", "", 2.0),
    ("#e69f00", "6 4", 1.5),
    ("#009e73", "6 4", 1.5),
    ("#cc79a7", "", 2.0),
    ("#56b4e9", "2 3", 2.0),
    ("#d55e00", "8 3", 1.5),
)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes.

    Attributes:
        title: what is shown.
        across: what the x axis is.
        up: what the y axis is.
        series: points by name, in ascending order of x.
    """

    title: str
    across: str
    up: str
    series: Mapping[str, Points]


def drawn(title: str, panels: Sequence[Panel]) -> str:
    """Return the chart.

    Args:
        title: above everything.
        panels: from left to right; the same series in each.
    """
    width = len(panels) * (_LEFT + _PANEL[0]) + (len(panels) - 1) * (_GAP - _LEFT) + 24
    height = _TOP + _LINE + _PANEL[1] + _BELOW
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(_LEFT, 22, title, size=15, weight="600"),
        *_legend(list(panels[0].series), 44),
    ]
    for number, panel in enumerate(panels):
        lines += _draw(panel, _LEFT + number * (_PANEL[0] + _GAP), _TOP + _LINE)
    return "\n".join([*lines, "</svg>", ""])


def _legend(names: Sequence[str], y: float) -> list[str]:
    lines, x = [], float(_LEFT)
    for name, (colour, dash, width) in zip(names, cycle(_STYLES), strict=False):
        lines.append(_line([(x, y - 4), (x + 26, y - 4)], colour, dash, width))
        lines.append(_text(x + 32, y, name))
        x += 32 + 6.4 * len(name) + 26
    return lines


def _draw(panel: Panel, left: float, top: float) -> list[str]:
    width, height = _PANEL
    across = _ticks([x for points in panel.series.values() for x, _ in points])
    upwards = _ticks([0.0, *(y for points in panel.series.values() for _, y in points)])
    x0, x1, y0, y1 = across[0], across[-1], upwards[0], upwards[-1]

    def at(x: float, y: float) -> tuple[float, float]:
        return left + (x - x0) / (x1 - x0) * width, top + height - (y - y0) / (y1 - y0) * height

    lines = [_text(left, top - 10, f"{panel.title} ({panel.up})", weight="600")]
    for value in upwards:
        _, y = at(x0, value)
        lines.append(_line([(left, y), (left + width, y)], _GRID, "", 1.0))
        lines.append(_text(left - 8, y + 4, f"{value:g}", anchor="end", colour=_FAINT))
    for value in across:
        x, _ = at(value, y0)
        lines.append(_line([(x, top + height), (x, top + height + 5)], _FAINT, "", 1.0))
        lines.append(_text(x, top + height + 19, f"{value:g}", anchor="middle", colour=_FAINT))
    lines.append(_text(left + width / 2, top + height + 40, panel.across, anchor="middle", colour=_FAINT))
    drawn = [
        _line([at(x, y) for x, y in points], *style)
        for points, style in zip(panel.series.values(), cycle(_STYLES), strict=False)
    ]
    # The first series is drawn last, above the others.
    return [*lines, *reversed(drawn)]


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers a step of 1, 2 or 5 times a power of ten apart, from below the values to above them."""
    low, high = min(values), max(values)
    rough = max(high - low, 1e-9) / _STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.floor(low / step), max(math.ceil(high / step), math.floor(low / step) + 1)
    return [number * step for number in range(first, last + 1)]


def _line(points: Points, colour: str, dash: str, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashes}'
        ' stroke-linejoin="round"/>'
    )


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, weight: str = "400", colour: str = _INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
        f' fill="{colour}">{escape(text)}</text>'
    )
