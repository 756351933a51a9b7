"""The answer of ``npuctl simulate`` as one HTML file, which loads nothing: drawings and tables."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final

from ascend.grammar import count
from ascend.printable import printable
from npuctl.simulate.answer import SideResult, SimulationAnswer
from npuctl.simulate.chart import Panel, Points, drawn
from npuctl.simulate.jobs import HOUR_S
from npuctl.simulate.measures import Sample

_POINTS: Final = 300
_MOST_NAME: Final = 48
_STYLE: Final = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:24px auto;max-width:1400px;padding:0 16px;color:#1f2937}"
    "h1{font-size:22px}h2{font-size:17px;margin-top:32px}svg{max-width:100%;height:auto}"
    ".t{overflow-x:auto}table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:right;"
    "border-bottom:1px solid #e5e7eb;white-space:nowrap}td:first-child,th:first-child{text-align:left}"
    ".w{color:#b42318;font-weight:600}p{max-width:90ch;color:#4b5563}"
)


def page(answer: SimulationAnswer) -> str:
    """Return the page."""
    what = f"{count(answer.servers, 'server')} ({', '.join(answer.products)}), {answer.chips:,} chips"
    head = f"{what}; {answer.jobs:,} jobs arrive in {answer.hours:,.1f} h"
    out = sum(group.jobs for group in answer.left_out)
    left_out = f" {count(out, 'job')} that would never fit left out." if out else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>npuctl simulate</title>'
        '<meta name="viewport" content="width=device-width"><meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body><h1>{_text(head)}</h1><p>{_text(answer.time)}.{left_out}</p>"
        f"{_summary(answer)}<h2>Over time</h2>{_over_time(answer.settings)}"
        f"<h2>Waiting times by size, hours</h2>{_by_size(answer)}"
        f"<h2>Chip-hours</h2>{_chip_hours(answer)}"
        "<p>Redone: of the used ones, work that faults made jobs do again. Kept: free, for the waiting job that comes "
        "first. Stranded: free while a job waits that needs no more chips than are free. Too few: every waiting job "
        "needs more. Idle: none waits. Wrong: jobs with chips that are not linked as they need; here they run, on real "
        "servers they fail or are slow. Nobody is preempted; CPU, memory, taints and affinity are not considered.</p>"
        "</body></html>\n"
    )


def _summary(answer: SimulationAnswer) -> str:
    titles = ("", "wait, mean, h", "p50", "p99", "used", "wrong", "last end, h", "restarts", "not ended")
    return _table(
        titles,
        (
            (
                side.name,
                *(f"{hours:,.2f}" for hours in (side.wait.mean, side.wait.p50, side.wait.p99)),
                f"{side.used:.1%}",
                f"{side.wrong:,} of {side.linked:,}",
                f"{side.last_end:,.1f}",
                f"{side.restarts:,}",
                f"{side.never_ended:,}",
            )
            for side in answer.settings
        ),
        wrong=[side.wrong > 0 for side in answer.settings],
    )


def _by_size(answer: SimulationAnswer) -> str:
    titles = ("", "chips", "jobs", "mean", "p50", "p99", "longest")
    rows = (
        (
            side.name,
            f"{row.chips:,}",
            f"{row.jobs:,}",
            *(f"{hours:,.2f}" for hours in (row.mean, row.p50, row.p99, row.longest)),
        )
        for rows in zip(*(side.sizes for side in answer.settings), strict=True)
        for side, row in zip(answer.settings, rows, strict=True)
    )
    return _table(titles, rows)


def _chip_hours(answer: SimulationAnswer) -> str:
    titles = ("", "used", "redone", "broken", "kept", "stranded", "too few", "idle")
    rows = (
        (
            side.name,
            *(
                f"{hours:,.0f}"
                for at in (side.chip_hours,)
                for hours in (at.used, at.redone, at.broken, at.kept, at.stranded, at.too_few, at.idle)
            ),
        )
        for side in answer.settings
    )
    return _table(titles, rows)


def _over_time(sides: Sequence[SideResult]) -> str:
    def series(value: str, factor: float) -> dict[str, Points]:
        return {
            name: [(sample.at_s / HOUR_S, factor * getattr(sample, value)) for sample in _thin(side.samples)]
            for name, side in zip(_names(sides), sides, strict=True)
        }

    panels = [
        Panel("Chips in use", "hours", "%", series("used", 100)),
        Panel("Free chips beside used ones", "hours", "% of the free", series("stranded", 100)),
        Panel("Jobs that wait", "hours", "jobs", series("waiting", 1)),
    ]
    return drawn("How chips are used while jobs come and go", panels)


def _names(sides: Sequence[SideResult]) -> Iterator[str]:
    for number, side in enumerate(sides, start=1):
        name = printable(side.name)
        yield name if len(name) <= _MOST_NAME else f"{number}. {name[:_MOST_NAME]}…"


def _thin(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Some of the samples: a picture has no room for all."""
    return samples[:: max(len(samples) // _POINTS, 1)] or [Sample(0.0, 0.0, 0.0, 0)]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], wrong: Sequence[bool] = ()) -> str:
    head = "".join(f"<th>{_text(title)}</th>" for title in titles)
    body = list[str]()
    for number, row in enumerate(rows):
        marked = number < len(wrong) and wrong[number]
        cells = (
            f"<td{' class=w' if marked and ' of ' in cell and at else ''}>{_text(cell)}</td>"
            for at, cell in enumerate(row)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="t"><table><tr>{head}</tr>{"".join(body)}</table></div>'


def _text(text: str) -> str:
    return escape(printable(text))
