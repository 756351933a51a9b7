"""The page: the wall of chips, the queue beside it, and the answer about whatever was chosen."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Final

from nicegui import background_tasks, ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from ascend.errors import AscendError
from ascend.grammar import count
from npuctl.explain.answer import Explanation
from npuctl.queue.command import age, next_of, requests, why
from npuctl.queue.entries import Next, QueueEntry
from npuctl.topo.chip_map import node_map
from npuctl.web.answers import MOST_BYTES, explained, in_words
from npuctl.web.groups import GroupChooser
from npuctl.web.hub import Hub
from npuctl.web.live import Tile
from npuctl.web.past import PastCluster
from npuctl.web.recorder import HistoryRecorder
from npuctl.web.timeline import Timeline

STYLE: Final = Path(__file__).with_name("page.css")

_MOST_ROWS: Final = 200
"""Jobs of the queue that are sent to a page."""

_ROW: Final = """
<q-tr :props="props" tabindex="0" role="button" :class="{ chosen: props.row.chosen }" :data-job="props.row.job"
  @click="$parent.$emit('choose', props.row.id)" @keydown.enter="$parent.$emit('choose', props.row.id)">
  <q-td>
    <div class="row1"><b>{{ props.row.position }}</b> <span class="job">{{ props.row.job }}</span>
      <span>{{ props.row.requests }}</span></div>
    <div class="row2"><span :class="props.row.style">{{ props.row.next }}</span> <span>{{ props.row.age }}</span></div>
    <div class="why" v-if="props.row.why">{{ props.row.why }}</div>
  </q-td>
</q-tr>
"""

_LEGEND: Final = (
    ("free", "□ free"),
    ("held", "■ a colour: a job"),
    ("broken", "✕ broken"),
    ("kept", "/ kept for a job that waits"),
    ("next", "● next for a pod"),
    ("cut", "- cut"),
    ("limited", "◤ limited"),
    ("closed", "grey, dashed: node not used"),
)


class WallCanvas(Element, component="wall.js"):
    """The wall of chips."""


class ClusterPage:
    """The page of one viewer.

    Args:
        hub: what it shows.
        recorder: what records the history, if one is recorded.
    """

    def __init__(self, hub: Hub, recorder: HistoryRecorder | None) -> None:
        self._hub = hub
        self._timeline: Timeline | None = None
        self._past: PastCluster | None = None
        self._task: asyncio.Task[None] | None = None
        self._chosen = ""
        self._level = ""
        self._dark = ui.dark_mode(value=None)
        with ui.element("header").classes("top"):
            ui.label("npuctl web").classes("title")
            self._totals = ui.label("reading the cluster …").classes("totals")
            ui.button("dark or light", on_click=self._turn_dark).props("flat dense no-caps").classes("dark")
        if recorder is not None:
            self._timeline = Timeline(recorder, lambda: hub.live.source.at_present().now_ns // 10**9, self._go_to)
        with ui.element("div").classes("board"):
            with ui.element("section").classes("chips").props('aria-label="Chips"'):
                self._groups = GroupChooser(lambda level, place: self._wall.run_method("show", level, place))
                self._wall = WallCanvas().classes("wall-box").on("choose", self._on_wall)
                self._reasons = ui.element("div").classes("reasons")
                with ui.element("div").classes("legend"):
                    for name, text in _LEGEND:
                        ui.label(text).classes(f"key {name}")
            with ui.element("aside").classes("side"):
                self._build_queue()
                self._build_answer()
        self.on_waiting()

    def _build_queue(self) -> None:
        with ui.element("section").classes("queue").props('aria-label="Queue"'):
            with ui.element("div").classes("heading"):
                ui.label("Queue").classes("subtitle")
                self._filter = ui.input(placeholder="job", on_change=self._show_rows).props(
                    "dense clearable debounce=200"
                )
            columns = [{"name": "job", "label": "job", "field": "job"}]
            self._queue = ui.table(rows=[], columns=columns, row_key="id").props("hide-header hide-no-data flat")
            self._queue.add_slot("body", _ROW)
            self._queue.on("choose", lambda event: self._choose_job(str(event.args)))
            self._said = ui.label().classes("said")

    def _build_answer(self) -> None:
        with ui.element("section").classes("answers"):
            with ui.element("div").classes("heading"):
                self._subject = ui.label("Choose a job, a node or a chip").classes("subtitle")
                self._busy = ui.spinner(size="sm")
                self._clear = ui.button("show all", on_click=self._show_all).props("flat dense no-caps")
            self._answer = ui.label().classes("answer").props("aria-live=polite")
            with ui.expansion("Would it fit?").classes("fit"):
                self._manifest = ui.textarea("a manifest: pods, jobs, or what creates them")
                self._manifest.props(f"outlined debounce=200 maxlength={MOST_BYTES} input-class=manifest")
                ui.button("plan it", on_click=self._plan).props("no-caps dense")
                self._planned = ui.label().classes("answer planned").props("aria-live=polite")
        self._busy.visible = self._clear.visible = False

    def on_tiles(self, seq: int, tiles: list[Tile], gone: list[str]) -> None:
        """Nodes have changed, or are gone."""
        self._wall.run_method("patch", seq, tiles, gone)

    def on_waiting(self) -> None:
        """The queue was decided on again."""
        if self._timeline is not None:
            self._timeline.say_trouble()
        if self._past is None:
            self._show_queue()

    def _show_queue(self) -> None:
        waiting = self._hub.waiting
        pods = sum(len(entry.pods) for entry in waiting.entries)
        queue = f"{count(pods, 'pod')} of {count(len(waiting.entries), 'job')} in the queue" if pods else "none waits"
        self._totals.text = f"{waiting.totals} · {queue}"
        self._list([self._row(entry) for entry in waiting.entries if self._is_wanted(entry.job)])
        self._groups.show(waiting.groups)

    def _is_wanted(self, job: str) -> bool:
        return (self._filter.value or "").lower() in job.lower()

    def _list(self, rows: list[dict[str, Any]]) -> None:
        self._queue.rows = rows[:_MOST_ROWS]
        left = len(rows) - _MOST_ROWS
        self._said.text = "no pod waits for chips" if not rows else f"and {count(left, 'job')} more" if left > 0 else ""

    def _go_to(self, past: PastCluster | None) -> None:
        """Show a time before, or now."""
        self._past = past
        self._wall.run_method("past", list(past.tiles.values()) if past is not None else None)
        self._groups.hide(hidden=past is not None)
        self._show_all()

    def _show_past(self, past: PastCluster) -> None:
        self._totals.text = past.totals
        self._list([{**row, "chosen": row["id"] == self._chosen} for row in past.waits if self._is_wanted(row["job"])])

    def _row(self, entry: QueueEntry) -> dict[str, Any]:
        starts = entry.next in {Next.STARTS, Next.PREEMPTS}
        return {
            "id": _id(entry),
            "position": entry.position,
            "job": entry.job,
            "requests": requests(entry),
            "next": next_of(entry),
            "style": "good" if starts else "bad" if entry.next is Next.NEVER else "",
            "age": age(entry.since, self._hub.live.source.at_present().now_ns),
            "why": why(entry),
            "chosen": _id(entry) == self._chosen,
        }

    def _turn_dark(self) -> None:
        self._dark.value = not self._dark.value

    def _ask(self, answer: ui.label, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Ask a question; the answer to an earlier one is no longer waited for."""
        if self._task is not None:
            self._task.cancel()
        self._busy.visible = True

        async def asked() -> None:
            try:
                await work()
            except AscendError as error:
                answer.text = str(error)
            self._busy.visible = False

        self._task = background_tasks.create(asked())

    def _mark(self, chosen: str, over: dict[str, Any]) -> None:
        self._chosen = chosen
        self._clear.visible = bool(over)
        self._wall.run_method("overlay", over)
        self._reasons.clear()
        with self._reasons:
            for letter, reason in over.get("reasons", {}).items():
                ui.label(f"{letter} {reason}").classes("reason")
        self._show_rows()

    def _show_rows(self) -> None:
        if self._past is not None:
            self._show_past(self._past)
        else:
            self._show_queue()

    def _show_all(self) -> None:
        self._subject.text, self._answer.text = "Choose a job, a node or a chip", ""
        self._mark("", {})

    def _choose_past(self, past: PastCluster, job: str, subject: str, about: str = "") -> None:
        async def tell() -> None:
            told = await asyncio.to_thread(past.history, job)
            self._answer.text = "\n\n".join(filter(None, (told, about)))

        behind = next((row["behind"] for row in past.waits if row["id"] == job), ())
        self._mark(job, {"job": next(iter(behind), job)})
        self._subject.text, self._answer.text = subject, about
        if job:
            self._ask(self._answer, tell)

    def _choose_job(self, chosen: str) -> None:
        if self._past is not None:
            self._choose_past(self._past, chosen, f"Job {chosen}, then")
            return
        entry = next((entry for entry in self._hub.waiting.entries if _id(entry) == chosen), None)
        if entry is None:
            return
        pod = next((pod for pod in entry.pods if pod.state == "waits"), entry.pods[0])

        async def explain() -> None:
            found = await self._hub.answers.explain([f"{entry.namespace}/{pod.name}"])
            self._answer.text = "\n\n".join(map(explained, found)) or "it does not wait any more"
            self._mark(chosen, _overlay(found[0]) if found else {})

        self._mark(chosen, {})
        self._subject.text = f"Job {entry.job}"
        self._ask(self._answer, explain)

    def _on_wall(self, event: GenericEventArguments) -> None:
        args = event.args if isinstance(event.args, dict) else {}
        if self._past is not None:
            self._on_past_wall(self._past, str(args.get("node", "")), args.get("chip"))
            return
        view, chip = self._hub.live.views.get(str(args.get("node"))), args.get("chip")
        if view is None:
            self._show_all()
            return
        here = self._hub.live.location(view.node)
        at = [f"{level} {place}" for level, place in here.places]
        about = in_words(node_map([view])) + ("\n" + ", ".join(at) if at else "")
        self._answer.text = about
        known = isinstance(chip, int) and 0 <= chip < len(view.chips)
        named = view.chips[chip] if known and isinstance(chip, int) else None
        holders = [holder for device in named.devices for holder in device.holders] if named is not None else []
        self._mark("", {"job": view.jobs.get(holders[0], holders[0])} if holders else {"fit": {view.node: 1}})
        if named is None or not holders:
            self._subject.text = f"Node {view.node}" + (f", {named.name}" if named is not None else "")
            return

        async def explain() -> None:
            found = await self._hub.answers.explain(holders)
            self._answer.text = "\n\n".join([*map(explained, found), about])

        self._subject.text = f"Pod {', '.join(holders)}"
        self._ask(self._answer, explain)

    def _on_past_wall(self, past: PastCluster, node: str, chip: object) -> None:
        if node in past.tiles:
            self._choose_past(past, past.job_at(node, chip), f"Node {node}, then", past.about(node))
        elif self._timeline is not None:
            self._timeline.back_to_now()

    def _plan(self) -> None:
        async def plan() -> None:
            self._planned.text = await self._hub.answers.plan(self._manifest.value or "")

        self._ask(self._planned, plan)


def _id(entry: QueueEntry) -> str:
    return f"{entry.job} {entry.priority}" if not entry.gang else entry.job


def _overlay(answer: Explanation) -> dict[str, Any]:
    """How the wall shows why a pod waits: nodes by the letter of their reason, where it fits, and what would help."""
    if answer.state != "waits":
        return {"fit": {candidate.node: 1 for candidate in answer.candidates}}
    lettered = list(zip(ascii_uppercase, answer.groups, strict=False))
    helps: dict[str, str] = {}
    for remedy in answer.remedies:
        helps.setdefault(remedy.node, str(remedy))
    return {
        "dim": {node: letter for letter, group in lettered for node in group.nodes},
        "reasons": {letter: f"{group.reason} ({count(len(group.nodes), 'node')})" for letter, group in lettered},
        "help": helps,
    }
