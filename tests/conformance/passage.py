"""A proxy between the plugin and the API server, with gates that hold single requests back; all calls block."""

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.e2e.proxy import ApiProxy, Gate

T = TypeVar("T")

_PATIENCE_S: Final = 30.0


class HeldGate:
    """A gate, used from outside its event loop."""

    def __init__(self, passage: "Passage", gate: Gate) -> None:
        self._passage = passage
        self._gate = gate

    def wait_until_reached(self) -> None:
        """Return when a request waits here.

        Raises:
            TimeoutError: there is none.
        """
        self._passage.run(asyncio.wait_for(self._gate.reached.wait(), _PATIENCE_S))

    def open(self) -> None:
        """Let waiting and later requests pass."""

        async def opening() -> None:
            self._gate.opened.set()

        self._passage.run(opening())


class Passage:
    """A proxy in a thread. Use as a context manager.

    Args:
        upstream: base address of the API server.
        ca: verifies its certificate.
    """

    def __init__(self, upstream: str, ca: Path) -> None:
        self._proxy = ApiProxy(upstream, ca)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="the way to the API server")

    @property
    def url(self) -> str:
        return self._proxy.url

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
        """Hold matching requests back until the block ends, or the gate is opened."""
        context = self._proxy.gate(method, path, after=after)
        held = HeldGate(self, self.run(context.__aenter__()))
        try:
            yield held
        finally:
            self.run(context.__aexit__(None, None, None))
