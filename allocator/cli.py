"""The command ``ascend-allocator``."""

from ascend.daemon.exits import programs_extra
from ascend.daemon.lean import lean_imports


def main() -> None:
    """Run the allocator until SIGTERM or SIGINT."""
    with lean_imports(), programs_extra("ascend-allocator"):
        import uvloop

        from allocator.app import serve
        from allocator.settings import Settings
        from ascend.daemon.run import run_daemon

    run_daemon("ascend-allocator", Settings, serve, new_loop=uvloop.new_event_loop)


if __name__ == "__main__":
    main()
