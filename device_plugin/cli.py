"""The command ``ascend-device-plugin``, which runs the daemon."""

import sys

from ascend.daemon.exits import programs_extra
from ascend.daemon.lean import lean_imports


def main() -> None:
    """Run the daemon; the word ``run`` may precede its flags."""
    with lean_imports(), programs_extra("ascend-device-plugin"):
        from ascend.daemon.run import run_daemon
        from ascend.daemon.settings import SettingsSource
        from device_plugin.app import Plugin
        from device_plugin.settings import Settings

    async def serve(settings: Settings, source: SettingsSource[Settings]) -> None:
        await Plugin(settings, source=source).run()

    arguments = sys.argv[1:]
    run_daemon("ascend-device-plugin", Settings, serve, arguments[1:] if arguments[:1] == ["run"] else arguments)


if __name__ == "__main__":
    main()
