"""The command ``ascend-allocator`` with a probe: how long one turn of its event loop takes.

A turn is all that the loop runs before it looks for new input: until then no other call is answered. What counts is the
CPU time of its thread, which other programs on the machine do not change.
"""

import asyncio
import json
import sys
import time

import uvloop
from aiohttp import web

from allocator.app import serve
from allocator.settings import Settings
from ascend.daemon.run import run_daemon


class Probe:
    """Measures every turn."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._turns: list[float] = []

    def start(self) -> None:
        """Measure from now on."""
        self._last_s = time.thread_time()
        self._loop.call_soon(self._turn)

    async def answer(self, _request: web.BaseRequest) -> web.Response:
        """The turns of at least a millisecond since the last call, in seconds."""
        turns, self._turns = self._turns, []
        return web.Response(body=json.dumps(turns), content_type="application/json")

    def _turn(self) -> None:
        now_s = time.thread_time()
        if now_s - self._last_s >= 0.001:
            self._turns.append(now_s - self._last_s)
        self._last_s = now_s
        self._loop.call_soon(self._turn)


async def _serve(settings: Settings, port: int) -> None:
    probe = Probe()
    runner = web.ServerRunner(web.Server(probe.answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        await serve(settings, started=lambda _app: probe.start())
    finally:
        await runner.cleanup()


def main() -> None:
    """Run the allocator; the first argument is the port of the probe."""
    port, *arguments = sys.argv[1:]
    run_daemon(
        "ascend-allocator",
        Settings,
        lambda settings, _source: _serve(settings, int(port)),
        arguments,
        new_loop=uvloop.new_event_loop,
    )


if __name__ == "__main__":
    main()
