"""Runs a daemon until a signal ends it: settings in, exit status out."""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from ascend.daemon.exits import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.settings import DaemonSettings, SettingsSource
from ascend.errors import AscendError, InvalidValue
from ascend.observe.logs import configure_logs

D = TypeVar("D", bound=DaemonSettings)


def run_daemon(
    program: str,
    kind: type[D],
    serve: Callable[[D, SettingsSource[D]], Coroutine[Any, Any, None]],
    arguments: Sequence[str] | None = None,
    *,
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a program until SIGTERM or SIGINT, and exit.

    The exit status is 0 after a signal, 1 with a sentence on standard error if the program can't start or continue, and
    2 if the settings are invalid.

    ``serve`` runs until cancelled; its arguments are the settings and their source. ``arguments`` are the command line
    without the program.
    """
    try:
        source = SettingsSource(kind, program, arguments)
        settings = source.read()
    except InvalidValue as error:
        sys.stderr.write(f"{program}: {error}\n")
        sys.exit(EXIT_USAGE)
    configure_logs(program, level=settings.log_level)
    failures: list[BaseException] = []
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_until_signalled(serve(settings, source)))
    except* AscendError as errors:
        failures.extend(_leaves(errors))  # to exit here would print a traceback
    for failure in failures:
        sys.stderr.write(f"{program}: {failure}\n")
    if failures:
        sys.exit(EXIT_FAILURE)


async def _until_signalled(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    # Its default would end the program, which may not follow its settings yet.
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
