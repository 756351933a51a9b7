"""The command ``ascend-device-plugin``."""

import asyncio
import signal
import sys

from ascend.errors import AscendError, InvalidValue
from ascend.observe.logs import configure_logs
from ascend.settings import read_settings
from device_plugin.app import Plugin
from device_plugin.settings import Settings


def main() -> None:
    """Run the plugin until SIGTERM or SIGINT; exit status 2 on bad settings, 1 when it can't go on."""
    try:
        settings = read_settings(Settings, "ascend-device-plugin")
    except InvalidValue as error:
        sys.stderr.write(f"ascend-device-plugin: {error}\n")
        sys.exit(2)
    configure_logs("device-plugin", level=settings.log_level)
    sys.exit(asyncio.run(_run(settings)))


async def _run(settings: Settings) -> int:
    running = asyncio.ensure_future(Plugin(settings).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        return 0
    except AscendError as error:
        sys.stderr.write(f"ascend-device-plugin: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    main()
