"""The command ``ascend-allocator``."""

from allocator.app import serve
from allocator.settings import Settings
from ascend.daemon.run import run_daemon


def main() -> None:
    """Run the allocator until it is asked to end."""
    run_daemon("ascend-allocator", Settings, lambda settings, _source: serve(settings))


if __name__ == "__main__":
    main()
