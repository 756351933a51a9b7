"""The command ``ascend-device-plugin``."""

from ascend.daemon.run import run_daemon
from device_plugin.app import Plugin
from device_plugin.settings import Settings


def main() -> None:
    """Run the plugin until it is asked to end."""
    run_daemon("ascend-device-plugin", Settings, lambda settings, _source: Plugin(settings).run())


if __name__ == "__main__":
    main()
