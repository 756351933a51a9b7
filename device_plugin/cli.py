"""The command ``ascend-device-plugin``: runs the daemon (``run``, the default) or prints the ``inventory``.

Each imports only what it needs: the daemon no tables, the inventory nothing of the kubelet.
"""

import sys

from ascend.daemon.extra import programs_extra
from ascend.daemon.lean import lean_imports


def main() -> None:
    """Run the command named by the first argument; the default is the daemon."""
    command = "".join(sys.argv[1:2])
    if command == "inventory":
        with programs_extra("ascend-device-plugin"):
            from device_plugin.inventory.command import main as inventory

        sys.exit(inventory(sys.argv[2:]))
    _run(sys.argv[2:] if command == "run" else sys.argv[1:])


def _run(arguments: list[str]) -> None:
    with lean_imports(), programs_extra("ascend-device-plugin"):
        from ascend.daemon.run import run_daemon
        from ascend.daemon.settings import SettingsSource
        from device_plugin.app import Plugin
        from device_plugin.settings import Settings

    async def serve(settings: Settings, source: SettingsSource[Settings]) -> None:
        await Plugin(settings, source=source).run()

    run_daemon("ascend-device-plugin", Settings, serve, arguments)


if __name__ == "__main__":
    main()
