"""The device plugin as a process that can be killed at any instruction and restarted within a tenth of a second."""

import asyncio
import multiprocessing
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Final

from ascend.daemon.settings import fixed_settings
from ascend.observe.logs import configure_logs
from device_plugin.app import Plugin
from device_plugin.settings import Settings

# Forked from a process that has imported everything and opened nothing: importing would take too long.
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["__main__", __name__])


class PluginProcess:
    """A plugin; it ends with this process at the latest.

    Args:
        settings: fields of the plugin's settings.
        log: its log file.
    """

    def __init__(self, settings: dict[str, Any], log: Path) -> None:
        self._settings = settings
        self.log = log
        self._process: ForkServerProcess | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    async def start(self) -> None:
        """Start or restart it."""
        self._process = _FORKS.Process(target=_run, args=(self._settings, self.log), daemon=True)
        await asyncio.to_thread(self._process.start)

    async def kill(self) -> None:
        """Kill it between any two instructions."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.join)
            process.close()


def _run(settings: dict[str, Any], log: Path) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    with log.open("a") as stream:
        configure_logs("ascend-device-plugin", level="INFO", stream=stream)
        try:
            asyncio.run(Plugin(fixed_settings(Settings, None, settings)).run())
        except Exception as error:  # noqa: BLE001 - every error must be in the log of the soak
            stream.write(f"ended: {error!r}\n")
            sys.exit(1)
