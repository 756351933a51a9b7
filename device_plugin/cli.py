"""The command ``ascend-device-plugin``: the daemon itself (``run``, or nothing), and ``inventory``."""

import sys

from ascend.daemon.run import run_daemon
from ascend.daemon.settings import SettingsSource
from device_plugin.app import Plugin
from device_plugin.settings import Settings


def main() -> None:
    """Run the plugin until it is asked to end, or the command that was named."""
    command = "".join(sys.argv[1:2])
    if command == "inventory":
        # Not above: laying out tables takes memory that the daemon need not have.
        from device_plugin import inventory_command

        sys.exit(inventory_command.main(sys.argv[2:]))
    arguments = sys.argv[2:] if command == "run" else sys.argv[1:]
    run_daemon("ascend-device-plugin", Settings, _serve, arguments)


async def _serve(settings: Settings, source: SettingsSource[Settings]) -> None:
    await Plugin(settings, source=source).run()


if __name__ == "__main__":
    main()
