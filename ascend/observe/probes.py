"""The HTTP endpoints of a daemon: ``/startupz``, ``/livez``, ``/readyz``, ``/standbyz`` and ``/metrics``.

Started: everything that a program does once at its start is done. Live: the event loop runs (it answers the request)
and no essential task has ended or hangs; otherwise only a restart helps. Ready: the program can do its work now.
Standby: it could if it were the leader; of several replicas one is ready, and the others are on standby. If a check
fails, the status is 503 and the body names the check and what is missing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry

from ascend.observe.exposition import Exposition
from ascend.printable import printable

Check = Callable[[], str | None]
"""Returns None if the check passes, else a sentence that says what is missing."""

GRACE_S = 30.0
"""How long a loop may be late, beyond three of its periods, on a busy server."""


def task_is_running(task: "asyncio.Task[None]") -> Check:
    """Check that an endless task has not ended: a failed task ends the program, but a return goes unnoticed."""
    return lambda: "its task has ended" if task.done() else None


def loop_is_turning(turned_s: Callable[[], float], period_s: Callable[[], float]) -> Check:
    """Check that a loop with this period has turned recently; ``turned_s`` is on the event loop's clock."""

    def check() -> str | None:
        late_s = asyncio.get_running_loop().time() - turned_s()
        return None if late_s <= 3 * period_s() + GRACE_S else f"it has not turned for {late_s:.0f} s"

    return check


def add_probes(
    app: web.Application,
    *,
    registry: CollectorRegistry,
    ready: Mapping[str, Check],
    live: Mapping[str, Check] | None = None,
    started: Mapping[str, Check] | None = None,
    standby: Mapping[str, Check] | None = None,
    refresh: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Add the endpoints to an application.

    Args:
        app: an aiohttp application that has not started.
        registry: the metrics.
        ready: the checks of readiness by name.
        live: the checks of liveness, in addition to the event loop's, by name.
        started: the checks of having started by name; one that has passed once is not run again.
        standby: the checks of standby by name; those of readiness if not given.
        refresh: awaited before the metrics are computed.
    """
    done: set[str] = set()

    def still_starting() -> Mapping[str, Check]:
        # A program starts only once.
        checks = started or {}
        done.update(name for name, check in checks.items() if check() is None)
        return {name: (lambda: None) if name in done else check for name, check in checks.items()}

    _add_page(app, "/startupz", still_starting)
    _add_page(app, "/livez", lambda: live or {})
    _add_page(app, "/readyz", lambda: ready)
    _add_page(app, "/standbyz", lambda: ready if standby is None else standby)

    exposition = Exposition(registry, refresh)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=await exposition.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app.router.add_get("/metrics", metrics)


def _add_page(app: web.Application, path: str, checks: Callable[[], Mapping[str, Check]]) -> None:
    async def page(_request: web.Request) -> web.Response:
        verdicts = {name: check() for name, check in checks().items()}
        lines = [
            printable(f"[{'+' if verdict is None else '-'}] {name}: {verdict or 'ok'}")
            for name, verdict in verdicts.items()
        ]
        missing = any(verdict is not None for verdict in verdicts.values())
        return web.Response(text="\n".join(lines or ["ok"]) + "\n", status=503 if missing else 200)

    app.router.add_get(path, page)
