"""The exit statuses of all commands."""

from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2
