"""Reloads settings while a program runs: when the file changes, or on SIGHUP.

All sources are read and validated again. If a setting is wrong, all errors are logged and the old settings stay. Of the
changed fields, those marked ``RELOADED`` are applied; the others are logged, because they need a restart.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Literal, TypeVar

import structlog

from ascend.daemon.setting import settings_of
from ascend.daemon.settings import POLL_S, DaemonSettings, SettingsSource
from ascend.errors import InvalidValue
from ascend.observe.logs import set_level

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

D = TypeVar("D", bound=DaemonSettings)

Outcome = Literal["applied", "unchanged", "refused", "needs_restart"]


class SettingsReload(Generic[D]):
    """Keeps a program's settings up to date with their sources.

    Args:
        source: the sources.
        settings: the settings as read at the start.
        apply: applies changed settings; called on the event loop.
        count: called with the outcome of every reload, for a metric.
        poll_s: seconds between checks of the file; each costs one ``stat``.
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
        self._requested = asyncio.Event()
        self._problem = ""
        self.settings = settings
        """The settings in effect."""
        self.awaiting_restart: tuple[str, ...] = ()
        """Changed fields that only a restart applies."""

    async def run(self) -> None:
        """Watch until cancelled."""
        # It is never removed: while the program ends, SIGHUP must not kill it. The loop removes it when it is closed.
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._requested.set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._requested.wait()
            if self._requested.is_set() or self._source.has_changed():
                self._requested.clear()
                await self.reload()

    async def reload(self) -> Outcome:
        """Read all sources again, and apply the changes that need no restart."""
        outcome = await self._reload()
        self._count(outcome)
        return outcome

    async def _reload(self) -> Outcome:
        try:
            fresh = await asyncio.to_thread(self._source.read)
        except InvalidValue as error:
            if error.message != self._problem:  # it may be tried again and again
                log.warning("reloaded settings are invalid, the old ones stay", error=error.message)
            self._problem = error.message
            return "refused"
        self._problem = ""
        declared = settings_of(type(self.settings))
        changed = [name for name in declared if getattr(fresh, name) != getattr(self.settings, name)]
        applicable = [name for name in changed if declared[name].is_reloaded]
        try:
            settings = replace(self.settings, **{name: getattr(fresh, name) for name in applicable})
        except InvalidValue:  # they break a rule together with the old value of a setting that needs a restart
            applicable = []
        self.awaiting_restart = tuple(name for name in changed if name not in applicable)
        if self.awaiting_restart:
            log.warning("changed settings need a restart", fields=self.awaiting_restart)
        if applicable:
            self.settings = settings
            set_level(self.settings.log_level)
            self._apply(self.settings)
            log.info("applied changed settings", **{name: str(getattr(fresh, name)) for name in applicable})
        if self.awaiting_restart:
            return "needs_restart"
        if not applicable:
            log.info("reloaded settings, nothing has changed")
        return "applied" if applicable else "unchanged"
