"""Imports a daemon's program without what its libraries load along and the daemon never uses.

On a node with a device plugin these are a quarter of the time from its start to its registration, and 4 MiB for good:

* structlog loads rich where that is installed, to lay tracebacks out on a terminal; a daemon's logs are JSON;
* aiohttp reads all authorities the machine trusts; a daemon's connections name the cluster's own each time;
* the garbage collector walks what has been imported again and again, though all of it stays.
"""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lean_imports() -> Iterator[None]:
    """Import within the block; afterwards everything can be imported and is collected as ever, but for what is there.

    Call it while there are no other threads yet: it changes the environment for a moment.
    """
    gc.disable()
    try:
        with _not_installed("rich"), _no_authorities():
            yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _not_installed(module: str) -> Iterator[None]:
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # Python's own way to have an import of it fail
    try:
        yield
    finally:
        del sys.modules[module]


@contextmanager
def _no_authorities() -> Iterator[None]:
    # OpenSSL takes the place of its file of authorities from here.
    variable = "SSL_CERT_FILE"
    before = os.environ.get(variable)
    os.environ[variable] = os.devnull
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
