"""The HTTP page of a daemon: ``/startupz``, ``/livez``, ``/readyz``, ``/standbyz`` and ``/metrics``.

Started means that everything a program does once at its start is done. Live means that the event loop turns (the
answer itself comes from it) and that nothing the program can't do without has died or stands still: only a restart
helps. Ready means that the program can do its work now, and standing by that it could if it had to: of several equal
processes one is ready, and the others stand by. Where one is not so, the answer is 503 and says what is
missing.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ascend.addresses import join_address, split_address
from ascend.errors import InvalidValue

Check = Callable[[], str | None]
"""None where all is well, else a sentence saying what is missing."""


def add_probes(
    app: web.Application,
    *,
    registry: CollectorRegistry,
    ready: Mapping[str, Check],
    live: Mapping[str, Check] | None = None,
    started: Mapping[str, Check] | None = None,
    standby: Mapping[str, Check] | None = None,
) -> None:
    """Add the paths to an application.

    Args:
        app: an aiohttp application not yet started.
        registry: the metrics to show.
        ready: what readiness consists of, by name.
        live: what liveness consists of beyond the loop, by name.
        started: what having started consists of, by name; each stays done once it was.
        standby: what standing by consists of, by name; the same as readiness if not given.
    """
    done: set[str] = set()

    def still_starting() -> Mapping[str, Check]:
        # A program that has started is never starting again: its startup probe is over.
        checks = started or {}
        done.update(name for name, check in checks.items() if check() is None)
        return {name: _done if name in done else check for name, check in checks.items()}

    _add_page(app, "/startupz", still_starting)
    _add_page(app, "/livez", lambda: live or {})
    _add_page(app, "/readyz", lambda: ready)
    _add_page(app, "/standbyz", lambda: ready if standby is None else standby)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", metrics)


def _done() -> None:
    """All is well, for good."""


def _add_page(app: web.Application, path: str, checks: Callable[[], Mapping[str, Check]]) -> None:
    async def page(_request: web.Request) -> web.Response:
        verdicts = {name: check() for name, check in checks().items()}
        lines = [f"[{'+' if verdict is None else '-'}] {name}: {verdict or 'ok'}" for name, verdict in verdicts.items()]
        missing = any(verdict is not None for verdict in verdicts.values())
        return web.Response(text="\n".join(lines or ["ok"]) + "\n", status=503 if missing else 200)

    app.router.add_get(path, page)


@asynccontextmanager
async def serve_http(app: web.Application, address: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve an application within a ``with`` block, which gets the address it really listens on.

    Args:
        app: the application.
        address: as ``split_address`` takes it.
        tls: certificates; plaintext without.

    Raises:
        InvalidValue: the address is malformed or can't be listened on.
    """
    host, port = split_address(address)
    # Bodies stay as they were sent: aiohttp's parser can't go on after one that can't be unpacked.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
        except OSError as error:
            raise InvalidValue(f"cannot listen on {address}: {error.strerror}") from error
        bound = runner.addresses[0]
        yield join_address(bound[0], bound[1])
    finally:
        await runner.cleanup()
