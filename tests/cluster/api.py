"""A blocking HTTP client for the API server and the kubelets, for the set-up and the assertions of tests."""

import functools
import http.client
import json
import secrets
import select
import socket
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from tests.cluster.errors import ClusterError
from tests.cluster.processes import wait_until

_TIMEOUT_S: Final = 20.0
_GROUPS: Final = {"v1": "/api/v1"}
_PLURALS: Final = {"Endpoints": "endpoints", "EndpointSlice": "endpointslices", "StorageClass": "storageclasses"}
_CLUSTER_WIDE: Final = frozenset(
    {
        "AdmissionCheck",
        "ClusterQueue",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "HyperNode",
        "MutatingWebhookConfiguration",
        "Namespace",
        "Node",
        "PriorityClass",
        "ResourceFlavor",
        "Topology",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "ValidatingWebhookConfiguration",
    }
)


class HTTPError(ClusterError):
    """A server answered with an error; `status` is the HTTP status, the text contains the server's message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Server:
    """An HTTP(S) server with JSON bodies. Thread-safe: concurrent requests use different connections.

    Attributes:
        url: base address, such as `https://127.0.0.1:6443`.
        token: bearer token; empty for none.
        ca: file of the certificate authority; None accepts any certificate (the kubelet's is self-signed, in memory).
    """

    url: str
    token: str = ""
    ca: Path | None = None

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> bytes:
        """Send a request and return the body of a 2xx response.

        Raises:
            HTTPError: the response has another status.
            OSError: no connection, or no response within 20 s.
        """
        connection = _idle.take(self) or self.connection()
        headers = {"Content-Type": content_type, "Accept": "application/json, */*"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            connection.close()
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        except BaseException:
            connection.close()
            raise
        _idle.put(self, connection)
        if not 200 <= answer.status < 300:
            raise HTTPError(answer.status, f"{method} {path}: {answer.status} {content.decode(errors='replace')}")
        return content

    def connection(self) -> http.client.HTTPConnection:
        """Return a new connection, not connected yet."""
        parts = urlsplit(self.url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_S)
        return http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_S, context=_tls_context(self.ca))

    def answers(self, path: str) -> bool:
        """Whether a GET succeeds with 2xx; False also without a connection or a response."""
        try:
            self.request("GET", path)
        except (OSError, HTTPError):
            return False
        return True

    def get(self, path: str) -> Any:
        """GET a JSON document."""
        return json.loads(self.request("GET", path))

    def create(self, item: Mapping[str, Any]) -> Any:
        """POST an object to its collection (namespace `default` if it has none); return the stored object."""
        return json.loads(self.request("POST", collection(item), item))

    def patch(self, path: str, change: Mapping[str, Any]) -> Any:
        """PATCH the object at a path with a merge patch; return the stored object."""
        return json.loads(self.request("PATCH", path, change, content_type="application/merge-patch+json"))

    def delete(self, path: str, *, grace_s: int = 1) -> None:
        """DELETE an object or a collection; no error if it does not exist.

        A running pod remains in the API until its kubelet has stopped it. With grace period 0 it is removed at once,
        while its containers may still run.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace_s}
        try:
            self.request("DELETE", path, options)
        except HTTPError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise

    def wait_for(self, path: str, condition: Callable[[Any], bool], *, timeout_s: float, what: str) -> Any:
        """Repeat a GET until the document meets a condition; return that document.

        Raises:
            ClusterError: it did not in time; the text shows the last document.
        """
        last: Any = None

        def holds() -> bool:
            nonlocal last
            try:
                last = self.get(path)
            except HTTPError as error:
                last = str(error)
                return False
            return condition(last)

        wait_until(holds, timeout_s=timeout_s, what=what, tail=lambda: f"; last seen: {json.dumps(last)[:3000]}")
        return last


@functools.cache
def _tls_context(ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without the system's authorities, which take 20 ms to load
    if ca is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(ca)
    return context


class _IdleConnections:
    """TLS connections to reuse. Tests poll every 30 ms, and a handshake takes more CPU than the request itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: defaultdict[tuple[str, Path | None], list[http.client.HTTPConnection]] = defaultdict(list)

    def take(self, server: Server) -> http.client.HTTPConnection | None:
        """Return an open connection to a server, or None."""
        while True:
            with self._lock:
                connections = self._connections[server.url, server.ca]
                if not connections:
                    return None
                connection = connections.pop()
            # A server sends nothing on an idle connection, so data is the end of the connection.
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def put(self, server: Server, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose response has been read; close it without TLS."""
        if connection.sock is None or not isinstance(connection, http.client.HTTPSConnection):
            connection.close()
            return
        with self._lock:
            self._connections[server.url, server.ca].append(connection)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            connections = [each for several in self._connections.values() for each in several]
            self._connections.clear()
        for connection in connections:
            connection.close()


_idle: Final = _IdleConnections()


def close_idle_connections() -> None:
    """Close the connections that are kept for later requests; requests after that open new ones."""
    _idle.close()


def collection(item: Mapping[str, Any]) -> str:
    """Return the path of an object's collection."""
    version, kind, metadata = item["apiVersion"], item["kind"], item["metadata"]
    plural = _PLURALS.get(kind) or f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    root = _GROUPS.get(version, f"/apis/{version}")
    if kind in _CLUSTER_WIDE:
        return f"{root}/{plural}"
    return f"{root}/namespaces/{quote(metadata.get('namespace', 'default'))}/{plural}"


def free_ports(count: int) -> list[int]:
    """Return unused ports outside the range of ephemeral ports, which no other test run on this machine returns.

    The kernel could assign an ephemeral port to an outgoing connection before the server binds it. A server binds its
    port later, and frees it while it restarts, so this process also reserves the number until it ends.
    """
    lowest_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        # Not the `random` module: test runs seed it, so two clusters would choose the same ports.
        port = 10_000 + secrets.randbelow(max(lowest_ephemeral - 10_000, 1_000))
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        if _reserve(port):
            found.append(port)
    return found


def _reserve(port: int) -> bool:
    """Reserve a port number among the test runs of this machine until this process ends; False if it is reserved.

    The reservation is a name in the abstract namespace of unix sockets, which ends with the process.
    """
    reservation = socket.socket(socket.AF_UNIX)
    try:
        reservation.bind(f"\0ascend-affinity-test-port-{port}")
    except OSError:
        reservation.close()
        return False
    reservation.detach()  # it stays open, and nobody has to close it
    return True
