"""A proxy between the plugin and the API server, with gates that hold single requests; all calls block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.e2e.proxy import ApiProxy, Gate

T = TypeVar("T")

_PATIENCE_S: Final = 30.0


class HeldGate:
    """A gate, used from outside its event loop."""

    def __init__(self, proxy: "ThreadedProxy", gate: Gate) -> None:
        self._proxy = proxy
        self._gate = gate

    def wait_until_reached(self) -> None:
        """Wait until a request is held here.

        Raises:
            TimeoutError: there was none in time.
        """
        self._proxy.run(asyncio.wait_for(self._gate.reached.wait(), _PATIENCE_S))

    def open(self) -> None:
        """Let held and later requests continue."""

        async def opening() -> None:
            self._gate.opened.set()

        self._proxy.run(opening())


class ThreadedProxy:
    """A proxy in a thread. Use as a context manager.

    Args:
        upstream: base address of the API server.
        ca: the certificate authority of the API server.
    """

    def __init__(self, upstream: str, ca: Path) -> None:
        self._proxy = ApiProxy(upstream, ca)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="api-server-proxy")

    @property
    def url(self) -> str:
        return self._proxy.url

    @contextmanager
    def late_watches(self, delay_s: Callable[[], float]) -> Iterator[None]:
        """Hold each event of a watch for as long as the function returns, until the block ends."""
        before, self._proxy.watch_delay_s = self._proxy.watch_delay_s, delay_s
        try:
            yield
        finally:
            self._proxy.watch_delay_s = before

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * _PATIENCE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._proxy.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self._proxy.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def gate(self, method: str, path: str, *, after: bool = False) -> Iterator[HeldGate]:
        """Hold matching requests until the block ends or the gate is opened."""
        context = self._proxy.gate(method, path, after=after)
        held = HeldGate(self, self.run(context.__aenter__()))
        try:
            yield held
        finally:
            self.run(context.__aexit__(None, None, None))
