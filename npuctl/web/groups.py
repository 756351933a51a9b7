"""Groups of nodes, where there are many: a treemap, and a list that begins with the most trouble."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from nicegui import ui
from nicegui.events import EChartPointClickEventArguments

from ascend.grammar import count
from npuctl.topo.summary import Totals
from npuctl.web.live import LEVELS

_FULL: Final = (38, 70, 120)
_EMPTY: Final = (253, 231, 140)
"""The colours of a group without a free chip, and of one with only free chips: lighter and lighter between them."""


class GroupChooser:
    """The groups at a level, one of which may be chosen.

    Args:
        chosen: called with the number of the level and the name of the place; an empty name is the whole cluster.
    """

    def __init__(self, chosen: Callable[[int, str], object]) -> None:
        self._chosen = chosen
        self._level = ""
        self._box = ui.element("div").classes("groups")
        self._sums: dict[str, list[Totals]] = {}

    def hide(self, *, hidden: bool) -> None:
        """Hide the groups, which are those of now, or show them again."""
        self._box.visible = not hidden

    def show(self, sums: dict[str, list[Totals]]) -> None:
        """Show groups by level as they are now; none is chosen where there are no levels."""
        if not sums or sums is self._sums:
            return
        self._sums = sums
        if not self._box.default_slot.children:  # the library of the chart is large
            self._build()
        if self._level not in self._sums:
            self._level = next(iter(self._sums))
            self._levels.set_options({level: f"by {level}" for level in self._sums}, value=self._level)
        self._draw()

    def _build(self) -> None:
        with self._box, ui.element("div").classes("choices"):
            self._levels = ui.toggle({}, on_change=lambda event: self._group_by(event.value)).props("no-caps dense")
            self._place = ui.select({"": "all"}, value="", label="group, the most trouble first", with_input=True)
            self._place.props("dense").on_value_change(lambda event: self._enter(event.value))
        with self._box:
            self._tree = ui.echart(_treemap([]), on_point_click=self._on_group).classes("tree")

    def _draw(self) -> None:
        shown = self._sums.get(self._level, [])
        self._place.set_options({"": "all", **{group.product: _in_short(group) for group in shown}})
        self._tree.options["series"] = _treemap(shown)["series"]
        self._tree.update()

    def _group_by(self, level: str | None) -> None:
        if level and level != self._level:
            self._level = level
            self._place.value = ""
            self._draw()

    def _on_group(self, event: EChartPointClickEventArguments) -> None:
        self._place.value = event.name

    def _enter(self, place: str | None) -> None:
        self._chosen(LEVELS.index(self._level), place or "")


def _in_short(group: Totals) -> str:
    broken = f", ✕ {group.unhealthy}" if group.unhealthy else ""
    return f"{group.product}: {group.free} of {count(group.chips, 'chip')} free{broken}"


def _lines(group: Totals) -> Iterator[str]:
    yield group.product.rpartition(" ")[2]
    yield f"{group.free} free"
    if group.unhealthy:
        yield f"✕ {group.unhealthy}"


def _treemap(shown: Sequence[Totals]) -> dict[str, Any]:
    data = [
        {
            "name": group.product,
            "value": group.chips,
            "itemStyle": {"color": _shade(group.free / max(group.chips, 1))},
            "label": {
                "formatter": "\n".join(_lines(group)),
                "color": "#111" if group.free > group.chips / 3 else "#fff",
            },
        }
        for group in shown
    ]
    series = {
        "type": "treemap", "data": data, "roam": False, "nodeClick": False, "breadcrumb": {"show": False},
        "width": "100%", "height": "100%", "left": 0, "top": 0, "animation": False,
        "label": {"overflow": "truncate", "fontSize": 11, "lineHeight": 13, "padding": 2},
    }  # fmt: skip
    return {"series": [series], "tooltip": {"show": False}}


def _shade(free: float) -> str:
    return "#" + "".join(
        f"{round(dark + (light - dark) * free):02x}" for dark, light in zip(_FULL, _EMPTY, strict=True)
    )
