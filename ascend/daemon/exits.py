"""How commands end: their exit statuses, and the end without the libraries of an extra."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

EXIT_FAILURE: Final = 1
EXIT_USAGE: Final = 2

LIBRARIES: Final = frozenset({"google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "hpack", "uvloop"})
"""The modules that only the extra ``programs`` installs: both programs need them, ``npuctl`` by itself does not."""


PAGE: Final = frozenset({"nicegui", "fastapi", "starlette", "uvicorn"})
"""The modules that only the extra ``web`` installs."""


@contextmanager
def programs_extra(what: str, extra: str = "programs", libraries: frozenset[str] = LIBRARIES) -> Iterator[None]:
    """Import within the block what needs an extra; without it the program ends with a sentence and status 1.

    Args:
        what: what needs it, for the sentence.
        extra: the extra.
        libraries: the modules that it installs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in libraries:
            raise
        sys.exit(f"{what} needs {error.name}, which is not installed: install ascend-affinity[{extra}]")
