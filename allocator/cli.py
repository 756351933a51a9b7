"""The program ``ascend-allocator``: settings in, exit status out."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError
from pydantic_settings import CliApp

from allocator.app import serve
from allocator.settings import ENV_PREFIX, Settings
from ascend.errors import AscendError
from ascend.observe.logs import configure_logs

EXIT_USAGE = 2


def load_settings(arguments: Sequence[str]) -> Settings:
    """The settings from flags, environment and file.

    Raises:
        ValidationError: some are invalid; holds every one of them.
        OSError: the file can't be read.
        yaml.YAMLError: the file is no YAML.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config", default=os.environ.get(f"{ENV_PREFIX}CONFIG"))
    found: str | None = finder.parse_known_args(arguments)[0].config
    if found is not None:
        Path(found).read_bytes()  # pydantic takes a file that is not there for an empty one

    class WithFile(Settings):
        yaml_file = Path(found) if found is not None else None

    WithFile.__doc__ = (
        "Decide which Ascend chips pods get, on which node, and bind them with their chips written on them."
    )
    return CliApp.run(WithFile, cli_args=list(arguments))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the allocator until SIGTERM or SIGINT, then exit with status 0; 2 if the settings are invalid."""
    try:
        settings = load_settings(sys.argv[1:] if arguments is None else arguments)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, each['loc'])) or 'settings'}: {each['msg']}" for each in error.errors()]
        print("ascend-allocator: invalid settings", *lines, sep="\n", file=sys.stderr)  # noqa: T201 - before there is a log
        sys.exit(EXIT_USAGE)
    except (OSError, yaml.YAMLError) as error:
        print(f"ascend-allocator: --config: {error}", file=sys.stderr)  # noqa: T201 - same
        sys.exit(EXIT_USAGE)
    configure_logs("ascend-allocator", level=settings.log_level)
    try:
        asyncio.run(_run(settings))
    except* AscendError as errors:
        print("ascend-allocator:", *errors.exceptions, file=sys.stderr)  # noqa: T201 - the last word of a daemon that can't start
        sys.exit(1)


async def _run(settings: Settings) -> None:
    task = asyncio.create_task(serve(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
