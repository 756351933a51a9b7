"""Settings that change while a program runs: read again when the file changes, or on SIGHUP.

All sources are read and checked again. What is wrong is logged, all of it at once, and the old settings stay. Of what
changed, the fields marked ``RELOADED`` are applied; the others are named, because they need a restart.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import structlog

from ascend.daemon.settings import DaemonSettings, SettingsSource
from ascend.errors import InvalidValue
from ascend.observe.logs import set_level

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

D = TypeVar("D", bound=DaemonSettings)

Outcome = Literal["applied", "unchanged", "refused", "needs_restart"]

POLL_S = 2.0


class SettingsReload(Generic[D]):
    """Keeps a program's settings those of its sources.

    Args:
        source: where they come from.
        settings: as read at the start.
        apply: takes over the settings in effect from now on; called on the event loop, only when some have changed.
        count: told the outcome of every reload, for a metric.
        poll_s: time between looks at the file; one ``stat`` each.
    """

    def __init__(
        self,
        source: SettingsSource[D],
        settings: D,
        apply: Callable[[D], None],
        *,
        count: Callable[[Outcome], None] = lambda _outcome: None,
        poll_s: float = POLL_S,
    ) -> None:
        self._source = source
        self._apply = apply
        self._count = count
        self._poll_s = poll_s
        self._asked = asyncio.Event()
        self.settings = settings
        """In effect now."""
        self.awaiting_restart: tuple[str, ...] = ()
        """The fields that the sources have changed, but only a restart applies."""

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._asked.set)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await self._asked.wait()
                if self._asked.is_set() or self._source.has_changed():
                    self._asked.clear()
                    await self.reload()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    async def reload(self) -> Outcome:
        """Read all sources again, and take over what can be taken over."""
        outcome = await self._reload()
        self._count(outcome)
        return outcome

    async def _reload(self) -> Outcome:
        try:
            fresh = await asyncio.to_thread(self._source.read)
        except InvalidValue as error:
            log.warning("the settings were read again and refused, the old ones stay", error=error.message)
            return "refused"
        fields = type(self.settings).model_fields
        changed = [name for name in fields if getattr(fresh, name) != getattr(self.settings, name)]
        now = [name for name in changed if _is_reloaded(fields[name].json_schema_extra)]
        self.awaiting_restart = tuple(name for name in changed if name not in now)
        if self.awaiting_restart:
            log.warning("these settings have changed, but need a restart", fields=self.awaiting_restart)
        if now:
            self.settings = self.settings.model_copy(update={name: getattr(fresh, name) for name in now})
            set_level(self.settings.log_level)
            self._apply(self.settings)
            log.info("settings applied", **{name: str(getattr(fresh, name)) for name in now})
        if self.awaiting_restart:
            return "needs_restart"
        if not now:
            log.info("the settings were read again, nothing has changed")
        return "applied" if now else "unchanged"


def _is_reloaded(extra: object) -> bool:
    return isinstance(extra, dict) and extra.get("reload") is True
