"""A kubelet's list of pods (``/pods``) that is slow, refused, cut off or very long; all calls block."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, Literal, TypeAlias

from tests.cluster.api import Server
from tests.cluster.errors import ClusterError

Manner: TypeAlias = Literal["as it is", "slow", "refused", "cut off", "huge", "endless", "empty"]
MANNERS: Final[tuple[Manner, ...]] = ("as it is", "slow", "refused", "cut off", "huge", "endless")
SLOW_S: Final = 5.0
"""Longer than a call of the kubelet may wait for the plugin."""
_ENDED: Final = json.dumps(
    {
        "metadata": {"name": "ended", "namespace": "other", "uid": "0", "annotations": {"note": "x" * 10_000}},
        "spec": {"containers": []},
        "status": {"phase": "Succeeded"},
    }
).encode()
"""A pod with which the list is made long: 5,000 of them are 50 MB."""
_HUGE: Final = (_ENDED + b",") * 5_000
_ITEMS: Final = b'"items":['
_CHUNK: Final = b" " * 1_000_000


class PodsList:
    """The list, as the plugin reads it.

    Attributes:
        manner: how it is answered.
        url: its address.
    """

    def __init__(self, kubelet: Server) -> None:
        self._kubelet = kubelet
        self.manner: Manner = "as it is"
        self.url = ""

    @contextmanager
    def served(self) -> Iterator[None]:
        """Serve it within the block, for whoever asks, because nobody sends a token where nobody can be verified."""
        pods = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pods.answer(self)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the library's name
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.url = f"http://127.0.0.1:{server.server_port}/pods"
        thread = threading.Thread(target=server.serve_forever, name="pods-list")
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answer a request in the present manner."""
        manner = self.manner
        if manner == "refused":
            request.send_error(401)
            return
        if manner == "slow":
            time.sleep(SLOW_S)
        with contextlib.suppress(OSError, ClusterError):  # the kubelet restarts, or the plugin does not wait
            body = self._kubelet.request("GET", request.path) if manner != "empty" else b'{"items":[]}'
            if manner == "huge" and _ITEMS + b"]" not in body:
                body = body.replace(
                    _ITEMS, _ITEMS + _HUGE, 1
                )  # copied: this process also serves the API server's proxy
            request.send_response(200)
            if manner != "endless":
                request.send_header("Content-Length", str(len(body)))
            request.end_headers()
            request.wfile.write(body[: len(body) // 2] if manner == "cut off" else body)
            while manner == "endless":
                request.wfile.write(_CHUNK)
