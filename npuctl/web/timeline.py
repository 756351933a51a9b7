"""The slider over time: what it chooses is read from the history, and marked as past."""

import asyncio
from collections.abc import Callable
from typing import Final

from nicegui import background_tasks, ui

from ascend.errors import AscendError
from npuctl.web.past import PastCluster
from npuctl.web.recorder import HistoryRecorder

_RANGES: Final = {60: "1 hour", 1_440: "1 day", 10_080: "1 week", 43_200: "30 days"}
"""How many minutes the slider covers."""

_THROTTLE_S: Final = 0.2


class Timeline:
    """The slider of one page.

    Args:
        recorder: what records the history.
        now: returns the time, Unix seconds.
        chosen: called with the cluster of the time that is chosen; None is now.
    """

    def __init__(
        self, recorder: HistoryRecorder, now: Callable[[], int], chosen: Callable[[PastCluster | None], object]
    ) -> None:
        self._recorder = recorder
        self._now = now
        self._chosen = chosen
        self._task: asyncio.Task[None] | None = None
        with ui.element("div").classes("timeline").props('role="group" aria-label="Time"') as self._box:
            self._slider = ui.slider(min=-60, max=0, value=0).props('aria-label="Minutes before now"')
            self._slider.on("update:model-value", self._move, throttle=_THROTTLE_S)
            self._ranges = ui.toggle(_RANGES, value=60, on_change=self._cover).props("no-caps dense")
            self._back = ui.button("back to now", on_click=self.back_to_now).props("no-caps dense").classes("to-now")
            self._moment = ui.label().classes("moment").props("aria-live=polite")
        self._say("")

    def say_trouble(self) -> None:
        """Show why nothing is recorded, while nothing is."""
        if not self._back.visible:
            self._say(self._recorder.trouble)

    def back_to_now(self) -> None:
        """Show the cluster as it is."""
        if self._task is not None:
            self._task.cancel()
        self._slider.value = 0
        self._mark(past=False)
        self._say(self._recorder.trouble)
        self._chosen(None)

    def _say(self, text: str) -> None:
        self._moment.text = text or "live"

    def _mark(self, *, past: bool) -> None:
        self._back.visible = past
        self._box.classes(add="past") if past else self._box.classes(remove="past")

    def _cover(self) -> None:
        self._slider.props["min"] = -self._ranges.value
        self._slider.update()
        self.back_to_now()

    def _move(self) -> None:
        if not self._slider.value:
            self.back_to_now()
            return
        if self._task is not None:
            self._task.cancel()
        self._task = background_tasks.create(self._show(self._now() + 60 * int(self._slider.value)))

    async def _show(self, time_s: int) -> None:
        self._mark(past=True)
        try:
            found = await asyncio.to_thread(PastCluster.read, self._recorder.reader, time_s)
        except AscendError as error:
            self._say(str(error))
            return
        self._say(str(found))
        self._chosen(found)
