"""The command ``ascend-allocator``."""

import uvloop

from allocator.app import serve
from allocator.settings import Settings
from ascend.daemon.run import run_daemon


def main() -> None:
    """Run the allocator until SIGTERM or SIGINT."""
    run_daemon("ascend-allocator", Settings, serve, new_loop=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
