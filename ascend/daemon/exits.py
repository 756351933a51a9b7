"""How commands end: their exit statuses, and the end without the libraries of the extra ``programs``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

LIBRARIES: Final = frozenset({"google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "hpack", "uvloop"})
"""The modules that only the extra ``programs`` installs: both programs need them, ``npuctl`` by itself does not."""


@contextmanager
def programs_extra(what: str) -> Iterator[None]:
    """Import within the block what needs the extra; without it the program ends with a sentence and status 1.

    Args:
        what: what needs it, for the sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        sys.exit(f"{what} needs {error.name}, which is not installed: install ascend-affinity[programs]")
